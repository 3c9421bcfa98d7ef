"""The modules that the real processes of a run have imported: each loads what it needs, and no more.

The run is started in a folder with an environment of the user, and with files that have the names of other modules.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.system.hooks.sitecustomize import FOLDER
from tests.system.runs import Run, training

HOOKS = Path(__file__).with_name("hooks")
FOR_TRAINING = {"torch._dynamo"}  # takes two seconds; loaded with the first optimizer
OTHER_GAMES = {"ale_py", "minatar", "minigrid"}
INSTALLED = {"numpy", "torch", "zmq", "msgpack", "gymnasium", "safetensors", "dpsr_apex"}
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
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the run is started; a decoy that is imported writes its name to `imported`."""
    place = tmp_path_factory.mktemp("run")
    for name in filter(find_spec, INSTALLED | sys.stdlib_module_names):
        (place / f"{name}.py").write_text(f"open({str(place / 'imported')!r}, 'a').write(__name__ + ' ')\n")
    return place


@pytest.fixture(scope="module")
def modules(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """The modules of each process, by its name, in a run that has trained, recycled, logged and evaluated."""
    folder, path = tmp_path_factory.mktemp("modules"), place / "run"
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


def test_a_file_in_the_current_directory_never_takes_the_place_of_a_module(
    modules: dict[str, set[str]], place: Path
) -> None:
    assert {name for name in modules if "tasks" in modules[name]} >= {"actor-0", "evaluator"}, "it is importable"
    assert not (place / "imported").exists(), (place / "imported").read_text()
