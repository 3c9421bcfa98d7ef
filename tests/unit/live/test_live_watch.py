from __future__ import annotations

from pathlib import Path

from dpsr_apex.live.watch import Tail
from dpsr_apex.run.metrics import append_row, truncate_after


def test_the_tail_of_a_file_is_what_is_new_in_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    append_row(path, {"t": 1})
    append_row(path, {"t": 2})
    assert tail.read() == [{"t": 1}, {"t": 2}]
    assert tail.read() == []
    append_row(path, {"t": 3})
    assert tail.read() == [{"t": 3}]


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"t": 1}\n{"t":')
    tail = Tail(path)
    assert tail.read() == [{"t": 1}]
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b" 2}\n")
    assert tail.read() == [{"t": 2}]


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    for t in (1, 2, 3):
        append_row(path, {"t": t})
    assert len(tail.read()) == 3
    truncate_after(path, 1)
    append_row(path, {"t": 2})
    assert tail.read() == [{"t": 1}, {"t": 2}]
