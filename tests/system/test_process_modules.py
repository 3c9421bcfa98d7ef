"""The modules that the real processes of a run have imported: each loads what it needs, and no more."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.hooks.sitecustomize import FOLDER
from tests.system.runs import Run, training

HOOKS = Path(__file__).with_name("hooks")
FOR_TRAINING = {"torch._dynamo"}  # takes two seconds; loaded with the first optimizer
OTHER_GAMES = {"ale_py", "minatar", "minigrid"}  # the run is CartPole
FOR_PEOPLE = {"rich", "matplotlib", "imageio_ffmpeg", "PIL"}  # a screen, pictures and videos
UNUSED = {
    "replay": {"torch", "ale_py", "minatar", "minigrid", "gymnasium", "ray"} | FOR_PEOPLE,
    "actor-0": {"tensorboard", "ray"} | FOR_PEOPLE | FOR_TRAINING | OTHER_GAMES,
    "learner": {"tensorboard", "ray"} | FOR_PEOPLE | OTHER_GAMES,
    "evaluator": {"tensorboard", "ray"} | FOR_PEOPLE | FOR_TRAINING | OTHER_GAMES,
}
USED = {
    "replay": {"zmq", "numba", "dpsr_apex.processes.replay"},
    "actor-0": {"zmq", "torch", "gymnasium", "dpsr_apex.processes.actor"},
    "learner": {"zmq", "torch", "dpsr_apex.processes.learner"},
    "evaluator": {"zmq", "torch", "gymnasium", "dpsr_apex.processes.evaluator"},
}


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """The modules of each process, by its name, in a run that has trained, recycled, logged and evaluated."""
    folder, path = tmp_path_factory.mktemp("modules"), tmp_path_factory.mktemp("run") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HOOKS), *filter(None, [os.environ.get("PYTHONPATH")])]))
        with training(path, "evaluation.period=200", steps=1_000_000) as run:
            run.eventually(run.directory.evaluations.exists)
            run.await_stats(lambda stats: stats.replay.rounds_closed and stats.row)
            yield {name: _modules_of(run, name, folder) for name in UNUSED}


def _modules_of(run: Run, name: str, folder: Path) -> set[str]:
    process = run.await_child(name)
    os.kill(process.pid, signal.SIGUSR1)
    run.eventually((folder / str(process.pid)).exists)
    return set((folder / str(process.pid)).read_text(encoding="utf-8").split("\n"))


@pytest.mark.parametrize("name", UNUSED)
def test_law_3_a_process_loads_what_it_needs_and_no_more(modules: dict[str, set[str]], name: str) -> None:
    assert modules[name] >= USED[name]
    assert modules[name] & UNUSED[name] == set()
