"""The replay core beside other people's trees: inserting, drawing with updating, and how both grow with N.

Trees are compared with trees: our compiled calls, with their random numbers, identities and importance weights, beside
the least that each peer must do for the same (`peers/trees.py`). Ours always keep all four trees, exactly; a peer that
draws and updates keeps its sampling tree alone. The whole `DpsrReplay` call, which also stores or reads transitions,
follows on lines of its own, beside the same trees that store nothing.

Every work begins with a few operations that are not timed, because the others have had the caches meanwhile. torchrl's
trees are not here: the extension of its newest wheel (0.14.1) has symbols that torch 2.13 does not have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.measure import Comparison, Elapsed, Report, Spread, interleave, parse_options, ratio, spread, timed
from benchmarks.peers import TORCH, Peer
from benchmarks.peers.trees import ALPHA, BATCH, BETA, CANDIDATES, GAMMA, WARM_UP
from dpsr_apex.config import ReplayConfig
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.replay.occupancy import GREATEST_NOW, replace_by_priority, update_current
from dpsr_apex.replay.schedules import constant
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.replay.trees import PriorityTrees

CAPACITIES = (50_000, 1_000_000)
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)  # of the curves; the peer's end at the size that users have
GREATEST_PEER_SIZE = 1_000_000
CHUNK = 50  # transitions that come in at a time
COUNTS = {"insert": 5_000, "draw_update": 2_000}  # of one repetition
PEER_COUNTS = {"tianshou": 1_000, "cpprb": 500, "python": 50}
MICRO = 1e6

WORKS = {
    "insert": "one DPSR insertion (256 candidates, the oldest, all trees; ours in chunks of 50)",
    "draw_update": "draw 32 with weights + update 32 priorities",
}
PEERS = {
    ("tianshou", "insert"): "the same logic on two of tianshou's segment trees",
    ("cpprb", "insert"): "two of cpprb's prioritized buffers, one of p^-gamma: it cannot evict by priority itself",
    ("python", "insert"): "the structure of the authors' code: binary trees in Python lists",
    ("tianshou", "draw_update"): "tianshou's segment tree, for sampling alone",
    ("cpprb", "draw_update"): "cpprb's prioritized buffer, storing one byte a transition",
    ("python", "draw_update"): "binary trees in Python lists, for sampling alone",
}
GOALS: dict[tuple[str, str], float | None] = {
    ("tianshou", "insert"): 3.0,
    ("cpprb", "insert"): 3.0,
    ("python", "insert"): 300.0,
    ("tianshou", "draw_update"): 3.0,
    ("cpprb", "draw_update"): 3.0,
    ("python", "draw_update"): None,
}

WHO = {"ours": "dpsr_apex's compiled trees", "tianshou": "tianshou's segment trees"}  # in the curves

Works = dict[str, Callable[[], Elapsed]]
Times = dict[str, list[Elapsed]]


def warmed(ours: Compiled | Whole, work: str) -> Callable[[], Elapsed]:
    """A work that brings what it needs into the caches first, since others have had them meanwhile."""
    method, count = getattr(ours, work), COUNTS[work]

    def measure() -> Elapsed:
        method(count // WARM_UP)
        elapsed: Elapsed = method(count)
        return elapsed

    return measure


class Compiled:
    """The compiled calls alone, over trees and identities of their own."""

    def __init__(self, capacity: int) -> None:
        self._rng = np.random.default_rng(0)
        self._serial = capacity
        self._identities = np.arange(capacity) * (capacity + 1)
        self._trees = PriorityTrees(capacity, ALPHA, GAMMA)
        self._trees.load(self._rng.lognormal(-3.0, 1.0, capacity), ALPHA, GAMMA)

    def insert(self, count: int) -> Elapsed:
        """Replacements, a chunk a call."""
        priorities = np.full(CHUNK, GREATEST_NOW)
        with timed() as timer:
            for _ in range(count // CHUNK):
                serials = np.arange(self._serial, self._serial + CHUNK)
                uniforms = self._rng.random((CHUNK, CANDIDATES))
                replace_by_priority(*self._trees.arrays, self._identities, serials, priorities, uniforms, ALPHA, GAMMA)
                self._serial += CHUNK
        return timer.elapsed.per(count)

    def draw_update(self, count: int) -> Elapsed:
        """Draw a batch with weights, and give those drawn new priorities by their identities."""
        trees, identities, rng = self._trees, self._identities, self._rng
        found = np.empty(BATCH, dtype=np.int64)
        priorities = rng.lognormal(-3.0, 1.0, (count, BATCH))
        with timed() as timer:
            for row in priorities:
                slots, _ = trees.draw_to_sample(rng.random(BATCH), BETA)
                update_current(found, *trees.arrays, identities, identities[slots], row, ALPHA, GAMMA)
        return timer.elapsed.per(count)


class Whole:
    """A full `DpsrReplay`, used as the replay server uses it."""

    def __init__(self, capacity: int) -> None:
        config = ReplayConfig(
            method="double",
            capacity=capacity,
            sampling_exponent=constant(ALPHA),
            bias_annealing=constant(BETA),
            replacing_exponent=constant(GAMMA),
            replace_candidates=CANDIDATES,
        )
        self._rng = np.random.default_rng(0)
        self._noise = self._rng.bytes(1 << 20)
        self._replay = DpsrReplay(config, total_steps=capacity, rng=self._rng)
        while self._replay.size < capacity:
            self._replay.insert(self._make_chunk(), self._rng.lognormal(-3.0, 1.0, CHUNK))

    def insert(self, count: int) -> Elapsed:
        """Insert chunk after chunk of transitions that were made before."""
        chunks = [self._make_chunk() for _ in range(count // CHUNK)]
        with timed() as timer:
            for chunk in chunks:
                self._replay.insert(chunk)
        return timer.elapsed.per(count)

    def draw_update(self, count: int) -> Elapsed:
        """Draw a batch with weights, and give its transitions new priorities."""
        td_errors = self._rng.lognormal(-3.0, 1.0, (count, BATCH))
        with timed() as timer:
            for row in td_errors:
                self._replay.update_priorities(self._replay.sample(BATCH).identities, row)
        return timer.elapsed.per(count)

    def _make_chunk(self) -> Transitions:
        """Transitions as an actor sends them: frames of some 400 bytes, shared by neighbours, and snapshots."""
        starts = self._rng.integers(len(self._noise) - 400, size=2 * CHUNK + 4).tolist()
        frames = [self._noise[start : start + 400] for start in starts[: CHUNK + 4]]
        stacks = [tuple(frames[i : i + 4]) for i in range(CHUNK + 1)]
        return Transitions(
            s_tm1=stacks[:-1],
            a_tm1=self._rng.integers(4, size=CHUNK),
            r_t=np.zeros(CHUNK, dtype=np.float32),
            s_t=stacks[1:],
            terminal=np.zeros(CHUNK, dtype=np.bool_),
            n_steps=np.ones(CHUNK, dtype=np.uint8),
            snapshots=[self._noise[start : start + 150] for start in starts[CHUNK + 4 :]],
        )


@contextmanager
def peers(capacity: int, *names: str) -> Iterator[dict[str, Peer]]:
    """These peers at work, each in its own process, filled to this capacity."""
    running = {name: Peer(TORCH, "trees.py", name, capacity) for name in names}
    try:
        yield running
    finally:
        for peer in running.values():
            peer.close()


def compare_at(capacity: int, report: Report) -> None:
    """Both works at one capacity, ours and every peer's in turn."""
    compiled, whole = Compiled(capacity), Whole(capacity)
    with peers(capacity, *PEER_COUNTS) as running:
        for work in WORKS:
            works: Works = {who: warmed(ours, work) for who, ours in (("ours", compiled), ("whole", whole))}
            works |= {name: peer.work(work, PEER_COUNTS[name]) for name, peer in running.items()}
            times = interleave(works)
            report.record(f"{work}, N = {capacity}", times, MICRO, "microseconds")
            add_lines(report, work, capacity, times)


