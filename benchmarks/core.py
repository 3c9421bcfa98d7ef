"""The replay core compared with other segment trees: insertion, sampling with updates, and how both scale with N.

Trees are compared with trees: our compiled calls, including random numbers, identities and importance weights, against
the minimum that each peer must do for the same result (`peers/trees.py`). Ours always maintain all four trees exactly;
a peer that samples and updates maintains only its sampling tree. The whole `Replay` call, which also stores or reads
transitions, is compared with the same trees in separate rows.

Every task starts with a few operations that are not timed, because the other tasks have used the caches in the
meantime.
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
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.slots import MAX_PRIORITY, replace_by_priority, update_stored
from dpsr_apex.replay.transitions import Transitions, from_lists
from dpsr_apex.replay.trees import PriorityTrees
from dpsr_apex.schedules import constant

CAPACITIES = (50_000, 1_000_000)
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)  # of the scaling curves
MAX_PEER_SIZE = 1_000_000
CHUNK = 50  # transitions per insertion call
COUNTS = {"insert": 5_000, "sample_update": 2_000}  # operations per repetition
PEER_COUNTS = {"tianshou": 1_000, "cpprb": 500}
MICRO = 1e6

TASKS = {
    "insert": "one DPSR insertion (256 candidates, replace the oldest, update all trees; ours in chunks of 50)",
    "sample_update": "sample 32 with weights, update 32 priorities",
}
PEERS = {
    ("tianshou", "insert"): "two of tianshou's segment trees, same logic",
    ("cpprb", "insert"): "two of cpprb's prioritized buffers, one with p^-gamma (it has no eviction by priority)",
    ("tianshou", "sample_update"): "tianshou's segment tree, sampling only",
    ("cpprb", "sample_update"): "cpprb's prioritized buffer, storing one byte per transition",
}
GOALS: dict[tuple[str, str], float | None] = {
    ("tianshou", "insert"): 3.0,
    ("cpprb", "insert"): 3.0,
    ("tianshou", "sample_update"): 3.0,
    ("cpprb", "sample_update"): 3.0,
}

IMPLEMENTATIONS = {"ours": "dpsr_apex's compiled trees", "tianshou": "tianshou's segment trees"}  # in the curves

Tasks = dict[str, Callable[[], Elapsed]]
Times = dict[str, list[Elapsed]]


def with_warm_up(ours: CompiledTrees | WholeReplay, task: str) -> Callable[[], Elapsed]:
    """Return a task that starts with untimed operations, to fill the caches that other tasks have used."""
    method, count = getattr(ours, task), COUNTS[task]

    def measure() -> Elapsed:
        method(count // WARM_UP)
        elapsed: Elapsed = method(count)
        return elapsed

    return measure


class CompiledTrees:
    """Only the compiled calls, on trees and identities without stored transitions."""

    def __init__(self, capacity: int) -> None:
        self._rng = np.random.default_rng(0)
        self._serial = capacity
        self._identities = np.arange(capacity) * (capacity + 1)
        self._trees = PriorityTrees(capacity, ALPHA, GAMMA)
        self._trees.load(np.arange(capacity), self._rng.lognormal(-3.0, 1.0, capacity), ALPHA, GAMMA)

    def insert(self, count: int) -> Elapsed:
        """Replace `count` transitions, one chunk per call."""
        priorities = np.full(CHUNK, MAX_PRIORITY)
        with timed() as timer:
            for _ in range(count // CHUNK):
                serials = np.arange(self._serial, self._serial + CHUNK)
                uniforms = self._rng.random((CHUNK, CANDIDATES))
                replace_by_priority(*self._trees.arrays, self._identities, serials, priorities, uniforms, ALPHA, GAMMA)
                self._serial += CHUNK
        return timer.elapsed.per(count)

    def sample_update(self, count: int) -> Elapsed:
        """Sample `count` batches with weights, and update their priorities by identity."""
        trees, identities, rng = self._trees, self._identities, self._rng
        found = np.empty(BATCH, dtype=np.int64)
        priorities = rng.lognormal(-3.0, 1.0, (count, BATCH))
        with timed() as timer:
            for row in priorities:
                slots, _ = trees.sample(rng.random(BATCH), BETA)
                update_stored(found, *trees.arrays, identities, identities[slots], row, ALPHA, GAMMA)
        return timer.elapsed.per(count)


class WholeReplay:
    """A full `Replay`, called as by the replay server."""

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
        self._replay = Replay(config, total_steps=capacity, rng=self._rng)
        while self._replay.size < capacity:
            self._replay.insert(self._make_chunk(), self._rng.lognormal(-3.0, 1.0, CHUNK))

    def insert(self, count: int) -> Elapsed:
        """Insert `count` prepared transitions chunk by chunk."""
        chunks = [self._make_chunk() for _ in range(count // CHUNK)]
        with timed() as timer:
            for chunk in chunks:
                self._replay.insert(chunk)
        return timer.elapsed.per(count)

    def sample_update(self, count: int) -> Elapsed:
        """Sample `count` batches with weights, and update their priorities."""
        td_errors = self._rng.lognormal(-3.0, 1.0, (count, BATCH))
        with timed() as timer:
            for row in td_errors:
                self._replay.update_priorities(self._replay.sample(BATCH).identities, row)
        return timer.elapsed.per(count)

    def _make_chunk(self) -> Transitions:
        """Return transitions as an actor sends them: frames of 400 bytes, shared by neighbours, and snapshots."""
        starts = self._rng.integers(len(self._noise) - 400, size=2 * CHUNK + 4).tolist()
        frames = [self._noise[start : start + 400] for start in starts[: CHUNK + 4]]
        stacks = [tuple(frames[i : i + 4]) for i in range(CHUNK + 1)]
        return from_lists(
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
    """Run these peers, each in its own process, filled to this capacity."""
    running = {name: Peer(TORCH, "trees.py", name, capacity) for name in names}
    try:
        yield running
    finally:
        for peer in running.values():
            peer.close()


def compare_at(capacity: int, report: Report) -> None:
    """Measure both tasks at one capacity, ours and every peer's in turn."""
    compiled, whole = CompiledTrees(capacity), WholeReplay(capacity)
    with peers(capacity, *PEER_COUNTS) as running:
        for task in TASKS:
            tasks: Tasks = {name: with_warm_up(ours, task) for name, ours in (("ours", compiled), ("whole", whole))}
            tasks |= {name: peer.task(task, PEER_COUNTS[name]) for name, peer in running.items()}
            times = interleave(tasks)
            report.record(f"{task}, N = {capacity}", times, MICRO, "microseconds")
            add_rows(report, task, capacity, times)


