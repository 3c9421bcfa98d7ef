"""The tables of docs/scaling.md: how many actors one replay can serve, computed from measurements.

Nothing is measured here. Speeds are from `make bench` (docs/bench/results.json), message sizes and the cost of
encryption from `python -m benchmarks.wire_costs`, and the last table from `python -m benchmarks.sharding`
(docs/scaling/). The tables state whether a number was measured or extrapolated by the formulas below.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measure import APEX_ACTORS, APEX_IN, APEX_OUT, markdown_table
from dpsr_apex import timeouts
from dpsr_apex.config import SystemConfig

FOLDER = Path(__file__).parents[1] / "docs" / "scaling"
ACTORS = (8, 64, 256, 1_024)
LINKS = (1, 10, 25)  # Gbit/s
PERIODS = (SystemConfig().weights_period, 10 * SystemConfig().weights_period)  # steps between requests for weights
GIGABIT = 1e9 / 8  # bytes per second
TRAFFIC = ("chunks in", "batches out", "weights out")
MEASURED, EXTRAPOLATED = "measured", "extrapolated"


class Costs(NamedTuple):
    """Unit costs. Seconds are CPU time; N is 50,000 for a small replay and 1,000,000 for a large one."""

    small_insertion: float  # s of the small replay per transition over sockets
    core_growth: float  # additional s per insertion in the large replay
    mixed_in: float  # transitions per CPU second of the large replay, at Ape-X's ratio to batches
    mixed_out: float  # batches per CPU second of the large replay, at Ape-X's ratio to transitions
    step: float  # s of an actor per step, including inference and sending
    transition_bytes: float  # in a chunk; three-step transitions as in Ape-X, as all sizes below
    batch_bytes: float
    weights_bytes: float  # of one network
    plain_transition_bytes: float  # of these, not encrypted in the measured insertions
    plain_batch_bytes: float  # of these, not encrypted in the measured batches
    chunk_encryption: float  # additional s per byte with keys
    batch_encryption: float  # additional s per byte with keys
    weights_sending: float  # s per byte of weights with keys, in total

    @property
    def insertion(self) -> float:
        """CPU seconds per transition into a large replay, as measured; extrapolated."""
        return self.small_insertion + self.core_growth

    @property
    def batch(self) -> float:
        """CPU seconds per batch of 512 with its priorities, as measured; extrapolated from the mixed load."""
        return (1.0 - self.mixed_in * self.insertion) / self.mixed_out

    @property
    def encrypted_insertion(self) -> float:
        """CPU seconds per three-step transition into a large replay, with keys; extrapolated."""
        return self.insertion + self.plain_transition_bytes * self.chunk_encryption

    @property
    def encrypted_batch(self) -> float:
        """CPU seconds per batch of 512 three-step transitions with its priorities, with keys; extrapolated."""
        return self.batch + self.plain_batch_bytes * self.batch_encryption


class Fleet(NamedTuple):
    """A number of actors, their speed, and a learner as fast as Ape-X's."""

    actors: float
    steps: float  # per second and actor
    weights_period: int = PERIODS[0]
    batches: float = APEX_OUT  # per second

    @property
    def transitions(self) -> float:
        """Transitions per second of all actors."""
        return self.actors * self.steps

    @property
    def weights_sent(self) -> float:
        """Networks that the learner sends per second: an actor never receives the same one twice."""
        return self.actors * min(self.steps / self.weights_period, self.batches)


