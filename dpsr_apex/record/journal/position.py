"""The place of a checkpoint in the journal: the number of the first record that it does not cover."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dpsr_apex.record.checkpoint import Checkpoint
from dpsr_apex.record.journal.disk import RealDisk
from dpsr_apex.record.journal.reader import JournalReader
from dpsr_apex.record.journal.segments import list_segments, newest_t
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.state import State

PART = "journal"  # of a checkpoint


def journal_part(next_: int) -> State:
    """Return the part of a checkpoint that records its place."""
    return State({"next": next_}, {})


def position_in(parts: Mapping[str, State]) -> int:
    """Return the place of a checkpoint with these parts; 0 for one that was written before there were journals."""
    return int(parts[PART].facts["next"]) if PART in parts else 0


def position_of(checkpoint: Path) -> int:
    """Return the place of the checkpoint in this folder, without reading the rest of it.

    It is 0 for one that was written before there were journals, or whose place cannot be read.
    """
    try:
        return int(json.loads((checkpoint / f"{PART}.json").read_bytes())["next"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def reached(run: RunDirectory, checkpoint: Checkpoint) -> int:
    """Return the clock at which a run continues: that of its checkpoint, or of the last record of the journal after it.

    The whole journal after the checkpoint is read; raise DamagedJournal if it lacks anything that was acknowledged.
    """
    reader = JournalReader(RealDisk(), run.journal, position_in(checkpoint.parts), checkpoint.t)
    for _ in reader.records():
        pass
    return reader.t


def has_journal(run: RunDirectory) -> bool:
    """Whether the run has a journal that a replay would continue."""
    return bool(list_segments(RealDisk(), run.journal))


def journal_t(run: RunDirectory) -> int:
    """Return the clock after the last record of the journal; 0 without one."""
    return newest_t(RealDisk(), run.journal)
