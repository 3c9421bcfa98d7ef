"""The engine of this machine: which keys its processes get, and runs whose keys cannot be used."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.supervise.engines import ThisMachine
from dpsr_apex.supervise.managed import Task
from dpsr_apex.wire.keys import BadKeyFile

HERE = "tcp://127.0.0.1:0"


@pytest.mark.parametrize("bind", [HERE, "tcp://0.0.0.0:5555"])
@pytest.mark.parametrize("role", ["actor", "learner", "evaluator"])
def test_a_process_gets_the_key_of_its_role(tmp_path: Path, role: str, bind: str) -> None:
    run = RunDirectory(tmp_path)
    with closing(ThisMachine(run, bind)) as engine:
        words = engine.arguments(role, actors=1)
        assert words[words.index("--key") + 1] == str(run.keys / f"{role}.key")
        assert "--key" not in engine.arguments("replay", actors=1)


def test_a_run_with_the_keys_of_an_earlier_version_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    run.keys.mkdir()
    for name in ("server.key", "client.key"):
        (run.keys / name).touch()
    with closing(ThisMachine(run, HERE)) as engine, pytest.raises(BadKeyFile, match=f"{run.keys} .*delete this folder"):
        engine.start(Task("replay", "replay", [], run.logs / "replay.log"))
    assert list(run.logs.iterdir()) == []