def load_costs(results: Mapping[str, Any], wire: Mapping[str, Any]) -> Costs:
    """Extract the unit costs from the results of `make bench` and of `benchmarks.wire_costs`."""
    benchmarks = {name: result["figures"] for name, result in results["benchmarks"].items()}
    core, traffic, whole = (benchmarks[name] for name in ("core", "replay_traffic", "whole_system"))
    mixed = traffic["N=1000000 batch=512 per cpu second"]
    insert = {size: core[f"insert, N = {size}"]["whole"]["cpu"]["median"] / 1e6 for size in (50_000, 1_000_000)}
    sizes = wire["figures"]["bytes"]["3 steps"]
    # With keys, the speeds include the encryption of one-step transitions.
    encrypted_already = (
        wire["figures"]["bytes"]["1 steps"] if traffic.get("has_keys") else {"transition": 0, "batch": 0}
    )
    plain, encrypted = (
        {name: wire["figures"][name][keys]["cpu"]["median"] / 1e9 for name in TRAFFIC}  # from ms per megabyte
        for keys in ("without keys", "with keys")
    )
    return Costs(
        small_insertion=1.0 / traffic["transitions per second by actors"]["200"]["cpu"]["median"],
        core_growth=insert[1_000_000] - insert[50_000],
        mixed_in=mixed["transitions"]["median"],
        mixed_out=mixed["batches"]["median"],
        step=whole["cores used by the actor"]["median"] / whole["steps per second"]["median"],
        transition_bytes=sizes["transition"],
        batch_bytes=sizes["batch"],
        weights_bytes=sizes["weights"],
        plain_transition_bytes=sizes["transition"] - encrypted_already["transition"],
        plain_batch_bytes=sizes["batch"] - encrypted_already["batch"],
        chunk_encryption=encrypted["chunks in"] - plain["chunks in"],
        batch_encryption=encrypted["batches out"] - plain["batches out"],
        weights_sending=encrypted["weights out"],
    )


# The formulas: the share of a core or of a network link that is used, with keys, which are required between machines.


def replay_core(costs: Costs, fleet: Fleet) -> float:
    """Return the load of the replay's core."""
    return fleet.transitions * costs.encrypted_insertion + fleet.batches * costs.encrypted_batch


def replay_link(costs: Costs, fleet: Fleet, gigabits: float) -> float:
    """Return the load of the replay's link in its busier direction: transitions in or batches out."""
    busier = max(fleet.transitions * costs.transition_bytes, fleet.batches * costs.batch_bytes)
    return busier / (gigabits * GIGABIT)


def weights_link(costs: Costs, fleet: Fleet, gigabits: float) -> float:
    """Return the load of the learner's link by weights."""
    return fleet.weights_sent * costs.weights_bytes / (gigabits * GIGABIT)


def weights_core(costs: Costs, fleet: Fleet) -> float:
    """Return the load of the learner's networking thread by weights."""
    return fleet.weights_sent * costs.weights_bytes * costs.weights_sending


def weights_latency(costs: Costs, actors: float, networks: int, gigabits: float) -> float:
    """Return the seconds until all of `actors` that wait at the same time have received `networks` networks."""
    seconds_per_byte = max(1 / (gigabits * GIGABIT), costs.weights_sending)
    return actors * networks * costs.weights_bytes * seconds_per_byte


def max_transitions(costs: Costs, batches: float) -> float:
    """Return the maximum number of transitions per second into one replay that also sends `batches` per second."""
    return (1.0 - batches * costs.encrypted_batch) / costs.encrypted_insertion


# The tables.


def speeds(costs: Costs) -> dict[str, float]:
    """Return the steps per second of one actor, by scenario."""
    return {"Ape-X's rate": APEX_IN / APEX_ACTORS, "one core each": 1.0 / costs.step}


def percent(share: float) -> str:
    """Format a share in percent, in bold if it exceeds 100 %."""
    text = f"{100 * share:,.{int(share < 0.095)}f} %"
    return f"**{text}**" if share > 1.0 else text


def show_actors(costs: Costs) -> str:
    """Return the table of loads by number of actors."""
    links = f"{' / '.join(map(str, LINKS))} Gbit/s"
    columns = (
        *("steps/s per actor", "actors", "transitions/s", "replay core", f"replay link, {links}"),
        *(f"weights on the learner's link, {links}", "encrypting them, one core", "replays needed"),
    )
    fleets = {Fleet(actors, steps): name for name, steps in speeds(costs).items() for actors in ACTORS}
    rows = [
        [
            f"{fleet.steps:.0f} ({name})",
            f"{fleet.actors:,}",
            f"{fleet.transitions:,.0f}",
            percent(replay_core(costs, fleet)),
            " / ".join(percent(replay_link(costs, fleet, link)) for link in LINKS),
            " / ".join(percent(weights_link(costs, fleet, link)) for link in LINKS),
            percent(weights_core(costs, fleet)),
            str(math.ceil(replay_core(costs, fleet))),
        ]
        for fleet, name in fleets.items()
    ]
    return markdown_table(columns, rows)


