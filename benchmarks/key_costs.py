"""What security costs: a replay with and without keys under the same load in turn, and the codes of one transition.

Rates are per second of the CPU time of the replay process, all its threads included. Codes are compared with the
insertion of a transition with keys. A frame has a checksum, which its actor makes and the replay verifies; a snapshot
has an authentication tag, which actors make and verify. The replay itself does not compute tags.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from benchmarks.measure import Comparison, Elapsed, Report, Spread, cpu_of, interleave, parse_options, spread, timed
from benchmarks.replay_clients import Clients
from benchmarks.replay_head import Recorded, configure, record, replay_process
from dpsr_apex.checksums import CHECKSUM_BYTES, add_checksum, are_intact
from dpsr_apex.config import Config
from dpsr_apex.roles.authentication import SnapshotKey

CAPACITY, BATCH = 50_000, 32
SECONDS = 2.0  # per task and repetition
REPETITIONS = 9
WORKS = {
    "in": ("insert transitions over sockets, with keys", "transitions/s"),
    "out": (f"sample batches of {BATCH} over sockets, with keys", "batches/s"),
}


class Rate(NamedTuple):
    """Transitions or batches, per second of the replay's CPU time and of wall time."""

    cpu: float
    wall: float


class Loaded(NamedTuple):
    """A full replay with the clients that use it."""

    pid: int
    clients: Mapping[str, Clients]  # by task

    def rate(self, task: str) -> Rate:
        """Run one repetition of a task."""
        before = cpu_of(self.pid)
        count, seconds = self.clients[task].ask(SECONDS, *([False, False] if task == "out" else []))
        return Rate(count / (cpu_of(self.pid) - before), count / seconds)


@contextmanager
def loaded(config: Config, recorded: Recorded, keys: bool) -> Iterator[Loaded]:
    """Run a full replay, with or without keys, inside the block."""
    module = "dpsr_apex.cli" if keys else "benchmarks.keyless_replay"
    window = config.system.in_flight // config.system.chunk
    with ExitStack() as stack:
        run, pid, chunks = stack.enter_context(replay_process(config, recorded, module))
        reader = Clients("reader", run.path, config.learner.batch_size, config.system.prefetch, keys=keys)
        stack.callback(reader.close)
        writer = Clients("writers", run.path, 1, window, "recorded", chunks, keys=keys)
        stack.callback(writer.close)
        writer.ask(0.0, config.replay.capacity)
        yield Loaded(pid, {"in": writer, "out": reader})


def price_keys(report: Report, config: Config, recorded: Recorded) -> Spread:
    """Add the rates with and without keys, and their ratios, to the report; return the µs of an insertion with keys."""
    with loaded(config, recorded, True) as guarded, loaded(config, recorded, False) as open_:
        for task, (work, unit) in WORKS.items():
            rounds = [(guarded.rate(task), open_.rate(task)) for _ in range(1 + REPETITIONS)][1:]
            ours, plain = ([rates[side].cpu for rates in rounds] for side in (0, 1))
            ratios = spread([own / other for own, other in zip(ours, plain, strict=True)])
            report.compare(Comparison(work, "without keys", unit, spread(ours), spread(plain), ratios, None))
            report.figures[f"{work}: per second of wall time"] = {
                name: spread([rates[side].wall for rates in rounds])._asdict()
                for side, name in enumerate(("with keys", "without keys"))
            }
            if task == "in":
                insertion = spread([1e6 / rate for rate in ours])
    return insertion


def price_codes(report: Report, recorded: Recorded, insertion: Spread) -> None:
    """Add the time per transition of making and verifying its codes: one new frame, and one snapshot."""
    chunks = [chunk.transitions for chunk in recorded.chunks]
    count = sum(map(len, chunks))
    frames = [[stack[-1] for stack in transitions.s_t] for transitions in chunks]
    bodies = [[frame[:-CHECKSUM_BYTES] for frame in of_chunk] for of_chunk in frames]
    key = SnapshotKey(bytes(range(32)))
    signed = [key.sign(transitions) for transitions in chunks]
    tasks = {
        "make the checksum of a frame": lambda: [[*map(add_checksum, of_chunk)] for of_chunk in bodies],
        "verify the checksum of a frame": lambda: [are_intact(of_chunk) for of_chunk in frames],
        "make the tag of a snapshot": lambda: [key.sign(transitions) for transitions in chunks],
        "verify the tag of a snapshot": lambda: [key.faults(transitions) for transitions in signed],
    }
    times = interleave({name: _timed(task, count) for name, task in tasks.items()})
    for name in tasks:
        ours = spread([one.cpu * 1e6 for one in times[name]])
        ratio = Spread(*(insertion.median / cost for cost in (ours.median, ours.high, ours.low)))
        report.compare(Comparison(name, "inserting a transition with keys", "µs", ours, insertion, ratio, None))


def _timed(task: Callable[[], object], count: int) -> Callable[[], Elapsed]:
    def run() -> Elapsed:
        with timed() as timer:
            task()
        return timer.elapsed.per(count)

    return run


def main() -> int:
    options = parse_options(__doc__)
    report = Report("key_costs")
    config = configure(CAPACITY, BATCH)
    recorded = record(config)
    price_codes(report, recorded, price_keys(report, config, recorded))
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
