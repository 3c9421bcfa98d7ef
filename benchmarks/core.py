"""The replay core beside tianshou's segment trees: inserting, and drawing with updating.

Ours is measured twice: the whole `DpsrReplay` call, which also stores transitions and checks identities, and the
compiled calls alone. Random numbers are drawn inside the timing everywhere. What the peer does: `peers/trees.py`.
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.measure import Elapsed, Report, interleave, parse_options, ratio, spread, timed
from benchmarks.peers import TORCH, Peer
from benchmarks.peers.trees import ALPHA, BATCH, BETA, CANDIDATES, GAMMA, WARM_UP
from dpsr_apex.config import ReplayConfig
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.replay.occupancy import GREATEST_NOW, replace_by_priority, update_current
from dpsr_apex.replay.schedules import constant
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.replay.trees import PriorityTrees

CAPACITIES = (50_000, 1_000_000)
CHUNK = 50  # transitions that come in at a time
INSERTIONS = 5_000  # of one repetition
DRAWS = 2_000
GOAL = 3.0  # times faster than the peer, inserting into the greatest replay

MICRO = 1e6


class Ours:
    """A full `DpsrReplay`, used as the replay server uses it."""

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        config = ReplayConfig(
            method="double",
            capacity=capacity,
            sampling_exponent=constant(ALPHA),
            bias_annealing=constant(BETA),
            replacing_exponent=constant(GAMMA),
            replace_candidates=CANDIDATES,
        )
        self._rng = rng
        self._replay = DpsrReplay(config, total_steps=capacity, rng=rng)
        chunk = make_chunk(rng)
        while self._replay.size < capacity:
            self._replay.insert(chunk, rng.lognormal(-3.0, 1.0, CHUNK))

    def insert(self) -> Elapsed:
        """Insert chunk after chunk of transitions that were made before."""
        self._insert(WARM_UP)
        chunks = [make_chunk(self._rng) for _ in range(INSERTIONS // CHUNK)]
        with timed() as timer:
            for chunk in chunks:
                self._replay.insert(chunk)
        return timer.elapsed.per(INSERTIONS)

    def draw_update(self) -> Elapsed:
        """Draw a batch with weights, and give its transitions new priorities."""
        self._insert(WARM_UP)
        td_errors = self._rng.lognormal(-3.0, 1.0, (DRAWS, BATCH))
        with timed() as timer:
            for row in td_errors:
                self._replay.update_priorities(self._replay.sample(BATCH).identities, row)
        return timer.elapsed.per(DRAWS)

    def _insert(self, count: int) -> None:
        for _ in range(count // CHUNK):
            self._replay.insert(make_chunk(self._rng))


class Compiled:
    """The compiled calls alone, over trees and identities of their own."""

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._serial = capacity
        self._identities = np.arange(capacity) * (capacity + 1)
        self._trees = PriorityTrees(capacity, ALPHA, GAMMA)
        self._trees.load(rng.lognormal(-3.0, 1.0, capacity), ALPHA, GAMMA)

    def insert(self) -> Elapsed:
        """The same as `Ours.insert`, without storing what comes in."""
        self._insert(WARM_UP)
        with timed() as timer:
            self._insert(INSERTIONS)
        return timer.elapsed.per(INSERTIONS)

    def draw_update(self) -> Elapsed:
        """The same as `Ours.draw_update`, without reading what was drawn."""
        self._insert(WARM_UP)
        found = np.empty(BATCH, dtype=np.int64)
        priorities = self._rng.lognormal(-3.0, 1.0, (DRAWS, BATCH))
        with timed() as timer:
            for row in priorities:
                slots, _ = self._trees.draw_to_sample(self._rng.random(BATCH), BETA)
                names = self._identities[slots]
                update_current(found, *self._trees.arrays, self._identities, names, row, ALPHA, GAMMA)
        return timer.elapsed.per(DRAWS)

    def _insert(self, count: int) -> None:
        priorities = np.full(CHUNK, GREATEST_NOW)
        for _ in range(count // CHUNK):
            serials = np.arange(self._serial, self._serial + CHUNK)
            uniforms = self._rng.random((CHUNK, CANDIDATES))
            replace_by_priority(*self._trees.arrays, self._identities, serials, priorities, uniforms, ALPHA, GAMMA)
            self._serial += CHUNK


def make_chunk(rng: np.random.Generator) -> Transitions:
    """Transitions as an actor sends them: frames of some 400 bytes, shared by neighbours, and snapshots."""
    frames = [rng.bytes(400) for _ in range(CHUNK + 4)]
    stacks = [tuple(frames[i : i + 4]) for i in range(CHUNK + 1)]
    return Transitions(
        s_tm1=stacks[:-1],
        a_tm1=rng.integers(4, size=CHUNK),
        r_t=np.zeros(CHUNK, dtype=np.float32),
        s_t=stacks[1:],
        terminal=np.zeros(CHUNK, dtype=np.bool_),
        n_steps=np.ones(CHUNK, dtype=np.uint8),
        snapshots=[rng.bytes(150) for _ in range(CHUNK)],
    )


def measure(capacity: int, report: Report) -> dict[str, dict[str, list[Elapsed]]]:
    """All works at one capacity, ours and the peer's in turn."""
    ours, compiled = Ours(capacity, np.random.default_rng(0)), Compiled(capacity, np.random.default_rng(0))
    peer = Peer(TORCH, "trees.py", capacity)
    works = {
        "insert": {
            "ours": ours.insert,
            "ours, compiled call alone": compiled.insert,
            "tianshou": peer.work("insert", INSERTIONS),
        },
        "draw 32 + update 32": {
            "ours": ours.draw_update,
            "ours, compiled call alone": compiled.draw_update,
            "tianshou": peer.work("draw_update", DRAWS),
            "tianshou, sampling tree alone": peer.work("draw_update_sampling", DRAWS),
        },
    }
    times = {name: interleave(parts) for name, parts in works.items()}
    peer.close()
    for name, done in times.items():
        report.record(f"{name}, N = {capacity}", done, MICRO, "microseconds")
    return times


def rows(capacity: int, times: dict[str, dict[str, list[Elapsed]]]) -> list[list[str]]:
    """For the table: the time of each, and how many times faster ours and our compiled call are."""
    return [
        [
            f"{name}, N = {capacity:,}: {who}",
            spread([one.cpu * MICRO for one in taken]).show(),
            *(
                ratio(done[own], taken).show(2) if who.startswith("tianshou") else ""
                for own in ("ours", "ours, compiled call alone")
            ),
        ]
        for name, done in times.items()
        for who, taken in done.items()
    ]


def main() -> int:
    options = parse_options(__doc__)
    report = Report("core")
    lines: list[list[str]] = []
    for capacity in CAPACITIES:
        times = measure(capacity, report)
        lines += rows(capacity, times)
    faster = ratio(times["insert"]["ours"], times["insert"]["tianshou"])
    report.figures["insert, times faster"] = faster._asdict()
    columns = ("work", "CPU µs (quartiles)", "ours is faster, times", "compiled call alone, times")
    report.table("One insertion (256 candidates, the oldest, all trees); one batch of 32", columns, lines)
    report.goal(
        f"an insertion at N = {capacity:,} takes at most 1/{GOAL:g} of the peer's time: 1/{faster.median:.2f}",
        faster.median >= GOAL,
    )
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
