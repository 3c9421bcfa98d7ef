"""Atomic writes, and appending and reading rows of JSON lines. Uses the standard library only.

A row is a JSON object with an integer clock `t`, one per line. A file may be read while rows are appended to it, so its
last line may be incomplete: a line counts only if it ends with a line break.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpsr_apex.errors import UserError

UNFINISHED = ".unfinished-"  # prefix of files and folders that are being written
PRIVATE = 0o600  # the mode of a file that only its owner may read
PRIVATE_FOLDER = 0o700  # the mode of a folder that only its owner may enter
_ORDINARY = 0o666  # minus the umask
_TAIL = 65_536  # bytes: more than most rows

Row = dict[str, Any]
StrPath = str | os.PathLike[str]


class BadLine(UserError):
    """Raised for a line that is not a row; names the file, the line and the reason."""

    def __init__(self, path: Path, number: int, reason: str) -> None:
        super().__init__(f"{path}, line {number}: {reason}. Remove this line, or restore the file")


class UnusablePath(UserError):
    """Raised for a path at which a file cannot be created, with the reason."""


def ensure_usable(path: Path, suffix: str = "") -> None:
    """Raise UnusablePath unless a file with this suffix, or with any for none, can be created at this path."""
    if suffix and path.suffix != suffix:
        raise UnusablePath(f"{path}: the name of the file must end in {suffix}")
    if not path.parent.is_dir():
        raise UnusablePath(f"{path}: the folder {path.parent} does not exist")


# Atomic writes.


class AtomicFile:
    """A file that is written under a temporary name beside `path`, and appears there completely or not at all.

    Write to `temporary`, then `commit`; call `discard` in any case. `atomic_path` does so for a block of code.
    """

    def __init__(self, path: Path, mode: int = _ORDINARY) -> None:
        self.path = path
        # A random name, so that two writers never use the same file; the suffix is kept, because some choose a format
        # by it.
        self.temporary = path.with_name(f"{UNFINISHED}{os.urandom(4).hex()}-{path.name}")
        os.close(os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))

    def commit(self) -> None:
        """Sync the content to disk, and rename the file to `path`."""
        sync(self.temporary)
        self.temporary.replace(self.path)
        sync(self.path.parent)

    def discard(self) -> None:
        """Remove the temporary file if it was not committed."""
        self.temporary.unlink(missing_ok=True)


@contextmanager
def atomic_path(path: Path, mode: int = _ORDINARY) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces `path` when the block ends without an exception.

    The temporary file exists already, with `mode`, and is removed after any exception.
    """
    file = AtomicFile(path, mode)
    try:
        yield file.temporary
        file.commit()
    finally:
        file.discard()


def write_atomically(path: Path, content: bytes | str, mode: int = _ORDINARY) -> None:
    """Write bytes, or text as UTF-8, to `path` atomically; on OSError nothing is changed."""
    with atomic_path(path, mode) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Rows.


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row completely, or raise OSError and change nothing. An incomplete last line is removed first."""
    line = encode_row(row)
    with path.open("a+b", buffering=0) as file:
        _remove_incomplete_line(file)
        append_whole(file, line)


def append_whole(file: io.FileIO, content: bytes) -> None:
    """Append to an unbuffered file; after an OSError the file has its former length."""
    start = file.seek(0, os.SEEK_END)
    try:
        written = 0
        while written < len(content):  # a nearly full disk accepts a part first, and then fails
            written += file.write(content[written:])
    except OSError:
        file.truncate(start)
        raise


def encode_row(row: Mapping[str, Any]) -> bytes:
    """Return a row as one line of JSON, `t` first and the other keys sorted, with the values of `to_json`."""
    ordered = {"t": row["t"]} | {name: row[name] for name in sorted(row)}
    return json.dumps(to_json(ordered), allow_nan=False).encode() + b"\n"


def to_json(value: Any) -> Any:
    """Convert numpy values to Python's own, and numbers that are not finite to None."""
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if hasattr(value, "tolist"):  # a numpy array or scalar, recognized without importing numpy
        return to_json(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_rows(path: Path, bad: list[BadLine] | None = None) -> list[Row]:
    """Return all rows of a file; [] if it does not exist.

    A line that is not a row raises BadLine, or is added to `bad` if that is given.
    """
    return RowReader(path, bad).read()


def read_last_row(path: Path) -> Row | None:
    """Return the last row of a file without reading the others; None if there is none."""
    try:
        with path.open("rb") as file:
            row = _parse(_last_line(file))
    except FileNotFoundError:
        return None
    return row if isinstance(row, dict) else None


def _last_line(file: io.BufferedReader) -> bytes:
    """Return the last complete line of a file; empty if there is none."""
    size, tail = os.fstat(file.fileno()).st_size, _TAIL
    while True:
        start = file.seek(max(size - tail, 0))
        lines = file.read(size - start).split(b"\n")[:-1]
        if len(lines) > 1 or start == 0:  # the beginning of the first one may be missing
            return lines[-1] if lines else b""
        tail *= 2


class RowReader:
    """Reads the rows that are appended to a file, each once.

    `was_replaced` is True after a `read` that found a different file at the path, for example after a run went back to
    a checkpoint; it returned all rows of the new file.
    """

    def __init__(self, path: Path, bad: list[BadLine] | None = None) -> None:
        self.was_replaced = False
        self._path = path
        self._bad = bad
        self._inode: int | None = None
        self._end = 0  # byte offset after the last complete line read
        self._lines = 0  # read so far

    def read(self) -> list[Row]:
        """Return the rows since the last call; see `read_rows` for lines that are not rows."""
        rows = []
        for line in self._new_lines():
            self._lines += 1
            found = _parse(line) if line.strip() else None
            if isinstance(found, dict):
                rows.append(found)
            elif found:
                self._refuse(found)
        return rows

    def _refuse(self, reason: str) -> None:
        error = BadLine(self._path, self._lines, reason)
        if self._bad is None:
            raise error
        self._bad.append(error)

    def _new_lines(self) -> list[bytes]:
        self.was_replaced = False
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            status = os.fstat(file.fileno())  # of the open file, even if another one has replaced it
            if status.st_ino != self._inode or status.st_size < self._end:
                self.was_replaced = self._inode is not None
                self._inode, self._end, self._lines = status.st_ino, 0, 0
            file.seek(self._end)
            whole, newline, _torn = file.read().rpartition(b"\n")
        self._end += len(whole) + len(newline)
        return whole.split(b"\n") if newline else []


def _parse(line: bytes) -> Row | str:
    """Return the row, or the reason why the line is not a row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(row, dict):
        return "not a JSON object"
    t = row.get("t")
    return row if type(t) is int and abs(t) < 2**63 else "without an integer clock `t` of 64 bits"


def _remove_incomplete_line(file: io.FileIO) -> None:
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.readall().rfind(b"\n") + 1)
