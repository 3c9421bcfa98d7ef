from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from dpsr_apex import logs
from dpsr_apex.logs import LINES_A_MINUTE, LONGEST_LINE, ROTATED, LimitRepeats, RotatingLog, rotate


def record(text: str, line: int = 1, at: float = 1_000.0, level: int = logging.WARNING) -> logging.LogRecord:
    made = logging.LogRecord("dpsr_apex", level, "file.py", line, "%s", (text,), None)
    made.created = at
    return made


def passed(limit: LimitRepeats, *records: logging.LogRecord) -> list[str]:
    return [one.getMessage() for one in records if limit.filter(one)]


def test_warnings_from_one_line_of_code_are_limited_and_those_from_others_are_not() -> None:
    limit = LimitRepeats()
    garbage = [record(f"garbage {number}") for number in range(1_000)]
    assert passed(limit, *garbage) == [f"garbage {number}" for number in range(LINES_A_MINUTE)]
    assert passed(limit, record("another", line=2)) == ["another"]
    assert passed(limit, *(record("progress", level=logging.INFO) for _ in range(100))) == ["progress"] * 100


def test_the_next_line_says_how_many_were_left_out() -> None:
    limit = LimitRepeats()
    passed(limit, *(record("garbage") for _ in range(LINES_A_MINUTE + 7)))
    (line,) = passed(limit, record("100 % garbage", at=1_060.0))
    assert line.startswith("100 % garbage (7 ")


def test_a_long_line_is_shortened() -> None:
    (line,) = passed(LimitRepeats(), record("x" * 10**6))
    assert line == "x" * LONGEST_LINE + "…"


def test_a_log_file_is_rotated_and_takes_at_most_twice_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES", 1_000)
    handler = RotatingLog(tmp_path / "log")
    for number in range(1_000):
        handler.handle(record(f"line {number:04d}"))
    handler.close()
    kept = (tmp_path / f"log{ROTATED}").read_text() + (tmp_path / "log").read_text()
    numbers = [int(line.split()[1]) for line in kept.splitlines()]
    assert numbers == list(range(numbers[0], 1_000))
    assert 1_000 < len(kept) < 2_100


def test_the_log_of_another_process_is_rotated_while_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES", 4)
    program = "import sys; [(sys.stdout.write(line), sys.stdout.flush()) for line in sys.stdin]"
    with (tmp_path / "log").open("ab") as log:
        writer = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=log, text=True, bufsize=1
        )
    assert writer.stdin is not None
    writer.stdin.write("first\n")
    while (tmp_path / "log").stat().st_size < 6:
        assert writer.poll() is None
    rotate(tmp_path / "log")
    rotate(tmp_path / "log")  # nothing to do
    writer.communicate("second\n")
    assert (tmp_path / f"log{ROTATED}").read_text() == "first\n"
    assert (tmp_path / "log").read_text() == "second\n"


def test_a_log_that_cannot_be_rotated_stays(tmp_path: Path) -> None:
    rotate(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []
