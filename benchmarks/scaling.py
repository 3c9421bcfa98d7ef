"""How far one replay goes as actors are added, computed from what was measured: the tables of docs/scaling.md.

Nothing is measured here. Speeds are from `make bench` (docs/bench/results.json), bytes of messages and the cost of keys
from `python -m benchmarks.wire_costs`, and the last table from `python -m benchmarks.sharding` (docs/scaling/). A table
says of each number whether it was measured, or extrapolated by the formulas below.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import APEX_ACTORS, APEX_IN, APEX_OUT, markdown_table
from dpsr_apex.config import SystemConfig
from dpsr_apex.processes.weights import ANSWER_SECONDS

FOLDER = Path(__file__).parents[1] / "docs" / "scaling"
ACTORS = (8, 64, 256, 1_024)
LINES = (1, 10, 25)  # Gbit/s
PERIODS = (SystemConfig().weights_period, 10 * SystemConfig().weights_period)  # steps between questions for weights
GIGABIT = 1e9 / 8  # bytes per second
SERVED = ("chunks in", "batches out", "weights out")
MEASURED, EXTRAPOLATED = "measured", "extrapolated"


class Costs(NamedTuple):
    """What one thing takes. Seconds are of CPU time; N is 50,000 for a small replay and 1,000,000 for a large one."""

    small_insertion: float  # s of the replay, for one transition over sockets
    core_growth: float  # s that an insertion takes longer in a large replay
    mixed_in: float  # transitions and batches that a large replay carried in a CPU second, at Ape-X's ratio
    mixed_out: float
    step: float  # s of an actor, its share of everything included
    transition_bytes: float  # in a chunk, of Ape-X's three steps, as all below
    batch_bytes: float
    weights_bytes: float  # of one network
    chunk_sealing: float  # s that keys add for a byte of it
    batch_sealing: float
    weights_sealing: float  # s for a byte of weights, with keys and all

    @property
    def insertion(self) -> float:
        """Of one transition into a large replay, without keys; extrapolated."""
        return self.small_insertion + self.core_growth

    @property
    def batch(self) -> float:
        """Of one batch of 512 with its priorities, without keys; extrapolated: what the insertions of the mix leave."""
        return (1.0 - self.mixed_in * self.insertion) / self.mixed_out

    @property
    def sealed_insertion(self) -> float:
        """With keys."""
        return self.insertion + self.transition_bytes * self.chunk_sealing

    @property
    def sealed_batch(self) -> float:
        """With keys."""
        return self.batch + self.batch_bytes * self.batch_sealing


class Fleet(NamedTuple):
    """So many actors, each with so many steps a second, beside a learner as fast as Ape-X's."""

    actors: float
    steps: float
    weights_period: int = PERIODS[0]
    batches: float = APEX_OUT

    @property
    def transitions(self) -> float:
        """Per second."""
        return self.actors * self.steps

    @property
    def answers(self) -> float:
        """Networks that the learner sends, per second: nobody gets the same one twice."""
        return self.actors * min(self.steps / self.weights_period, self.batches)


def load_costs(results: Mapping[str, Any], wire: Mapping[str, Any]) -> Costs:
    benchmarks = {name: found["figures"] for name, found in results["benchmarks"].items()}
    core, traffic, whole = (benchmarks[name] for name in ("core", "replay_traffic", "whole_system"))
    mixed = traffic["N=1000000 batch=512 per cpu second"]
    insert = {size: core[f"insert, N = {size}"]["whole"]["cpu"]["median"] / 1e6 for size in (50_000, 1_000_000)}
    sizes = wire["figures"]["bytes"]["3 steps"]
    bare, sealed = (
        {name: wire["figures"][name][who]["cpu"]["median"] / 1e9 for name in SERVED}  # from ms a megabyte
        for who in ("without keys", "with keys")
    )
    return Costs(
        small_insertion=1.0 / traffic["transitions per second by actors"]["200"]["cpu"]["median"],
        core_growth=insert[1_000_000] - insert[50_000],
        mixed_in=mixed["transitions"]["median"],
        mixed_out=mixed["batches"]["median"],
        step=whole["cores taken by the actor"]["median"] / whole["steps per second"]["median"],
        transition_bytes=sizes["transition"],
        batch_bytes=sizes["batch"],
        weights_bytes=sizes["weights"],
        chunk_sealing=sealed["chunks in"] - bare["chunks in"],
        batch_sealing=sealed["batches out"] - bare["batches out"],
        weights_sealing=sealed["weights out"],
    )


# The formulas: what share of a core or of a line is taken. There are keys, as there must be between machines.


def replay_core(costs: Costs, fleet: Fleet) -> float:
    return fleet.transitions * costs.sealed_insertion + fleet.batches * costs.sealed_batch


def replay_line(costs: Costs, fleet: Fleet, gigabits: float) -> float:
    """The fuller of its two directions: transitions in, batches out."""
    busiest = max(fleet.transitions * costs.transition_bytes, fleet.batches * costs.batch_bytes)
    return busiest / (gigabits * GIGABIT)


