"""The run directory of a simulated run: checkpoints and a journal on a simulated disk."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpsr_apex.record.journal.reader import DamagedJournal, JournalReader, set_aside
from dpsr_apex.record.journal.segments import find_records, list_segments
from tests.simulation.disk import SimDisk

if TYPE_CHECKING:
    from tests.simulation.hosts import Saved

JOURNAL, CHECKPOINTS = Path("run/journal"), Path("run/checkpoints")
KEPT = 2
Durability = Literal["process", "power", "none"]
_UNFINISHED = "unfinished"


class Storage:
    """What a run leaves on a disk; a checkpoint is a file whose content stands for it."""

    def __init__(self, disk: SimDisk, durability: Durability) -> None:
        self.disk = disk
        self.durability = durability  # run.durability of the whole run
        self.may_be_damaged = False  # whether the journal has lost what was promised only for crashes
        self.damages = 0  # after which the rest of the journal was given up
        self.kept_t = 0  # clock before the last one
        self._saved: dict[bytes, Saved] = {}
        self._numbers = count()

    @property
    def has_journal(self) -> bool:
        return self.durability != "none"

    @property
    def awaits_sync(self) -> bool:
        return self.durability == "power"

    @property
    def _complete(self) -> list[str]:
        return [name for name in self.disk.names(CHECKPOINTS) if not name.endswith(_UNFINISHED)]

    def checkpoints(self) -> list[Saved]:
        """All complete checkpoints, the oldest first; one that is visible is complete."""
        contents = [self.disk.read(CHECKPOINTS / name) for name in self._complete]
        assert all(content in self._saved for content in contents), "an incomplete checkpoint is visible"
        return [self._saved[content] for content in contents]

    def lose_newest_checkpoint(self) -> bool:
        """Let the newest checkpoint be damaged, if there is another one; return whether it is lost."""
        names = self._complete
        if len(names) < KEPT:
            return False
        self.disk.remove(CHECKPOINTS / names[-1])
        self.disk.sync_folder(CHECKPOINTS)
        return True

    def check_that_damage_is_noticed(self, since: int) -> bool:
        """Flip a bit of a record that is needed and was promised, and flip it back; False if there is none."""
        bit = self._flip_promised_bit(since)
        if bit is None:
            return False
        try:
            list(JournalReader(self.disk, JOURNAL, since, 0).records())
        except DamagedJournal:
            return True
        finally:
            self.disk.flip_bit(*bit)
        raise AssertionError(f"bit {bit[2]} of byte {bit[1]} of {bit[0].name} was flipped, and nobody noticed")

    def damage(self, since: int) -> bool:
        """Flip a bit of a record that is needed and was promised, for good; False if there is none."""
        self.may_be_damaged = self._flip_promised_bit(since) is not None
        return self.may_be_damaged

    def _flip_promised_bit(self, since: int) -> tuple[Path, int, int] | None:
        """Flip a bit, and return the file, the offset and the number of the bit."""
        needed = JournalReader(self.disk, JOURNAL, since, 0).records()
        promised = max((record.place.promised for record in needed), default=0)
        paths = [path for start, path in list_segments(self.disk, JOURNAL).items() if since <= start < promised]
        if not paths:
            return None
        path = self.disk.rng.choice(paths)
        records = find_records(self.disk.read(path), 0)
        end = max(record.end for record in records if record.is_header or record.place.sequence < promised)
        bit = path, self.disk.rng.randrange(end), self.disk.rng.randrange(8)
        self.disk.flip_bit(*bit)
        return bit

    def give_up(self, damage: DamagedJournal) -> None:
        """Let the run continue without what is damaged, as `resume --until-damage`."""
        assert self.may_be_damaged, f"the journal is damaged: {damage}"
        self.disk.free = None  # its user makes space first
        self.damages += 1
        self.kept_t = damage.t
        set_aside(self.disk, damage)

    def write(self, saved: Saved) -> None:
        """Write a checkpoint as `dpsr_apex.record.checkpoint` does; after an OSError nothing of it is visible."""
        number = next(self._numbers)
        content = b"checkpoint %d " % number * 20
        self._saved[content] = saved
        path = CHECKPOINTS / f"{number:06d}"
        temporary = path.with_suffix(f".{_UNFINISHED}")
        for leftover in sorted({*self.disk.names(CHECKPOINTS)} - {*self._complete}):
            self.disk.remove(CHECKPOINTS / leftover)
        try:
            file = self.disk.create(temporary)
            file.append([content])
            file.sync()
            file.close()
        except OSError:
            with suppress(KeyError):
                self.disk.remove(temporary)
            raise
        self.disk.rename(temporary, path)
        self.disk.sync_folder(CHECKPOINTS)
        for name in self._complete[:-KEPT]:
            self.disk.remove(CHECKPOINTS / name)
        self.disk.sync_folder(CHECKPOINTS)
