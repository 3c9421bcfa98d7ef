"""The provenance of a run: one part for each start, with its command, versions, commit, machine and end."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from dpsr_apex import __version__
from dpsr_apex.files import read_rows
from dpsr_apex.machine import cpu_model
from dpsr_apex.record.ending import Ending
from dpsr_apex.record.provenance import (
    Commit,
    Session,
    commit_of,
    provenance_lines,
    read_provenance,
    versions,
)
from dpsr_apex.record.run_directory import RunDirectory

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def record(run: RunDirectory, command: str, t: int, ending: Ending | None) -> None:
    session = Session(run, command)
    session.begin(t)
    if ending:
        session.end(ending)


def test_every_start_is_a_part_with_its_end_and_a_killed_one_has_none(run: RunDirectory) -> None:
    assert read_provenance(run) == []
    record(run, "first", 0, Ending("stopped", 130, 500))
    record(run, "second", 500, None)
    record(run, "third", 500, Ending("failed", 1, 700, "learner", "out of luck"))
    parts = read_provenance(run)
    assert [(part.command, part.t) for part in parts] == [("first", 0), ("second", 500), ("third", 500)]
    assert [(part.outcome, part.ended_t) for part in parts] == [("stopped", 500), ("", None), ("failed", 700)]
    assert [bool(part.ended) for part in parts] == [True, False, True]
    assert all(part.began.endswith(" UTC") for part in parts)
    assert read_rows(run.provenance)[-1]["cause"] == "out of luck"


def test_ends_belong_to_their_own_start_in_any_order(run: RunDirectory) -> None:
    one, two = Session(run, "one"), Session(run, "two")
    one.begin(0)
    two.begin(5)
    two.end(Ending("failed", 2, 5))
    one.end(Ending("finished", 0, 9))
    assert [(part.command, part.outcome) for part in read_provenance(run)] == [("one", "finished"), ("two", "failed")]


def test_the_end_of_what_has_not_begun_is_not_recorded(run: RunDirectory) -> None:
    Session(run, "refused").end(Ending("failed", 2, 0))
    assert not run.provenance.exists()


def test_versions_and_machine_are_those_of_this_process(run: RunDirectory) -> None:
    found = versions()
    assert (found["dpsr_apex"], found["Python"]) == (__version__, platform.python_version())
    for name in ("torch", "numpy", "gymnasium", "ale-py"):
        assert found[name] == importlib.metadata.version(name)
    record(run, "command", 0, None)
    (part,) = read_provenance(run)
    assert part.software.startswith(f"dpsr_apex {__version__}, Python {platform.python_version()}, torch ")
    assert part.machine.startswith(cpu_model())
    assert platform.node() not in run.provenance.read_text()


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", "-C", folder, *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_that_of_the_checkout_and_changes_of_tracked_files_are_noticed(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    assert commit_of(tmp_path) is None  # no commit yet
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    (tmp_path / "untracked").touch()
    name = git(tmp_path, "rev-parse", "HEAD")
    assert commit_of(tmp_path) == Commit(name, modified=False)
    (tmp_path / "file").write_text("two")
    assert commit_of(tmp_path) == Commit(name, modified=True)
    (tmp_path / "installed").mkdir()
    assert commit_of(tmp_path / "installed") is None


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(tmp_path) is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    record(RunDirectory(tmp_path / "missing"), "command", 0, Ending("finished", 0, 1))


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"t": 5}',
        '{"t": 5, "begin": [1], "time": 3, "command": {}, "versions": [], "commit": 7, "machine": "x"}',
        '{"t": 5, "begin": "a", "machine": {"cores": "2", "memory": null, "gpus": 4}}',
        '{"t": 5, "end": {}, "outcome": 3}',
    ],
)
def test_damaged_lines_do_not_prevent_reading_the_others(run: RunDirectory, line: str) -> None:
    run.provenance.write_text(f"{line}\n")
    record(run, "intact", 7, Ending("finished", 0, 9))
    assert read_provenance(run)[-1].command == "intact"
    assert provenance_lines(run)


def test_people_are_shown_the_newest_parts(run: RunDirectory) -> None:
    for number in range(5):
        record(run, f"command-{number}", 1_000 * number, Ending("stopped", 130, 1_000 * number + 1_000))
    lines = provenance_lines(run)
    assert lines[0].startswith("2 earlier parts of the run")
    assert [word for word in ("command-1", "command-2", "command-4") if word in "".join(lines)] == [
        "command-2",
        "command-4",
    ]
    assert "stopped" in lines[-2]
    assert "at t = 5,000" in lines[-2]
