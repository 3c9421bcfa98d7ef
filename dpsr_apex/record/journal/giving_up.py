"""Continue a run without a part of its journal, because its user wants to."""

from __future__ import annotations

from pathlib import Path

from dpsr_apex.record.checkpoint import clock_of, newest_complete
from dpsr_apex.record.choice import checked
from dpsr_apex.record.journal.disk import RealDisk
from dpsr_apex.record.journal.journal import remove_all
from dpsr_apex.record.journal.learner import remove_learner
from dpsr_apex.record.journal.position import position_of
from dpsr_apex.record.journal.reader import DamagedJournal, JournalReader, set_aside
from dpsr_apex.record.run_directory import RunDirectory


def give_up_damage(run: RunDirectory, chosen: Path | None = None) -> str:
    """Set aside the journal from its first damage after a checkpoint on; return what was done, for the user.

    The checkpoint is the chosen one, or the newest that is not damaged itself.
    """
    base = checked(run, chosen) if chosen else newest_complete(run.checkpoints)
    since, t = (position_of(base), clock_of(base)) if base else (0, 0)
    reader = JournalReader(RealDisk(), run.journal, since, t)
    try:
        for _ in reader.records():
            pass
    except DamagedJournal as damage:
        set_aside(RealDisk(), damage)
        where = f"byte {damage.offset} of {damage.path}"
        return f"Everything after t = {damage.t:,} is given up: the journal is damaged at {where}"
    return f"The journal is not damaged: nothing is given up, and the run continues at t = {reader.t:,}"


def discard_journal(run: RunDirectory) -> None:
    """Remove the journal of a run that goes back to a checkpoint."""
    remove_learner(RealDisk(), run.journal)
    remove_all(RealDisk(), run.journal)