def weights_line(costs: Costs, fleet: Fleet, gigabits: float) -> float:
    return fleet.answers * costs.weights_bytes / (gigabits * GIGABIT)


def weights_core(costs: Costs, fleet: Fleet) -> float:
    """Of the learner's one thread that talks to the network."""
    return fleet.answers * costs.weights_bytes * costs.weights_sealing


def answer_time(costs: Costs, actors: float, networks: int, gigabits: float) -> float:
    """Seconds that an answer takes when so many actors wait for theirs at the same time, over line and thread."""
    slowest = max(1 / (gigabits * GIGABIT), costs.weights_sealing)  # seconds for a byte
    return actors * networks * costs.weights_bytes * slowest


def most_transitions(costs: Costs, batches: float) -> float:
    """Per second, into one replay beside so many batches."""
    return (1.0 - batches * costs.sealed_batch) / costs.sealed_insertion


# The tables.


def speeds(costs: Costs) -> dict[str, float]:
    """Steps a second of one actor."""
    return {"Ape-X's": APEX_IN / APEX_ACTORS, "a core each": 1.0 / costs.step}


def percent(share: float) -> str:
    """Bold where there is more than all."""
    shown = f"{100 * share:,.{int(share < 0.095)}f} %"
    return f"**{shown}**" if share > 1.0 else shown


def show_actors(costs: Costs) -> str:
    """What is taken by so many actors."""
    among = f"{' / '.join(map(str, LINES))} Gbit/s"
    columns = (
        *("steps/s of an actor", "actors", "transitions/s", "the replay's core", f"its line, {among}"),
        *(f"weights on the learner's line, {among}", "sealing them, of a core", "replays needed"),
    )
    fleets = {Fleet(actors, steps): name for name, steps in speeds(costs).items() for actors in ACTORS}
    rows = [
        [
            f"{fleet.steps:.0f} ({name})",
            f"{fleet.actors:,}",
            f"{fleet.transitions:,.0f}",
            percent(replay_core(costs, fleet)),
            " / ".join(percent(replay_line(costs, fleet, line)) for line in LINES),
            " / ".join(percent(weights_line(costs, fleet, line)) for line in LINES),
            percent(weights_core(costs, fleet)),
            str(math.ceil(replay_core(costs, fleet))),
        ]
        for fleet, name in fleets.items()
    ]
    return markdown_table(columns, rows)


def show_limits(costs: Costs) -> str:
    """The most actors before something is full, for either speed."""
    each = {period: [Fleet(1, steps, period) for steps in speeds(costs).values()] for period in PERIODS}
    whole = most_transitions(costs, APEX_OUT)
    limits = {"the replay's core": [whole / one.transitions for one in each[PERIODS[0]]]}
    for line in LINES:
        room = line * GIGABIT / costs.transition_bytes
        limits[f"transitions on the replay's line, {line} Gbit/s"] = [
            room / one.transitions for one in each[PERIODS[0]]
        ]
    for period, fleets in each.items():
        work = f"weights every {period:,} steps"
        for line in LINES:
            limits[f"{work}, {line} Gbit/s"] = [1 / weights_line(costs, one, line) for one in fleets]
        limits[f"{work}, sealed by one thread"] = [1 / weights_core(costs, one) for one in fleets]
    for what, networks in (("both networks, for who joins", 2), ("one network", 1)):
        for line in LINES:
            work = f"{what}, within {ANSWER_SECONDS:.0f} s when all wait, {line} Gbit/s"
            limits[work] = [ANSWER_SECONDS / answer_time(costs, 1, networks, line)] * 2
    columns = [f"{steps:.0f} steps/s ({name})" for name, steps in speeds(costs).items()]
    rows = [[work, *(f"{math.floor(most):,}" for most in found)] for work, found in limits.items()]
    return markdown_table(("what is full with more actors", *columns), rows)


