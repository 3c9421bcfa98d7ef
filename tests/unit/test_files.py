"""Files are whole or not there, and rows are read whole, each once, also while others write them."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsr_apex import files
from dpsr_apex.errors import UserError
from dpsr_apex.files import (
    PRIVATE,
    AtomicFile,
    BadLine,
    RowReader,
    UnusablePath,
    append_row,
    atomic_path,
    encode_row,
    ensure_usable,
    read_last_row,
    read_rows,
    write_atomically,
)
from dpsr_apex.record.metrics import truncate_after


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


# Atomic writes.


@pytest.mark.parametrize(("content", "written"), [(b"\x00\xff", b"\x00\xff"), ("ünï", "ünï".encode())])
def test_what_is_written_replaces_what_was_there(tmp_path: Path, content: bytes | str, written: bytes) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    write_atomically(path, content)
    assert path.read_bytes() == written
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_after_any_exception_the_file_is_as_it_was_and_nothing_is_left_behind(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "file.png"
    path.write_text("before")

    def write_half() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "before")
    with largest_file(100), pytest.raises(OSError, match="too large"):
        write_atomically(path, b"x" * 101)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_is_a_folder_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    done: list[tuple[str, str]] = []
    fsync, replace = os.fsync, Path.replace

    def syncing(descriptor: int) -> None:
        synced = Path(f"/proc/self/fd/{descriptor}").resolve()
        done.append(("sync", "folder" if synced == tmp_path.resolve() else synced.read_text()))
        fsync(descriptor)

    def replacing(self: Path, target: Path) -> Path:
        done.append(("rename", target.name))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "replace", replacing)
    write_atomically(path, "content")
    assert done == [("sync", "content"), ("rename", "file"), ("sync", "folder")]


def test_a_private_file_is_private_before_its_first_byte(tmp_path: Path) -> None:
    with umask(0), atomic_path(tmp_path / "key", PRIVATE) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        assert temporary.stat().st_size == 0
        temporary.write_text("secret")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_an_ordinary_file_follows_the_umask(tmp_path: Path) -> None:
    with umask(0o027):
        write_atomically(tmp_path / "file", "text")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_two_writers_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_path(path) as one, atomic_path(path) as other:
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"  # renamed last
    assert list(tmp_path.iterdir()) == [path]


def test_a_temporary_name_has_the_suffix_of_the_file(tmp_path: Path) -> None:
    file = AtomicFile(tmp_path / "film.mp4")
    assert file.temporary.suffix == ".mp4"
    assert file.temporary.parent == tmp_path
    file.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_kill_in_the_middle_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    script = (
        "import sys; from pathlib import Path; from dpsr_apex.files import atomic_path\n"
        "with atomic_path(Path(sys.argv[1])) as temporary:\n"
        "    temporary.write_text('half'); print('there', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        child.kill()
    assert path.read_text() == "before"


# Rows.


def test_rows_are_read_in_order_and_a_file_that_is_not_there_has_none(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert read_rows(path) == []
    assert read_last_row(path) is None
    for t in range(3):
        append_row(path, {"t": t, "x": [t, None]})
    assert read_rows(path) == [{"t": t, "x": [t, None]} for t in range(3)]
    assert read_last_row(path) == {"t": 2, "x": [2, None]}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"t": ', "not JSON"),
        ("\udcff", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"x": 1}', "clock"),
        ('{"t": true}', "clock"),
        ('{"t": 1.5}', "clock"),
        ('{"t": 9223372036854775808}', "clock"),
    ],
)
def test_a_line_that_is_no_row_is_named_by_file_and_number(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"t": 1}}\n\n{line}\n{{"t": 4}}\n', errors="surrogateescape")
    with pytest.raises(BadLine, match=rf"rows\.jsonl, line 3: .*{reason}") as caught:
        read_rows(path)
    assert isinstance(caught.value, UserError)
    bad: list[BadLine] = []
    assert read_rows(path, bad) == [{"t": 1}, {"t": 4}]
    assert [str(error) for error in bad] == [str(caught.value)]


@given(st.integers(1, 30))
def test_a_torn_last_line_is_no_row_and_the_next_one_takes_its_place(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("torn") / "rows.jsonl"
    for t in (1, 2):
        append_row(path, {"t": t, "text": "abcdefghijk"})
    content = path.read_bytes()
    path.write_bytes(content[: -min(cut, len(content) // 2)])
    assert [row["t"] for row in read_rows(path)] == [1]
    append_row(path, {"t": 3})
    assert [row["t"] for row in read_rows(path)] == [1, 3]


def test_a_full_disk_leaves_no_part_of_a_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_row(path, {"t": 1})
    before = path.read_bytes()
    with largest_file(len(before) + 5), pytest.raises(OSError, match="too large"):
        append_row(path, {"t": 2})
    assert path.read_bytes() == before


def test_the_last_row_is_found_behind_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_TAIL", 50)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"t": {t}}}\n' for t in range(100)) + '{"t": ')
    assert read_last_row(path) == {"t": 99}


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_the_last_row_is_read_however_long_it_is(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "rows.jsonl"
    last = {"t": rows, "scores": list(range(100_000))}
    path.write_bytes(b"".join(encode_row({"t": t}) for t in range(1, rows)) + encode_row(last))
    assert read_last_row(path) == last


# Rows as they come.


def test_a_reader_returns_each_row_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = RowReader(path)
    assert reader.read() == []
    append_row(path, {"t": 1})
    append_row(path, {"t": 2})
    assert reader.read() == [{"t": 1}, {"t": 2}]
    assert not reader.was_replaced
    assert reader.read() == []
    append_row(path, {"t": 3})
    assert reader.read() == [{"t": 3}]


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"t": 1}\n{"t":')
    reader = RowReader(path)
    assert reader.read() == [{"t": 1}]
    assert reader.read() == []
    with path.open("ab") as file:
        file.write(b" 2}\n")
    assert reader.read() == [{"t": 2}]


def test_the_number_of_a_bad_line_counts_those_that_were_read_before(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"t": 1}\n\n')
    reader = RowReader(path)
    reader.read()
    with path.open("ab") as file:
        file.write(b'{"t": 2}\nx\n')
    with pytest.raises(BadLine, match="line 4:"):
        reader.read()


def test_a_file_that_was_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = RowReader(path)
    for t in (1, 2, 3):
        append_row(path, {"t": t})
    assert len(reader.read()) == 3
    truncate_after(path, 1)
    append_row(path, {"t": 2})
    assert reader.read() == [{"t": 1}, {"t": 2}]
    assert reader.was_replaced
    append_row(path, {"t": 3})
    assert reader.read() == [{"t": 3}]
    assert not reader.was_replaced


def test_a_file_that_is_replaced_while_it_is_opened_is_read_as_one_of_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, newer = tmp_path / "metrics.jsonl", tmp_path / "newer.jsonl"
    reader = RowReader(path)
    append_row(path, {"t": 1})
    assert reader.read() == [{"t": 1}]
    append_row(path, {"t": 2})
    for t in (1, 20_000, 30_000):
        append_row(newer, {"t": t})

    def replaced_after(do: Any) -> Any:
        def doing(*given: Any, **named: Any) -> Any:
            done = do(*given, **named)
            newer.replace(path)
            monkeypatch.undo()
            return done

        return doing

    monkeypatch.setattr(Path, "stat", replaced_after(Path.stat))
    monkeypatch.setattr(Path, "open", replaced_after(Path.open))
    assert reader.read() == [{"t": 2}]
    assert reader.read() == [{"t": 1}, {"t": 20_000}, {"t": 30_000}]
    assert reader.was_replaced


def test_a_path_at_which_no_file_can_be_created_is_refused_with_the_reason(tmp_path: Path) -> None:
    ensure_usable(tmp_path / "game.mp4", ".mp4")
    ensure_usable(tmp_path / "log")
    for name in ("game.avi", "game", "game.MP4"):
        with pytest.raises(UnusablePath, match=r"must end in \.mp4"):
            ensure_usable(tmp_path / name, ".mp4")
    with pytest.raises(UnusablePath, match="nowhere does not exist"):
        ensure_usable(tmp_path / "nowhere" / "game.mp4", ".mp4")