def add_rows(report: Report, task: str, capacity: int, times: Times) -> None:
    """Compare our trees with each peer's, then our whole call with the fastest of them."""
    title = f"{TASKS[task]}, N = {capacity:,}"
    for peer in PEER_COUNTS:
        report.compare(row(f"{title}: trees only", PEERS[peer, task], times["ours"], times[peer], GOALS[peer, task]))
    best = min(PEER_COUNTS, key=lambda peer: micros(times[peer]).median)
    baseline = f"{PEERS[best, task]} (only ours {'stores' if task == 'insert' else 'reads'} transitions)"
    report.compare(row(f"{title}: whole Replay call", baseline, times["whole"], times[best], None))


def row(work: str, baseline: str, ours: list[Elapsed], peer: list[Elapsed], goal: float | None) -> Comparison:
    """Return one row of the table."""
    return Comparison(work, baseline, "µs", micros(ours), micros(peer), ratio(ours, peer), goal)


def micros(times: list[Elapsed]) -> Spread:
    return spread([one.cpu * MICRO for one in times])


def measure_scaling(report: Report) -> dict[str, dict[int, Times]]:
    """Measure both tasks at all sizes, with our compiled calls and with tianshou's trees."""
    results: dict[str, dict[int, Times]] = {task: {} for task in TASKS}
    for size in SIZES:
        compiled = CompiledTrees(size)
        with peers(size, *(["tianshou"] if size <= MAX_PEER_SIZE else [])) as running:
            for task in TASKS:
                tasks: Tasks = {"ours": with_warm_up(compiled, task)}
                tasks |= {name: peer.task(task, PEER_COUNTS[name]) for name, peer in running.items()}
                results[task][size] = interleave(tasks, repetitions=5)
                report.record(f"growth: {task}, N = {size}", results[task][size], MICRO, "microseconds")
    return results


def show_scaling(report: Report, results: Mapping[str, Mapping[int, Times]]) -> None:
    """Print the cost by size as a table."""
    rows = [
        [
            f"{TASKS[task]}, N = {size:,}",
            *(micros(times[name]).show() if name in times else "" for name in IMPLEMENTATIONS),
        ]
        for task, sizes in results.items()
        for size, times in sizes.items()
    ]
    report.table("Cost by size (CPU µs)", ("task", *IMPLEMENTATIONS.values()), rows)


def plot(results: Mapping[str, Mapping[int, Times]], path: Path) -> None:
    """Plot cost against size, one panel per task."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels: list[Axes] = list(figure.subplots(1, 2, sharey=True))
    for axes, (task, sizes) in zip(panels, results.items(), strict=True):
        for name, colour in (("ours", "#1f6fb2"), ("tianshou", "#c2571a")):
            points = {size: micros(times[name]).median for size, times in sizes.items() if name in times}
            label = IMPLEMENTATIONS[name]
            axes.plot(list(points), list(points.values()), "o-", color=colour, linewidth=2, label=label)
            for size, cost in points.items():
                axes.annotate(
                    f"{cost:.3g}", (size, cost), (0, 7), textcoords="offset points", ha="center", color=colour
                )
        axes.set(xscale="log", yscale="log", xlabel="transitions stored (N)", title=TASKS[task].partition(" (")[0])
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
    results = measure_scaling(report)
    show_scaling(report, results)
    if options.plots:
        plot(results, options.plots / "cost_by_size.png")
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
