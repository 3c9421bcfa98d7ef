"""The newest state of the learner in one file beside the journal, so that a crash repeats few updates."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dpsr_apex.record.journal.disk import Disk
from dpsr_apex.record.journal.encoding import join_frames, split_frames
from dpsr_apex.record.journal.segments import Place, pack_record, parse
from dpsr_apex.wire.codec import BadMessage, decode, encode
from dpsr_apex.wire.messages import LearnerState

NAME = "learner.state"
_UNFINISHED = "learner.unfinished"
_PLACE = Place(0, 0, 0, 0)  # it is no part of the journal


def write_learner(disk: Disk, folder: Path, state: LearnerState) -> None:
    """Replace the file; after an OSError the earlier one is kept."""
    record = pack_record(_PLACE, join_frames(encode(state)))
    temporary = folder / _UNFINISHED
    with suppress(FileNotFoundError):
        disk.remove(temporary)
    file = disk.create(temporary)
    try:
        file.append(record)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, folder / NAME)
    disk.sync_folder(folder)


def read_learner(disk: Disk, folder: Path) -> LearnerState | None:
    """Return the state in the file; None if there is none, or it is damaged or of another version."""
    if NAME not in disk.names(folder):
        return None
    record = parse(disk.read(folder / NAME), 0)
    if record is None:
        return None
    try:
        (frames,) = split_frames(record.content)
        state = decode(frames)
    except (BadMessage, ValueError):
        return None
    return state if isinstance(state, LearnerState) else None


def remove_learner(disk: Disk, folder: Path) -> None:
    """Remove the file, because the run goes back to an earlier state."""
    if NAME in disk.names(folder):
        disk.remove(folder / NAME)