def show_costs(costs: Costs, results: Mapping[str, Any], wire: Mapping[str, Any]) -> str:
    """What all of it is computed from, and the first things that follow."""
    found = results["benchmarks"]
    ours = {line["work"]: line["ours"]["median"] for name in found for line in found[name]["comparisons"]}
    squeezed = ours["batches of 32 out of the replay, ours still squeezed"]
    both = [ours[f"both at once: {work}"] for work in ("transitions in", "batches of 32 out, as arrays")]
    memory = ours["memory of a stored Breakout transition, its snapshot and everything around it included"]
    slow = found["whole_system"]["figures"]["steps per second"]["median"]
    sizes = [wire["figures"]["bytes"][f"{n} steps"] for n in (1, 3)]
    rows = {
        "a transition into a replay of 50,000, from 200 actors": (
            f"{1e6 * costs.small_insertion:.1f} µs of the replay's core, so {1 / costs.small_insertion:,.0f}/s",
            MEASURED,
        ),
        "a transition into a replay of 1,000,000": (
            f"{1e6 * costs.insertion:.1f} µs",
            f"{EXTRAPOLATED}: {1e6 * costs.core_growth:.1f} µs more, as measured without sockets",
        ),
        "Ape-X's mix, replay of 1,000,000": (
            f"{costs.mixed_in:,.0f} transitions in and {costs.mixed_out:.1f} batches of 512 out, with priorities back, "
            f"in a second of its core: {costs.mixed_in / APEX_IN:.1f} times Ape-X",
            MEASURED,
        ),
        "a batch of 512 out of a replay of 1,000,000, with priorities back": (
            f"{1e3 * costs.batch:.1f} ms of its core",
            f"{EXTRAPOLATED}: what the insertions leave of that mix",
        ),
        "the same two with keys, three-step returns": (
            f"{1e6 * costs.sealed_insertion:.1f} µs and {1e3 * costs.sealed_batch:.1f} ms",
            f"{EXTRAPOLATED} by the last lines of this table",
        ),
        f"transitions that one replay then takes beside {APEX_OUT} batches a second": (
            f"{most_transitions(costs, APEX_OUT):,.0f}/s",
            EXTRAPOLATED,
        ),
        "batches of 32 out of a replay of 50,000, nothing else": (f"{squeezed:,.0f}/s", MEASURED),
        "both at once, all clients on the same two cores": (
            f"{both[0]:,.0f} transitions in and {both[1]:,.0f} batches of 32 out a second",
            MEASURED,
        ),
        "memory of a transition": (f"{memory:.0f} bytes", MEASURED),
        "a transition on the wire, in a chunk of 50": (_of_steps(sizes, "transition", 1.0, "bytes", 0), MEASURED),
        "a batch of 512 on the wire": (_of_steps(sizes, "batch", 1e6, "MB", 2), MEASURED),
        "such batches that fill a line of 1 Gbit/s": (
            " or ".join(f"{GIGABIT / of['batch']:.0f}/s" for of in sizes),
            EXTRAPOLATED,
        ),
        "weights of one network on the wire": (f"{costs.weights_bytes / 1e6:.2f} MB", MEASURED),
        "a step of an actor": (
            f"{1e3 * costs.step:.2f} ms of a core, so {1 / costs.step:.0f} steps/s on a core of its own",
            f"{EXTRAPOLATED} from {slow:.0f} steps/s",
        ),
    } | {f"a server's core for a MB of {name}": (_sealed(wire["figures"][name]), MEASURED) for name in SERVED}
    return markdown_table(("what", "figure", "how"), [[what, *told] for what, told in rows.items()])


def _of_steps(sizes: Sequence[Mapping[str, float]], what: str, unit: float, name: str, digits: int) -> str:
    one, three = (f"{of[what] / unit:.{digits}f}" for of in sizes)
    return f"{one} {name}; {three} {name} with three-step returns"


def _sealed(figures: Mapping[str, Any]) -> str:
    bare, sealed = (figures[who]["cpu"]["median"] for who in ("without keys", "with keys"))
    return f"{sealed:.2f} ms with keys, {bare:.2f} ms without"


def show_shards(found: Mapping[str, Any], beta: str, left_out: Sequence[str] = ()) -> str:
    """What the simulation found, in percent of what one replay would expect."""
    one = found["ways"]["one"][beta]["standard deviation"]
    rows = []
    for name, by_beta in found["ways"].items():
        if name in left_out:
            continue
        line = by_beta[beta]
        bias, expected, scatter = (100 * line[key] for key in ("bias", "expected bias", "standard deviation"))
        told = f"{expected:+.2f}" if abs(expected) > 0.005 else "0"
        cells = (f"{bias:+.2f}", told, f"{line['bias'] / line['standard error']:+.1f}")
        others = (f"{scatter:.1f}", f"{(line['standard deviation'] / one) ** 2:.2f}", f"{line['scales']:.2f}")
        rows.append([found["titles"][name], *(cell.replace("-", "−") for cell in cells), *others])
    columns = (
        *("way", "bias, %", "by the formula", "in standard errors", "standard deviation, %"),
        *("variance, one replay = 1", "weights apart by"),
    )
    return markdown_table(columns, rows)


def parts(results: Mapping[str, Any]) -> dict[str, str]:
    """The tables by name, from these results of `make bench` and from what is published beside the page."""
    wire, found = (json.loads((FOLDER / f"{name}.json").read_text("utf-8")) for name in ("wire_costs", "sharding"))
    costs = load_costs(results, wire)
    in_the_picture = [name for name in found["ways"] if re.fullmatch(r"wrong .+, rounded", name)]
    return {
        "costs": show_costs(costs, results, wire),
        "actors": show_actors(costs),
        "limits": show_limits(costs),
        "shards": show_shards(found, "1"),
        "shards_at_less": show_shards(found, "0.4", in_the_picture),
    }
