"""`da.ReplayBuffer` in a training loop, compared with other prioritized buffers: whole calls, observations included.

One step of the loop: add a step, sample 32 transitions with weights, update their priorities. Observations are the
vectors of CartPole. All replays are full and proportional, and replace the oldest transition (`per`), because the peers
have no eviction by priority. Ours checks its input, and names transitions by identities that are never reused.
"""

from __future__ import annotations

import sys

import numpy as np
from gymnasium.spaces import Box, Discrete

import dpsr_apex as da
from benchmarks.measure import Comparison, Elapsed, Report, interleave, parse_options, ratio, spread, timed
from benchmarks.peers import TORCH, TORCHRL, Peer
from benchmarks.peers.trees import ALPHA, BATCH, BETA, OBSERVATION, WARM_UP

CAPACITIES = (50_000, 1_000_000)
COUNT = 1_000  # operations per repetition
MICRO = 1e6
CPPRB, TIANSHOU = "cpprb's prioritized buffer, the same calls", "tianshou's PrioritizedReplayBuffer, the same calls"
RL = "torchrl's TensorDictPrioritizedReplayBuffer, the same calls"
GOALS = {CPPRB: 1.3, RL: 3.0}


class Ours:
    """A full buffer, and random steps for it."""

    def __init__(self, capacity: int) -> None:
        self._rng = np.random.default_rng(0)
        space = Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
        settings = {"sampling_exponent": ALPHA, "bias_annealing": BETA}
        self._buffer = da.ReplayBuffer(capacity, space, Discrete(2), method="per", **settings)  # type: ignore[arg-type]
        self._observations = self._rng.normal(size=(capacity + 1, OBSERVATION)).astype(np.float32)
        for i in range(capacity):
            self._buffer.add(self._observations[i], 0, 0.0, self._observations[i + 1], False, False)

    def insert(self) -> Elapsed:
        """Add single steps."""
        self._add(COUNT // WARM_UP)
        with timed() as timer:
            self._add(COUNT)
        return timer.elapsed.per(COUNT)

    def _add(self, count: int) -> None:
        """Add consecutive steps of one episode."""
        add, observations = self._buffer.add, self._observations
        for i in range(count):
            add(observations[i], 1, 0.5, observations[i + 1], False, False)

    def sample_update(self) -> Elapsed:
        """Sample batches, and update their priorities."""
        td_errors = self._rng.lognormal(-3.0, 1.0, (COUNT, BATCH))
        for row in td_errors[: COUNT // WARM_UP]:
            self._buffer.update_priorities(self._buffer.sample(BATCH).ids, row)
        with timed() as timer:
            for row in td_errors:
                self._buffer.update_priorities(self._buffer.sample(BATCH).ids, row)
        return timer.elapsed.per(COUNT)


def peers_at(capacity: int) -> dict[str, Peer]:
    """Start the peers; torchrl is left out if it is not installed, because its torch takes several gigabytes."""
    peers = {CPPRB: Peer(TORCH, "trees.py", "cpprb_buffer", capacity)}
    peers[TIANSHOU] = Peer(TORCH, "trees.py", "tianshou_buffer", capacity)
    if TORCHRL.parents[1].joinpath(".ready").exists():
        peers[RL] = Peer(TORCHRL, "torchrl_buffer.py", capacity)
    else:
        print("torchrl is not installed: run make benchmarks/peers/.venv-torchrl/.ready", file=sys.stderr)
    return peers


def compare_at(capacity: int, report: Report) -> None:
    """Measure both calls at one capacity, ours and the peers' in turn."""
    ours, peers = Ours(capacity), peers_at(capacity)
    tasks = {("ours", "add"): ours.insert, ("ours", "sample"): ours.sample_update}
    for name, peer in peers.items():
        count = COUNT // 5 if name == RL else COUNT
        tasks |= {(name, "add"): peer.task("insert", count), (name, "sample"): peer.task("sample_update", count)}
    try:
        times = interleave({", ".join(names): task for names, task in tasks.items()})
    finally:
        for peer in peers.values():
            peer.close()
    report.record(f"training loop, N = {capacity}", times, MICRO, "microseconds")
    whole = {name: _sums(times[f"{name}, add"], times[f"{name}, sample"]) for name in ("ours", *peers)}
    micros = {name: spread([one.cpu * MICRO for one in found]) for name, found in whole.items()}
    work = f"ReplayBuffer: add a step, sample {BATCH} with weights, update {BATCH}, N = {capacity:,}"
    for name in peers:
        faster = ratio(whole["ours"], whole[name])
        report.compare(Comparison(work, name, "µs", micros["ours"], micros[name], faster, GOALS.get(name)))


def _sums(first: list[Elapsed], second: list[Elapsed]) -> list[Elapsed]:
    return [Elapsed(a.cpu + b.cpu, a.wall + b.wall) for a, b in zip(first, second, strict=True)]


def main() -> int:
    options = parse_options(__doc__)
    report = Report("buffer")
    for capacity in CAPACITIES:
        compare_at(capacity, report)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