def show_limits(costs: Costs) -> str:
    """Return the table of the maximum number of actors for each resource, at either speed."""
    single = {period: [Fleet(1, steps, period) for steps in speeds(costs).values()] for period in PERIODS}
    replay_limit = max_transitions(costs, APEX_OUT)
    limits = {"replay core": [replay_limit / actor.transitions for actor in single[PERIODS[0]]]}
    for link in LINKS:
        link_limit = link * GIGABIT / costs.transition_bytes
        limits[f"transitions on the replay's link, {link} Gbit/s"] = [
            link_limit / actor.transitions for actor in single[PERIODS[0]]
        ]
    for period, actors in single.items():
        resource = f"weights every {period:,} steps"
        for link in LINKS:
            limits[f"{resource}, {link} Gbit/s"] = [1 / weights_link(costs, actor, link) for actor in actors]
        limits[f"{resource}, encrypted by one thread"] = [1 / weights_core(costs, actor) for actor in actors]
    for title, networks in (("both networks (on joining)", 2), ("one network", 1)):
        for link in LINKS:
            resource = f"{title} within {timeouts.WEIGHTS_ANSWER:.0f} s if all actors wait, {link} Gbit/s"
            limits[resource] = [timeouts.WEIGHTS_ANSWER / weights_latency(costs, 1, networks, link)] * 2
    columns = [f"{steps:.0f} steps/s ({name})" for name, steps in speeds(costs).items()]
    rows = [[resource, *(f"{math.floor(limit):,}" for limit in both)] for resource, both in limits.items()]
    return markdown_table(("limiting resource", *columns), rows)


def show_costs(costs: Costs, results: Mapping[str, Any], wire: Mapping[str, Any]) -> str:
    """Return the table of measured unit costs and of the first numbers derived from them."""
    rows = _replay_rows(costs, results) | _wire_rows(costs, results, wire)
    return markdown_table(("operation", "cost", "source"), [[name, *cells] for name, cells in rows.items()])