def add_lines(report: Report, work: str, capacity: int, times: Times) -> None:
    """Our trees beside each peer's, then our whole call beside the fastest of them."""
    words = f"{WORKS[work]}, N = {capacity:,}"
    for peer in PEER_COUNTS:
        report.compare(line(f"{words}: trees", PEERS[peer, work], times["ours"], times[peer], GOALS[peer, work]))
    best = min(PEER_COUNTS, key=lambda peer: micros(times[peer]).median)
    including = "storing transitions" if work == "insert" else "reading transitions"
    beside = f"{PEERS[best, work]} ({including} is in ours alone)"
    report.compare(line(f"{words}: the whole DpsrReplay call", beside, times["whole"], times[best], None))


def line(work: str, beside: str, ours: list[Elapsed], peer: list[Elapsed], goal: float | None) -> Comparison:
    """One line of the table."""
    return Comparison(work, beside, "µs", micros(ours), micros(peer), ratio(ours, peer), goal)


def micros(times: list[Elapsed]) -> Spread:
    return spread([one.cpu * MICRO for one in times])


def grow(report: Report) -> dict[str, dict[int, Times]]:
    """Both works at all sizes, by our compiled calls and by tianshou's trees."""
    found: dict[str, dict[int, Times]] = {work: {} for work in WORKS}
    for size in SIZES:
        compiled = Compiled(size)
        with peers(size, *(["tianshou"] if size <= GREATEST_PEER_SIZE else [])) as running:
            for work in WORKS:
                works: Works = {"ours": warmed(compiled, work)}
                works |= {name: peer.work(work, PEER_COUNTS[name]) for name, peer in running.items()}
                found[work][size] = interleave(works, repetitions=5)
                report.record(f"growth: {work}, N = {size}", found[work][size], MICRO, "microseconds")
    return found


def show_growth(report: Report, found: Mapping[str, Mapping[int, Times]]) -> None:
    """As a table."""
    rows = [
        [f"{WORKS[work]}, N = {size:,}", *(micros(times[who]).show() if who in times else "" for who in WHO)]
        for work, sizes in found.items()
        for size, times in sizes.items()
    ]
    report.table("How cost grows (CPU µs)", ("work", *WHO.values()), rows)


def plot(found: Mapping[str, Mapping[int, Times]], path: Path) -> None:
    """Cost against size, a panel for each work."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels: list[Axes] = list(figure.subplots(1, 2, sharey=True))
    for axes, (work, sizes) in zip(panels, found.items(), strict=True):
        for who, colour in (("ours", "#1f6fb2"), ("tianshou", "#c2571a")):
            points = {size: micros(times[who]).median for size, times in sizes.items() if who in times}
            axes.plot(list(points), list(points.values()), "o-", color=colour, linewidth=2, label=WHO[who])
            for size, cost in points.items():
                axes.annotate(
                    f"{cost:.3g}", (size, cost), (0, 7), textcoords="offset points", ha="center", color=colour
                )
        axes.set(xscale="log", yscale="log", xlabel="transitions stored (N)", title=WORKS[work].partition(" (")[0])
        axes.set_ylim(2, 300)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("CPU time, µs")
    panels[1].legend(loc="upper left", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> int:
    options = parse_options(__doc__)
    report = Report("core")
    for capacity in CAPACITIES:
        compare_at(capacity, report)
    found = grow(report)
    show_growth(report, found)
    if options.plots:
        plot(found, options.plots / "cost_by_size.png")
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
