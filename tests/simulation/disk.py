"""A simulated disk: a power cut may lose anything that was not synced; it can be full, fail, and flip bits."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from dpsr_apex.record.journal.disk import Bytes

SECTOR = 64  # bytes that are written to the medium together; few, because the files of a simulation are small


class Killed(BaseException):
    """The process that uses the disk has ended within an operation."""


class _Content:
    """What a file contains, now and on the medium."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.stored = b""  # what a power cut leaves in any case
        self.dropped: set[int] = set()  # sectors that a failed sync has marked as written: no later sync writes them

    def sync(self) -> None:
        self.stored = self._mixed(len(self.data), self.dropped)

    def fail_to_sync(self) -> None:
        self.dropped |= self._unsynced()

    def cut(self, rng: Random) -> None:
        """Lose any part of what was not synced: some sectors, and some of the end."""
        sizes = sorted([len(self.stored), len(self.data)])
        lost = {sector for sector in self._unsynced() if sector in self.dropped or rng.random() < 0.5}
        self.stored = self._mixed(rng.choice([*sizes, rng.randint(*sizes)]), lost)
        self.data, self.dropped = bytearray(self.stored), set()

    def _mixed(self, size: int, old: set[int]) -> bytes:
        """Return the present content, cut or extended to a size, with these sectors as they were."""
        content = bytearray(self.data[:size] + self.stored[len(self.data) : size])
        for sector in old:
            start, end = sector * SECTOR, min((sector + 1) * SECTOR, size)
            if start < end:
                content[start:end] = self.stored[start:end].ljust(end - start, b"\0")
        return bytes(content)

    def _unsynced(self) -> set[int]:
        starts = range(0, max(len(self.data), len(self.stored)), SECTOR)
        return {
            start // SECTOR
            for start in starts
            if self.data[start : start + SECTOR] != self.stored[start : start + SECTOR]
        }


class SimFile:
    """A file that is open for appending."""

    def __init__(self, disk: SimDisk, path: Path, content: _Content) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._is_open = True

    def append(self, parts: Sequence[Bytes]) -> None:
        data = b"".join(parts)
        fits = len(data) if self._disk.free is None else max(min(len(data), self._disk.free), 0)
        is_killed = self._begin(f"append {len(data)} bytes to {self._path.name}")
        if is_killed:
            fits = self._disk.rng.randint(0, fits)
        self._content.data += data[:fits]
        if self._disk.free is not None:
            self._disk.free -= fits
        if is_killed:
            raise Killed
        if fits < len(data):
            raise OSError(errno.ENOSPC, "no space left on device")

    def truncate(self, size: int) -> None:
        if self._begin(f"truncate {self._path.name} to {size}"):
            raise Killed
        assert size <= len(self._content.data)
        del self._content.data[size:]

    def sync(self) -> None:
        if self._begin(f"sync {self._path.name}"):
            raise Killed
        if self._disk.sync_fails:
            self._disk.sync_fails = False
            self._content.fail_to_sync()
            raise OSError(errno.EIO, "input/output error")
        self._content.sync()

    def close(self) -> None:
        self._is_open = False

    def _begin(self, what: str) -> bool:
        assert self._is_open, f"{self._path} is closed"
        return self._disk.begin(what)


class SimDisk:
    """All files of a run."""

    def __init__(self, rng: Random, note: Callable[[str], None] = lambda _: None) -> None:
        self.rng = rng
        self.free: int | None = None  # bytes; None: more than is ever written
        self.kill_after: int | None = None  # operations; the process is killed within the next one
        self.sync_fails = False  # the next sync
        self._note = note
        self._files: dict[Path, _Content] = {}
        self._stored: dict[Path, _Content] = {}  # names on the medium
        self._changes: list[tuple[Path, _Content | None]] = []  # of names, not synced yet; None: removed

    # The disk.

    def create(self, path: Path) -> SimFile:
        self._begin(f"create {path.name}")
        if path in self._files:
            raise FileExistsError(errno.EEXIST, "file exists", str(path))
        if self.free is not None and self.free <= 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        self._name(path, _Content())
        return self.open(path)

    def open(self, path: Path) -> SimFile:
        return SimFile(self, path, self._files[path])

    def read(self, path: Path) -> bytes:
        return bytes(self._files[path].data)

    def rewrite(self, path: Path) -> None:
        self._begin(f"rewrite {path.name}")
        self._files[path].dropped.clear()
        self.open(path).sync()

    def names(self, folder: Path) -> list[str]:
        return sorted(path.name for path in self._files if path.parent == folder)

    def rename(self, path: Path, new: Path) -> None:
        self._begin(f"rename {path.name} to {new.name}")
        self._name(new, self._files[path])
        self._name(path, None)

    def remove(self, path: Path) -> None:
        self._begin(f"remove {path.name}")
        self._name(path, None)

    def sync_folder(self, folder: Path) -> None:
        self._begin(f"sync the names in {folder.name}")
        for change in [change for change in self._changes if change[0].parent == folder]:
            self._changes.remove(change)
            _set(self._stored, *change)

    # What may go wrong.

    def begin(self, what: str) -> bool:
        """Note an operation; return whether the process is killed within it."""
        self._note(f"disk: {what}")
        if self.kill_after is None:
            return False
        self.kill_after -= 1
        if self.kill_after >= 0:
            return False
        self.kill_after = None
        self._note("disk: the process is killed meanwhile")
        return True

    def cut_power(self) -> None:
        """Lose what was not synced, or any part of it."""
        for change in self._changes[: self.rng.randint(0, len(self._changes))]:
            _set(self._stored, *change)
        self._changes.clear()
        self._files = dict(self._stored)
        for content in self._files.values():
            content.cut(self.rng)

    def flip_bit(self, path: Path, offset: int, bit: int) -> None:
        """Change one bit, on the medium as well."""
        content = self._files[path]
        content.data[offset] ^= 1 << bit
        content.stored = content.stored[:offset] + content.data[offset : offset + 1] + content.stored[offset + 1 :]

    def _begin(self, what: str) -> None:
        if self.begin(what):
            raise Killed

    def _name(self, path: Path, content: _Content | None) -> None:
        _set(self._files, path, content)
        self._changes.append((path, content))


def _set(names: dict[Path, _Content], path: Path, content: _Content | None) -> None:
    if content is None:
        names.pop(path, None)
    else:
        names[path] = content
