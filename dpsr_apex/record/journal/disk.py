"""The file operations of the journal, behind one small interface: a simulated disk can stand in for the real one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dpsr_apex.files import sync

Bytes = bytes | memoryview
MOST_PARTS = min(os.sysconf("SC_IOV_MAX"), 1024)  # of one write


class File(Protocol):
    """A file that is open for appending."""

    def append(self, parts: Sequence[Bytes]) -> None:
        """Append everything; after an OSError, some of it may have been appended."""

    def truncate(self, size: int) -> None:
        """Cut the file to its first `size` bytes."""

    def sync(self) -> None:
        """Flush its content to the disk; after an OSError, it must be assumed that nothing was flushed."""

    def close(self) -> None:
        """Close the file."""


class Disk(Protocol):
    """The operations on files and folders. All raise OSError."""

    def create(self, path: Path) -> File:
        """Create a file that does not exist, and open it."""

    def open(self, path: Path) -> File:
        """Open an existing file."""

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""

    def rewrite(self, path: Path) -> None:
        """Write the present content of a file again, in place, and flush it to the disk."""

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted; none if it does not exist."""

    def rename(self, path: Path, new: Path) -> None:
        """Rename a file."""

    def remove(self, path: Path) -> None:
        """Remove a file."""

    def sync_folder(self, folder: Path) -> None:
        """Flush the names in a folder to the disk."""


class RealFile:
    """A file of the operating system."""

    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)

    def append(self, parts: Sequence[Bytes]) -> None:
        """Append everything, in as few writes as possible."""
        for start in range(0, len(parts), MOST_PARTS):
            some = parts[start : start + MOST_PARTS]
            written = os.writev(self._descriptor, some)
            if written < sum(map(len, some)):  # as on a nearly full disk; the next write raises the reason
                self._append_rest(b"".join(some), written)

    def _append_rest(self, content: bytes, written: int) -> None:
        while written < len(content):
            written += os.write(self._descriptor, content[written:])

    def truncate(self, size: int) -> None:
        """Cut the file to its first `size` bytes."""
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Flush its content to the disk, and its size if that has changed."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class RealDisk:
    """The disk of this machine."""

    def create(self, path: Path) -> File:
        """Create a file that does not exist, and open it."""
        return RealFile(path, os.O_CREAT | os.O_EXCL)

    def open(self, path: Path) -> File:
        """Open an existing file."""
        return RealFile(path, 0)

    def read(self, path: Path) -> bytes:
        """Return the content of a file."""
        return path.read_bytes()

    def rewrite(self, path: Path) -> None:
        """Write the present content of a file again, in place, and flush it to the disk."""
        with path.open("r+b", buffering=0) as file:
            content, written = memoryview(file.readall()), 0
            while written < len(content):
                written += os.pwrite(file.fileno(), content[written:], written)
            os.fdatasync(file.fileno())

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted; none if it does not exist."""
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    def rename(self, path: Path, new: Path) -> None:
        """Rename a file."""
        path.rename(new)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def sync_folder(self, folder: Path) -> None:
        """Flush the names in a folder to the disk."""
        sync(folder)
