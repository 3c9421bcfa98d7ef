"""The state in which a replay process begins: that of the newest checkpoint, and everything in the journal after it."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import secrets
from functools import partial

import numpy as np

from dpsr_apex.config import Config
from dpsr_apex.files import sync, write_atomically
from dpsr_apex.processes.weights import pack_weights
from dpsr_apex.protocol.replay_service import ReplayService
from dpsr_apex.record.checkpoint import Checkpoint, DamagedCheckpoint, newest_checkpoint, set_aside
from dpsr_apex.record.journal.disk import RealDisk
from dpsr_apex.record.journal.position import position_in
from dpsr_apex.record.journal.reader import Tail
from dpsr_apex.record.journal.recover import Base, Recovered, recover_and_continue
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.record.settings import ensure_fits
from dpsr_apex.replay.replay import Replay
from dpsr_apex.wire.messages import LearnerState

log = logging.getLogger(__name__)


def newest_intact(config: Config, run: RunDirectory) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint that is not damaged, and what was found about newer ones, which are set aside.

    Raise DamagedCheckpoint if there are only damaged ones.
    """
    notes = []
    while True:
        try:
            found = newest_checkpoint(run.checkpoints)
            break
        except DamagedCheckpoint as damage:
            if damage.offered is None:
                raise
            aside = set_aside(damage.path)
            notes.append(
                f"A damaged checkpoint was set aside ({aside}: {damage.reason}); continuing from {damage.offered}"
            )
            log.warning(notes[-1])
    if found:
        ensure_fits(config, found, run.config)
    return found, notes


def recover_service(config: Config, run: RunDirectory, checkpoint: Checkpoint | None) -> Recovered:
    """Return the service of a run, new or as it was; after this the journal can be continued.

    Raise DamagedJournal if the journal lacks anything that was acknowledged.
    """
    run.journal.mkdir(exist_ok=True)
    sync(run.path)  # always: an earlier process may have been killed before it
    make = partial(_make_service, run=run, era=secrets.randbits(62))
    base = Base(partial(_load, checkpoint), *(_place(checkpoint) if checkpoint else ()))
    recovered = recover_and_continue(RealDisk(), run.journal, config, make, base)
    service = recovered.service
    if recovered.tail and recovered.tail.size:
        service.notes.add(_describe(recovered.tail))
    if recovered.records:
        service.notes.add(
            f"Recovered t = {service.t:,} from the journal: {recovered.records:,} records after t = {base.t:,}."
        )
    return recovered


def _make_service(config: Config, run: RunDirectory, era: int) -> ReplayService:
    rng = np.random.default_rng([config.run.seed, 1])
    replay = Replay(config.replay, config.run.total_steps, rng, config.run.environment_steps)
    return ReplayService(config, replay, _run_id(run), importlib.metadata.version("ale-py"), era)


def _place(checkpoint: Checkpoint) -> tuple[int, int]:
    return checkpoint.t, position_in(checkpoint.parts)


def _load(checkpoint: Checkpoint | None, service: ReplayService) -> None:
    if checkpoint is None:
        return
    service.load(checkpoint.parts["replay"])
    learner = checkpoint.parts["learner"]
    if learner.arrays:
        service.learner.state = LearnerState(json.dumps(learner.facts), pack_weights(learner.arrays))


def _describe(tail: Tail) -> str:
    return (
        f"The last write to the journal was interrupted: {tail.size:,} bytes from byte {tail.offset:,} of "
        f"{tail.path.name} on were removed. Nothing in them had been acknowledged."
    )


def _run_id(run: RunDirectory) -> str:
    """Return the random id of a run, which is the same for all of its processes."""
    if not run.identity.exists():
        write_atomically(run.identity, secrets.token_hex(8))
    return run.identity.read_text(encoding="ascii")
