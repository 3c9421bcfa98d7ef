"""The history of a run, as its actors and its files tell it, and what became of every acknowledged transition.

The journal of a run loses the segments that checkpoints cover. So each of them is linked into an archive as soon as it
exists, and the archive is the complete history: applied to an empty replay, it must lead to the last checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.protocol.replay_service import ReplayService
from dpsr_apex.record.journal.disk import RealDisk
from dpsr_apex.record.journal.encoding import decode_events, digest_of
from dpsr_apex.record.journal.reader import JournalReader
from dpsr_apex.record.journal.recover import Base, recover
from dpsr_apex.record.journal.segments import SUFFIX
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.replay.replay import Replay
from dpsr_apex.wire.messages import Chunk
from tests.chaos.chaos_tasks import keys_of
from tests.system.runs import last_checkpoint


class Told(NamedTuple):
    """What the ledger of one actor process contains: the keys of its transitions."""

    sent: list[str]
    acknowledged: list[str]


def read_ledger(path: Path) -> Told:
    """Read a ledger; its last line may be incomplete."""
    chunks: dict[int, list[str]] = {}
    oldest = 0  # chunk that is not acknowledged
    for line in path.read_text().split("\n")[:-1]:
        kind, number, *keys = line.split(" ")
        if kind == "sent":
            chunks[int(number)] = keys
        else:
            oldest = max(oldest, int(number))
    acknowledged = [key for number, keys in chunks.items() if number < oldest for key in keys]
    return Told([key for keys in chunks.values() for key in keys], acknowledged)


class Archive:
    """Keeps every segment of a journal, in the order of their creation."""

    def __init__(self, journal: Path, folder: Path) -> None:
        """`folder` must be on the same file system as the journal."""
        self._journal = journal
        self._folder = folder
        self._known: set[int] = set()  # file numbers
        folder.mkdir()

    def update(self) -> None:
        """Link the segments that are new; must be called more often than checkpoints are written."""
        with suppress(FileNotFoundError):
            for path in sorted(self._journal.glob(f"*{SUFFIX}")):
                self._keep(path)

    def _keep(self, path: Path) -> None:
        with suppress(FileNotFoundError):  # removed meanwhile, which the reader of the archive would notice
            number = path.stat().st_ino
            if number not in self._known:
                os.link(path, self._folder / f"{len(self._known):06d}-{path.name}")
                self._known.add(number)

    def merge(self, folder: Path) -> None:
        """Copy the whole journal into a new folder; what a recovery has removed is left out."""
        folder.mkdir()
        for kept in sorted(self._folder.iterdir()):
            name = kept.name.partition("-")[2]
            for later in folder.iterdir():
                if later.name >= name:
                    later.unlink()
            shutil.copyfile(kept, folder / name)


class Account(NamedTuple):
    """What became of the transitions that were acknowledged to actors, and what else is wrong."""

    acknowledged: int
    present: int
    replaced: int
    quarantined: int
    lost: int
    problems: list[str]

    @property
    def is_good(self) -> bool:
        """Whether the run has kept its promise."""
        return self.lost == 0 and not self.problems


def judge(run: RunDirectory, archived: Path, ledgers: Iterable[Path]) -> Account:
    """Compare what actors were told with the archived journal and the last checkpoint of a run that was stopped."""
    told = [read_ledger(path) for path in ledgers]
    acknowledged = {key for one in told for key in one.acknowledged}
    inserted = _settled(archived)
    whole, kept = _from_journal(run, archived), _from_checkpoint(run)
    settled, stored = set(inserted), _keys_in(kept)
    quarantined = {key for out in whole.flow.quarantine.drain() for key in keys_of(out.rows.transitions)}
    problems = [
        *_repeated(inserted),
        *_unknown(settled, {key for one in told for key in one.sent}),
        *_counted_wrongly(kept.replay, len(inserted), stored),
    ]
    if digest_of(whole) != digest_of(kept):
        problems.append("applied to an empty replay, the whole journal leads to another state than the last checkpoint")
    present = set(stored)
    gone = (acknowledged & settled) - present
    return Account(
        acknowledged=len(acknowledged),
        present=len(acknowledged & present),
        replaced=len(gone - quarantined),
        quarantined=len(gone & quarantined),
        lost=len(acknowledged - settled),
        problems=problems,
    )


def _settled(archived: Path) -> list[str]:
    """Return the keys of all transitions that were inserted, in order."""
    records = (record for record in JournalReader(RealDisk(), archived, 0, 0).records() if not record.is_header)
    events = (event for record in records for event in decode_events(record.content))
    return [key for event in events if isinstance(event, Chunk) for key in keys_of(event.transitions)]


def new_service(config: Config) -> ReplayService:
    """Return a service with an empty replay, as a new replay process would create it."""
    replay = Replay(
        config.replay, config.run.total_steps, np.random.default_rng([config.run.seed, 1]), config.run.environment_steps
    )
    return ReplayService(config, replay, "", "", 0)


def _from_journal(run: RunDirectory, archived: Path) -> ReplayService:
    """Return an empty replay to which the whole journal was applied."""
    return recover(RealDisk(), archived, load_config(run.config), new_service, Base(lambda _: None)).service


def _from_checkpoint(run: RunDirectory) -> ReplayService:
    service = new_service(load_config(run.config))
    service.load(last_checkpoint(run).parts["replay"])
    return service


def _keys_in(service: ReplayService) -> list[str]:
    """Return the keys of what was played and is stored, or waits for the end of a recycling round.

    Recycled transitions are left out: one with the same action is equal to the transition that was played.
    """
    replay = service.replay
    waiting = [key for round_ in replay.rounds.values() for key in keys_of(round_.waiting.transitions)]
    return [*keys_of(replay.read(replay.identities[replay.depths == 0])), *waiting]


def _repeated(inserted: list[str]) -> list[str]:
    twice = [key for key, number in Counter(inserted).items() if number > 1]
    return [f"{len(twice):,} transitions were inserted more than once"] if twice else []


def _unknown(settled: set[str], sent: set[str]) -> list[str]:
    unknown = settled - sent
    return [f"{len(unknown):,} transitions were inserted that no actor has sent"] if unknown else []


def _counted_wrongly(replay: Replay, inserted: int, present: list[str]) -> list[str]:
    """Compare the counters with the transitions: whatever was stored and is not there was replaced or quarantined."""
    counters = replay.counters
    is_valid, reason = replay.check_valid()
    problems = [] if is_valid else [f"the replay is not valid: {reason}"]
    if len(present) != len(set(present)):
        problems.append(f"{len(present) - len(set(present)):,} transitions are stored twice")
    recycled = counters.recycled + counters.chain_steps_stored
    gone_played, gone_recycled = inserted - len(present), recycled - int(np.count_nonzero(replay.depths))
    if counters.replaced + counters.quarantined != gone_played + gone_recycled or min(gone_played, gone_recycled) < 0:
        counted = f"{counters.replaced:,} replaced and {counters.quarantined:,} quarantined"
        problems.append(f"{counted} are counted, but {gone_played:,} played and {gone_recycled:,} recycled are gone")
    return problems
