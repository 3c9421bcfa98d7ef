"""The learner's input pipeline without a network: batches of 512 transitions of Breakout, received and decompressed.

First the host's work for a batch: decode the message, decompress its frames. Python's global lock (GIL) is free while
compiled code decompresses, so the CPU time under the lock is what limits a learner with a fast GPU. Then the ceiling:
the real replay process and a learner without a network, which decompresses with 1 to 4 threads. The baseline is the
same reader with `FrameCodec.decompress_stacks`: one call per frame from Python, and every stack copied.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from unittest.mock import patch

import numpy as np

from benchmarks.measure import Comparison, Elapsed, Report, Spread, interleave, parse_options, ratio, spread, timed
from benchmarks.replay_clients import ACTIONS, CODEC, Clients
from benchmarks.replay_head import Recorded, configure, record, replay_process
from benchmarks.replay_traffic import OurReplay
from dpsr_apex.config import Config
from dpsr_apex.envs import decompression
from dpsr_apex.envs.decompression import Decompressor
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.transitions import PackedTransitions
from dpsr_apex.roles.experience import decompress, read_packed
from dpsr_apex.wire.codec import Frame, decode, encode
from dpsr_apex.wire.messages import Batch

CAPACITY, BATCH = 50_000, 512
COUNT = 20  # batches per repetition
SECONDS = 2.0  # per reader and repetition
REPETITIONS = 5
THREADS = (1, 2, 4)
MILLI = 1e3
GIL_GOAL, CEILING_GOAL = 1.5, 3.0  # milliseconds; times the baseline
BASELINE = "one call per frame, every stack copied"


def encoded_batch(config: Config, recorded: Recorded) -> list[Frame]:
    """Return the frames of a batch from a replay with the recorded transitions."""
    replay = Replay(config.replay, config.run.total_steps, np.random.default_rng(0))
    for chunk in recorded.chunks:
        replay.insert(chunk.transitions, chunk.td_errors)
    sample = replay.sample(BATCH)
    weights, transitions = sample.weights, sample.transitions
    return encode(Batch(0, replay.t, sample.identities, weights, transitions))


class HostWork:
    """Decodes and decompresses a batch as the learner does; also without what needs no lock."""

    def __init__(self, frames: list[Frame]) -> None:
        self._frames = frames
        self._decompress = Decompressor(CODEC)

    def ours(self) -> Elapsed:
        """Return the time of a batch."""
        with timed() as timer:
            for _ in range(COUNT):
                assert read_packed(self._decoded(), self._decompress, ACTIONS) is not None
        return timer.elapsed.per(COUNT)

    def under_lock(self) -> Elapsed:
        """Return the time of a batch without the compiled code, which does not hold the lock."""
        with patch.object(decompression, "read_blocks", return_value=True):
            return self.ours()

    def baseline(self) -> Elapsed:
        """Return the time of a batch with one call per frame."""
        with timed() as timer:
            for _ in range(COUNT):
                decompress(self._decoded().unpack(), CODEC)
        return timer.elapsed.per(COUNT)

    def _decoded(self) -> PackedTransitions:
        message = decode(self._frames)
        assert isinstance(message, Batch)
        assert isinstance(message.transitions, PackedTransitions)
        return message.transitions


def compare_host_work(frames: list[Frame], report: Report) -> None:
    """Compare the CPU time of a batch, in total and under the lock."""
    work = HostWork(frames)
    times = interleave({"ours": work.ours, "under the lock": work.under_lock, "baseline": work.baseline})
    report.record(f"host work for a batch of {BATCH}", times, MILLI, "milliseconds")
    ours, baseline = (spread([one.cpu * MILLI for one in times[name]]) for name in ("ours", "baseline"))
    whole = f"learner's host work for a batch of {BATCH} (Breakout): decode and decompress"
    report.compare(Comparison(whole, BASELINE, "ms", ours, baseline, ratio(times["ours"], times["baseline"]), None))
    held = [one.cpu * MILLI for one in times["under the lock"]]
    allowed = Spread(GIL_GOAL, GIL_GOAL, GIL_GOAL)
    share = spread([GIL_GOAL / one for one in held])
    under = f"learner's host work for a batch of {BATCH} (Breakout): CPU time under the GIL"
    report.compare(Comparison(under, f"{GIL_GOAL} ms", "ms", spread(held), allowed, share, 1.0))


def batches_per_second(reader: Clients, seconds: float) -> Callable[[int], float]:
    """Return a function that reads batches with a number of threads, 0 for the baseline, and returns their rate."""

    def read(threads: int) -> float:
        count, elapsed = reader.ask(seconds, threads)
        return count / elapsed

    return read


def compare_ceilings(config: Config, recorded: Recorded, report: Report) -> None:
    """Compare the batches per second of a learner without a network."""
    with replay_process(config, recorded) as head, closing(OurReplay(config, head)) as replay:
        writers = replay.writers(1)
        replay.set_rate(0)
        while replay.counters().inserted < CAPACITY:
            writers.ask(1.0)
        writers.close()
        replay.close()
        time.sleep(0.5)
        with closing(Clients("pipeline", head.run.path, config.system.prefetch)) as reader:
            read = batches_per_second(reader, SECONDS)
            for threads in (0, *THREADS):
                read(threads)
            rates = [{threads: read(threads) for threads in (0, *THREADS)} for _ in range(REPETITIONS)]
    base = spread([found[0] for found in rates])
    for threads in THREADS:
        share = spread([found[threads] / found[0] for found in rates])
        ours = spread([found[threads] for found in rates])
        work = f"pipeline ceiling: replay process to a learner without a network, batches of {BATCH}, {threads} threads"
        goal = CEILING_GOAL if threads == max(THREADS) else None
        report.compare(Comparison(work, BASELINE, "batches/s", ours, base, share, goal))


def main() -> int:
    options = parse_options(__doc__)
    report = Report("pipeline")
    config = configure(CAPACITY, BATCH)
    recorded = record(config)
    compare_host_work(encoded_batch(config, recorded), report)
    compare_ceilings(config, recorded, report)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
