"""What the journal of a replay costs, and how fast a replay is recovered from it.

Three replay processes with `run.durability` "none", "process" and "power" get Ape-X's 12,500 transitions per second in
turn, in chunks of 50 recorded transitions of Breakout from four actors over sockets. The cost is the CPU time per
transition beyond that without a journal, all threads of the process included, times 12,500. How long acknowledgements
take depends on what else the machine and its disk are doing; those without a journal show that.

A journal of 1,000,000 transitions and the batches sampled between them is recovered into an empty replay, which
replaces by priority as the run did.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from benchmarks.learner_state import price_states
from benchmarks.measure import (
    APEX_IN,
    APEX_OUT,
    Elapsed,
    Report,
    at_most,
    cpu_of,
    parse_options,
    spread,
    timed,
)
from benchmarks.paced_writer import PacedWriter, Round
from benchmarks.replay_head import Recorded, configure, record, replay_process
from dpsr_apex.config import Config
from dpsr_apex.protocol.events import Sampled, Sender
from dpsr_apex.protocol.replay_service import ReplayService
from dpsr_apex.record.journal.disk import RealDisk
from dpsr_apex.record.journal.encoding import encode_events
from dpsr_apex.record.journal.journal import Journal
from dpsr_apex.record.journal.recover import Base, journal_facts, recover
from dpsr_apex.replay.replay import Replay

Durability = Literal["none", "process", "power"]

CAPACITY, BATCH = 50_000, 512
ACTORS = 4
SECONDS = 3  # of load, per repetition and durability
REPETITIONS = 7
DURABILITIES: tuple[Durability, ...] = ("none", "process", "power")
GOALS: dict[Durability, float] = {"process": 3.0, "power": 7.0}  # % of a core, at most
LONGEST_ACK = 0.1  # seconds, p99 with "power", at most
RECORDED = 1_000_000  # transitions in the journal that is recovered
LONGEST_RECOVERY = 30.0  # seconds, at most


class Loaded(NamedTuple):
    """A full replay process, and the actors that send to it."""

    pid: int
    actors: PacedWriter

    def carry(self) -> tuple[float, Round]:
        """Carry the load for a while; return the CPU seconds per transition, and what the actors have measured."""
        before = cpu_of(self.pid)
        done = self.actors.ask(SECONDS * APEX_IN, APEX_IN)
        return (cpu_of(self.pid) - before) / done.inserted, done


def with_durability(config: Config, durability: Durability) -> Config:
    """Return the config with this `run.durability`."""
    return replace(config, run=replace(config.run, durability=durability))


@contextmanager
def loaded(config: Config, recorded: Recorded) -> Iterator[Loaded]:
    """Run a replay process that is full, inside the block."""
    window = config.system.in_flight // config.system.chunk
    with (
        replay_process(config, recorded) as head,
        closing(PacedWriter(head.run.path, ACTORS, window, head.chunks)) as actors,
    ):
        actors.ask(config.replay.capacity, 0)
        yield Loaded(head.pid, actors)


def carry_load(report: Report, config: Config, recorded: Recorded) -> None:
    """Add the CPU time and the acknowledgements of each durability to the report."""
    with ExitStack() as stack:
        heads = {name: stack.enter_context(loaded(with_durability(config, name), recorded)) for name in DURABILITIES}
        rounds = [{name: head.carry() for name, head in heads.items()} for _ in range(1 + REPETITIONS)][1:]
    for name, goal in GOALS.items():
        costs = [(one[name][0] - one["none"][0]) * APEX_IN * 100 for one in rounds]
        work = f'the journal at 12,500 transitions/s with durability "{name}"'
        report.compare(at_most(work, "% of a core", costs, goal))
    by_durability = {name: [one[name] for one in rounds] for name in heads}
    show_load(report, by_durability)
    slowest = [one.p99 * 1e3 for _, one in by_durability["power"]]
    report.compare(at_most('acknowledgements (p99) with durability "power"', "ms", slowest, LONGEST_ACK * 1e3))


def show_load(report: Report, by_durability: Mapping[Durability, list[tuple[float, Round]]]) -> None:
    """Add the whole CPU time, the rate and the acknowledgements of every durability to the report."""
    columns = ("% of a core at 12,500/s", "transitions/s", "p50, ms", "p99, ms")
    rows = {
        name: [
            spread([cpu * APEX_IN * 100 for cpu, _ in many]),
            spread([one.inserted / one.seconds for _, one in many]),
            spread([one.p50 * 1e3 for _, one in many]),
            spread([one.p99 * 1e3 for _, one in many]),
        ]
        for name, many in by_durability.items()
    }
    report.figures["load"] = {
        name: {column: value._asdict() for column, value in zip(columns, row, strict=True)}
        for name, row in rows.items()
    }
    shown = [[name, *(value.show(1) for value in row)] for name, row in rows.items()]
    report.table("One replay process, and its acknowledgements", ("run.durability", *columns), shown)


def write_journal(folder: Path, config: Config, recorded: Recorded) -> int:
    """Write a journal of 1,000,000 transitions with the batches sampled between them; return its size in bytes."""
    folder.mkdir()
    journal = Journal(RealDisk(), folder, 1, 0, journal_facts(config), awaits_sync=False)
    sender, t, batches = Sender("actor-0", 1), 0, 0
    for sequence in range(RECORDED // config.system.chunk):
        chunk = recorded.chunks[sequence % len(recorded.chunks)]._replace(sequence=sequence)
        t += len(chunk.transitions)
        due = (t - config.learner.learning_starts) * APEX_OUT // APEX_IN - batches
        batches += max(due, 0)
        journal.append(encode_events([sender, chunk, *([Sampled(due)] if due > 0 else [])]), t)
    journal.close()
    return journal.written


def recover_all(report: Report, config: Config, recorded: Recorded) -> None:
    """Add the time of a recovery to the report."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "journal"
        size = write_journal(folder, config, recorded)
        with timed() as timer:
            service = recover(RealDisk(), folder, config, make_service, Base(lambda _: None)).service
    assert service.t == RECORDED
    report.figures["recovery"] = {"bytes": size, "batches": service.rate.batches} | timer.elapsed._asdict()
    for clock in Elapsed._fields:
        work = f"recover 1,000,000 transitions from the journal: {clock} time"
        report.compare(at_most(work, "s", [getattr(timer.elapsed, clock)], LONGEST_RECOVERY))


def make_service(config: Config) -> ReplayService:
    """Return an empty replay service."""
    return ReplayService(config, Replay(config.replay, config.run.total_steps, np.random.default_rng(0)), "run", "", 1)


def main() -> int:
    options = parse_options(__doc__)
    report = Report("journal")
    config = configure(CAPACITY, BATCH)
    recorded = record(config)
    carry_load(report, config, recorded)
    recover_all(report, config, recorded)
    price_states(report, config, recorded)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
