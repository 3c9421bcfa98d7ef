from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from dpsr_apex import __version__, timeouts
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.supervise.ray.node_check import (
    NodeFacts,
    Probe,
    exposed_token,
    inspect_node,
    is_visible,
    why_unusable,
)
from dpsr_apex.wire.codec import PROTOCOL

RUN = Path("/shared/run")
HERE = NodeFacts("1.0", 2, "0.12.1", asks_for_token=True, exposed_token="", shares_run=True)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "SHARED_FOLDER", 0.0)


def test_a_node_with_equal_facts_can_take_part() -> None:
    assert why_unusable(HERE, HERE, RUN) == ""
    assert why_unusable(HERE, HERE._replace(asks_for_token=False), RUN) == "", "that is asked of the cluster as a whole"


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (HERE._replace(version="0.9"), "it has dpsr_apex 0.9 (protocol 2) and this run has 1.0 (protocol 2)"),
        (HERE._replace(protocol=3), "it has dpsr_apex 1.0 (protocol 3) and this run has 1.0 (protocol 2)"),
        (HERE._replace(emulator="0.11"), "it has ale-py 0.11 and this run has 0.12.1"),
        (HERE._replace(shares_run=False), "it does not see /shared/run"),
        (HERE._replace(exposed_token="/home/me/token"), "/home/me/token lets other users run anything on the cluster"),
    ],
)
def test_why_a_node_cannot_take_part_comes_with_what_to_do(there: NodeFacts, why: str) -> None:
    reason, _, remedy = why_unusable(HERE, there, RUN).partition(": ")
    assert reason == why
    assert remedy.startswith(
        ("install the same version", "put the run directory where all nodes see it", "run chmod 600 ")
    )


def test_only_the_very_directory_has_the_probe(tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    probe, other = Probe(run), Probe(copy)
    assert not is_visible(run, probe.name)
    probe.create()
    other.create()
    assert is_visible(run, probe.name)
    assert not is_visible(copy, probe.name)
    assert RunDirectory.is_free(run), "a run can still be begun there"
    probe.remove()
    probe.remove()
    assert not is_visible(run, probe.name)


@pytest.mark.parametrize(("mode", "asks"), [("token", True), ("TOKEN", True), ("disabled", False), ("", False)])
def test_a_node_is_inspected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, asks: bool) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    probe = Probe(tmp_path / "run")
    probe.create()
    facts = inspect_node(tmp_path / "run", probe.name)
    assert facts == NodeFacts(__version__, PROTOCOL, version("ale-py"), asks, exposed_token="", shares_run=True)
    assert not inspect_node(tmp_path / "elsewhere", probe.name).shares_run


@pytest.mark.parametrize(("mode", "is_exposed"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_token_that_other_users_can_read_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_exposed: bool, is_named: bool
) -> None:
    file = tmp_path / ("token" if is_named else ".ray/auth_token")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    if is_named:
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    assert exposed_token() == "", "there is none"
    file.parent.mkdir(exist_ok=True)
    file.touch(mode)
    file.chmod(mode)
    assert exposed_token() == (str(file) if is_exposed else "")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    assert exposed_token() == "", "the file is not used"
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert exposed_token() == "", "no token is used"
