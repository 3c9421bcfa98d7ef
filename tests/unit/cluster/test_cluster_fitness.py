from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from dpsr_apex import __version__
from dpsr_apex.cluster import fitness
from dpsr_apex.cluster.fitness import NodeFacts, Probe, is_seen, look_around, why_unfit
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.wire.codec import PROTOCOL

RUN = Path("/shared/run")
HERE = NodeFacts("1.0", 2, "0.12.1", asks_for_token=True, sees_run=True)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitness, "SHARE_SECONDS", 0.0)


def test_a_node_that_has_the_same_can_take_part() -> None:
    assert why_unfit(HERE, HERE, RUN) == ""
    assert why_unfit(HERE, HERE._replace(asks_for_token=False), RUN) == "", "that is asked of the cluster as a whole"


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (HERE._replace(version="0.9"), "it has dpsr_apex 0.9 (protocol 2) and this run has 1.0 (protocol 2)"),
        (HERE._replace(protocol=3), "it has dpsr_apex 1.0 (protocol 3) and this run has 1.0 (protocol 2)"),
        (HERE._replace(emulator="0.11"), "it has ale-py 0.11 and this run has 0.12.1"),
        (HERE._replace(sees_run=False), "it does not see /shared/run"),
    ],
)
def test_a_node_that_has_not_is_told_what_to_do(there: NodeFacts, why: str) -> None:
    reason, _, remedy = why_unfit(HERE, there, RUN).partition(": ")
    assert reason == why
    assert remedy.startswith(("install the same version", "put the run directory where all nodes see it"))


def test_only_the_very_directory_has_the_probe(tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    probe, other = Probe(run), Probe(copy)
    assert not is_seen(run, probe.word)
    probe.leave()
    other.leave()
    assert is_seen(run, probe.word)
    assert not is_seen(copy, probe.word)
    assert RunDirectory.is_free(run), "a run can still be begun there"
    probe.remove()
    probe.remove()
    assert not is_seen(run, probe.word)


@pytest.mark.parametrize(("mode", "asks"), [("token", True), ("TOKEN", True), ("disabled", False), ("", False)])
def test_a_node_tells_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, asks: bool) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    probe = Probe(tmp_path / "run")
    probe.leave()
    facts = look_around(tmp_path / "run", probe.word)
    assert facts == NodeFacts(__version__, PROTOCOL, version("ale-py"), asks, sees_run=True)
    assert not look_around(tmp_path / "elsewhere", probe.word).sees_run
