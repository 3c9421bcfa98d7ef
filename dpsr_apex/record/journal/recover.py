"""Recover a replay service: load the newest checkpoint, and apply the journal after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dpsr_apex.config import FIXED, Config, ConfigError, settings
from dpsr_apex.config_files import dump_config, parse_config
from dpsr_apex.errors import UserError
from dpsr_apex.protocol.events import Event, Logged
from dpsr_apex.protocol.learner_record import updates_in
from dpsr_apex.protocol.recovery import Recovery
from dpsr_apex.protocol.replay_service import ReplayService
from dpsr_apex.record.journal.disk import Disk
from dpsr_apex.record.journal.encoding import decode_events
from dpsr_apex.record.journal.journal import make_durable
from dpsr_apex.record.journal.learner import read_learner
from dpsr_apex.record.journal.reader import JournalReader, Tail, remove_tail
from dpsr_apex.record.journal.segments import FORMAT, Record, read_facts
from dpsr_apex.wire.codec import BadMessage
from dpsr_apex.wire.messages import LearnerState

MakeService = Callable[[Config], ReplayService]


class UnreadableJournal(UserError):
    """Raised for an intact record that this version does not understand: the reason, and what to do."""

    def __init__(self, record: Record, folder: Path, problem: object) -> None:
        super().__init__(
            f"Record {record.place.sequence} of the journal in {folder} was written by another version of dpsr_apex "
            f"({problem}). Continue the run with that version"
        )


class InconsistentJournal(UserError):
    """Raised for an intact record that does not continue the state before it."""

    def __init__(self, record: Record, folder: Path, t: int) -> None:
        super().__init__(
            f"Record {record.place.sequence} of the journal in {folder} leads to t = {t:,} instead of "
            f"{record.place.t:,}: it continues another checkpoint. Restore that checkpoint, or remove this folder to "
            "give up everything after the newest one"
        )


class Base(NamedTuple):
    """The checkpoint that a journal continues."""

    load: Callable[[ReplayService], None]  # gives its state to a new service; does nothing without a checkpoint
    t: int = 0
    next: int = 0  # number of the first record after it


class Recovered(NamedTuple):
    """A service, and what its journal has added to its checkpoint."""

    service: ReplayService
    next: int  # number of the next record
    records: int
    recorder: str  # the state of the recorder after the last row, as JSON; empty if the checkpoint has it
    tail: Tail | None  # an incomplete end, which nothing may be appended to


def recover_and_continue(disk: Disk, folder: Path, config: Config, make: MakeService, base: Base) -> Recovered:
    """Recover a service as `recover` does, and bring its journal into a state to which records may be appended."""
    recovered = recover(disk, folder, config, make, base)
    if recovered.tail:
        remove_tail(disk, recovered.tail)
    if config.run.durability == "power":
        make_durable(disk, folder)
    return recovered


def recover(disk: Disk, folder: Path, config: Config, make: MakeService, base: Base) -> Recovered:
    """Return a service with the state of a checkpoint, everything in the journal after it, and the newest learner.

    Every record is applied under the config of the process that wrote it; then the service continues under `config`.
    Raise DamagedJournal if promised records cannot be read, InconsistentJournal if they do not continue the checkpoint.
    """
    reader = JournalReader(disk, folder, base.next, base.t)
    recovery: Recovery | None = None
    records, recorder = 0, ""
    for record in reader.records():
        if record.is_header:
            recovery = _under(_config_of(record, folder, config), make, recovery, base)
            continue
        assert recovery is not None, "a header precedes every record"
        records += 1
        for event in events_of(record, folder):
            recovery.apply(event)
            if isinstance(event, Logged):
                recorder = event.recorder
        if recovery.service.t != record.place.t:
            raise InconsistentJournal(record, folder, recovery.service.t)
    recovery = _under(config, make, recovery, base)
    recovery.finish()
    _restore_learner(recovery.service, read_learner(disk, folder))
    return Recovered(recovery.service, reader.next, records, recorder, reader.tail)


def _restore_learner(service: ReplayService, newest: LearnerState | None) -> None:
    """Let a new learner start from this state if it is newer than that of the checkpoint."""
    if newest is not None and updates_in(newest) > service.learner.updates:
        service.learner.state = newest


def journal_facts(config: Config) -> dict[str, str]:
    """Return the facts in the headers of a process with this config."""
    return {"config": dump_config(config)}


def events_of(record: Record, folder: Path) -> Iterator[Event]:
    """Yield the events of a record of the journal in `folder`; raise UnreadableJournal for one of another version."""
    try:
        yield from decode_events(record.content)
    except BadMessage as error:
        raise UnreadableJournal(record, folder, error) from error


def _under(config: Config, make: MakeService, recovery: Recovery | None, base: Base) -> Recovery:
    """Return a recovery that continues under this config, with the state so far."""
    if recovery is not None and _settings(recovery.service.config) == _settings(config):
        return recovery
    service = make(config)
    if recovery is None:
        base.load(service)
    else:
        recovery.finish()
        service.take_over(recovery.service)
    return Recovery(service)


def _config_of(header: Record, folder: Path, now: Config) -> Config:
    """Return the present config with those settings of an earlier process that decide what an event leads to."""
    facts = read_facts(header)
    if facts["format"] != FORMAT:
        raise UnreadableJournal(header, folder, f"format {facts['format']}, and this version reads format {FORMAT}")
    then = parse_config(facts["config"], "a header of the journal")
    written, present = settings(then), settings(now)
    faults = [
        f"{key} is {present[key]!r} now, but the journal was written with {written[key]!r}: set it back"
        for key in FIXED
        if written[key] != present[key]
    ]
    if faults:
        raise ConfigError(*faults)
    run = replace(now.run, **{name: getattr(then.run, name) for name in ("seed", "total_steps", "environment_steps")})
    system = replace(now.system, rate_tolerance=then.system.rate_tolerance)
    env = replace(now.env, reward_limit=then.env.reward_limit)
    return replace(now, env=env, replay=then.replay, learner=then.learner, run=run, system=system)


def _settings(config: Config) -> tuple[object, ...]:
    run, others = config.run, (config.system.rate_tolerance, config.env.reward_limit)
    return config.replay, config.learner, run.seed, run.total_steps, run.environment_steps, *others
