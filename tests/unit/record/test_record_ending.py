"""How a run ended is written as one small file, which is read back or ignored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpsr_apex.record.ending import Ending, read_ending, remove_ending, write_ending
from dpsr_apex.record.run_directory import RunDirectory

FAILED = Ending("failed", 1, 1_500, "learner", "ended with exit code 1: RuntimeError: out of luck")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


@pytest.mark.parametrize("ending", [FAILED, Ending("finished", 0, 2_000), Ending("stopped", 130, 0)])
def test_an_ending_is_read_as_it_was_written_and_then_removed(run: RunDirectory, ending: Ending) -> None:
    assert read_ending(run) is None
    write_ending(run, ending)
    assert read_ending(run) == ending
    write_ending(run, FAILED)
    assert read_ending(run) == FAILED
    remove_ending(run)
    remove_ending(run)
    assert read_ending(run) is None


def test_a_cause_is_one_line_of_limited_length(run: RunDirectory) -> None:
    write_ending(run, FAILED._replace(cause="first\n  second " + "x" * 10_000))
    ending = read_ending(run)
    assert ending is not None
    assert ending.cause.startswith("first second x")
    assert len(ending.cause) == 300


def test_a_file_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "missing")
    write_ending(run, FAILED)
    assert read_ending(run) is None


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "won"},
        {"outcome": []},
        {"exit_code": "0"},
        {"t": None},
        {"t": True},
        {"process": 3},
        {"cause": None},
    ],
    ids=str,
)
def test_an_ending_with_a_wrong_value_is_ignored(run: RunDirectory, change: dict[str, Any]) -> None:
    run.ending.write_text(json.dumps(FAILED._asdict() | change))
    assert read_ending(run) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_ignored(run: RunDirectory, content: bytes) -> None:
    run.ending.write_bytes(content)
    assert read_ending(run) is None