def _replay_rows(costs: Costs, results: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    benchmarks = results["benchmarks"].values()
    ours = {line["work"]: line["ours"]["median"] for result in benchmarks for line in result["comparisons"]}
    compressed = ours["sample batches of 32 over sockets, ours compressed"]
    both = [ours[f"insert and sample concurrently: {work}"] for work in ("transitions", "batches of 32, as arrays")]
    memory = ours["memory per stored Breakout transition, including its snapshot and all overhead"]
    return {
        "insert a transition, N = 50,000, from 200 actors": (
            f"{1e6 * costs.small_insertion:.1f} µs of the replay's core, so {1 / costs.small_insertion:,.0f}/s",
            MEASURED,
        ),
        "insert a transition, N = 1,000,000": (
            f"{1e6 * costs.insertion:.1f} µs",
            f"{EXTRAPOLATED}: {1e6 * costs.core_growth:.1f} µs more, as measured without sockets",
        ),
        "Ape-X's mixed load, N = 1,000,000": (
            f"{costs.mixed_in:,.0f} transitions and {costs.mixed_out:.1f} batches of 512, including priorities, "
            f"per second of the replay's core: {costs.mixed_in / APEX_IN:.1f} times Ape-X",
            MEASURED,
        ),
        "sample a batch of 512 and update its priorities, N = 1,000,000": (
            f"{1e3 * costs.batch:.1f} ms of the replay's core",
            f"{EXTRAPOLATED}: the mixed load minus its insertions",
        ),
        "insert a transition and sample a batch of 512, with keys and three-step returns": (
            f"{1e6 * costs.encrypted_insertion:.1f} µs and {1e3 * costs.encrypted_batch:.1f} ms",
            f"{EXTRAPOLATED} with the last rows of this table",
        ),
        f"the maximum rate of insertions with keys, and {APEX_OUT} batches of 512 per second": (
            f"{max_transitions(costs, APEX_OUT):,.0f}/s",
            EXTRAPOLATED,
        ),
        "sample batches of 32, N = 50,000, no insertions": (f"{compressed:,.0f}/s", MEASURED),
        "insert and sample concurrently, all clients on the same two cores": (
            f"{both[0]:,.0f} transitions and {both[1]:,.0f} batches of 32 per second",
            MEASURED,
        ),
        "memory per transition": (f"{memory:.0f} bytes", MEASURED),
    }


def _wire_rows(costs: Costs, results: Mapping[str, Any], wire: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    steps = results["benchmarks"]["whole_system"]["figures"]["steps per second"]["median"]
    sizes = [wire["figures"]["bytes"][f"{n} steps"] for n in (1, 3)]
    return {
        "a transition on the wire, in a chunk of 50": (_by_n_steps(sizes, "transition", 1.0, "bytes", 0), MEASURED),
        "a batch of 512 on the wire": (_by_n_steps(sizes, "batch", 1e6, "MB", 2), MEASURED),
        "batches of 512 that saturate a link of 1 Gbit/s": (
            " or ".join(f"{GIGABIT / size['batch']:.0f}/s" for size in sizes),
            EXTRAPOLATED,
        ),
        "weights of one network on the wire": (f"{costs.weights_bytes / 1e6:.2f} MB", MEASURED),
        "a step of an actor": (
            f"{1e3 * costs.step:.2f} ms of a core, so {1 / costs.step:.0f} steps/s on its own core",
            f"{EXTRAPOLATED} from {steps:.0f} steps/s",
        ),
    } | {
        f"a server's core per MB of {name}": (_with_and_without_keys(wire["figures"][name]), MEASURED)
        for name in TRAFFIC
    }


def _by_n_steps(sizes: Sequence[Mapping[str, float]], message: str, unit: float, name: str, digits: int) -> str:
    one, three = (f"{size[message] / unit:.{digits}f}" for size in sizes)
    return f"{one} {name}; {three} {name} with three-step returns"


def _with_and_without_keys(figures: Mapping[str, Any]) -> str:
    plain, encrypted = (figures[keys]["cpu"]["median"] for keys in ("without keys", "with keys"))
    return f"{encrypted:.2f} ms with keys, {plain:.2f} ms without"


def show_shards(simulation: Mapping[str, Any], beta: str, omitted: Sequence[str] = ()) -> str:
    """Return the table of the sharding simulation, in percent of the expectation with one replay."""
    one = simulation["schemes"]["one"][beta]["standard deviation"]
    rows = []
    for name, by_beta in simulation["schemes"].items():
        if name in omitted:
            continue
        line = by_beta[beta]
        bias, expected, deviation = (100 * line[key] for key in ("bias", "expected bias", "standard deviation"))
        formula = f"{expected:+.2f}" if abs(expected) > 0.005 else "0"
        cells = (f"{bias:+.2f}", formula, f"{line['bias'] / line['standard error']:+.1f}")
        others = (f"{deviation:.1f}", f"{(line['standard deviation'] / one) ** 2:.2f}", f"{line['scales']:.2f}")
        rows.append([simulation["titles"][name], *(cell.replace("-", "−") for cell in cells), *others])
    columns = (
        *("scheme", "bias, %", "by formula", "in standard errors", "standard deviation, %"),
        *("variance, one replay = 1", "largest / smallest scale"),
    )
    return markdown_table(columns, rows)


def parts(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables by name, from these results of `make bench` and from the files in docs/scaling/."""
    wire, shards = (json.loads((FOLDER / f"{name}.json").read_text("utf-8")) for name in ("wire_costs", "sharding"))
    costs = load_costs(results, wire)
    only_plotted = [name for name in shards["schemes"] if re.fullmatch(r"wrong .+, rounded", name)]
    return {
        "costs": show_costs(costs, results, wire),
        "actors": show_actors(costs),
        "limits": show_limits(costs),
        "shards": show_shards(shards, "1"),
        "shards_at_less": show_shards(shards, "0.4", only_plotted),
    }
