"""The laws of the architecture that a machine can check: pure core, one home per library, no pickle, layers."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tools.layers import EVERYWHERE, LAYERS, Import, forbidden, graph, imports_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dpsr_apex"

PURE_CORE_MAY_IMPORT = {
    *("__future__", "abc", "collections", "dataclasses", "enum", "functools", "itertools", "math"),
    *("operator", "typing"),
    *("numpy", "numba", "dpsr_apex.replay", "dpsr_apex.config"),
}
PASSED_IN = {"Generator", "BitGenerator", "SeedSequence"}  # of numpy.random; all else has or makes a state of its own
TRACKERS = ("wandb", "mlflow", "trackio")
HEAVY = {"torch", "stable_baselines3", "zmq", "msgpack", "ale_py", "minatar", "minigrid", "gymnasium", "ray", *TRACKERS}
ONE_HOME = (
    "zmq",
    "msgpack",
    "ale_py",
    "minatar",
    "minigrid",
    "tensorboard",
    "imageio_ffmpeg",
    "stable_baselines3",
    *TRACKERS,
)
HOMES = {
    "torch": {"agent", "roles", "sb3.py"},
    "ray": {"supervise"},
    "starlette": {"web"},
    "uvicorn": {"web"},
}
UNPICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "multiprocessing"}

MAY_UNPICKLE = re.compile("|".join([*UNPICKLERS, "load", "allow_pickle"]))

Sources = dict[Path, ast.Module]


def files_in(*folders: Path) -> list[Path]:
    return [file for folder in folders for file in sorted(folder.rglob("*.py")) if ".venv" not in str(file)]


def sources(*folders: Path) -> Sources:
    return {file: parsed(file) for file in files_in(*folders)}


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names of all modules that a file imports, at any depth, by statement or by a literal name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and _called(node).endswith("import_module"):
            yield ast.unparse(node.args[0]).strip("'\"")


def _called(call: ast.Call) -> str:
    """Last name of what is called: `import_module` of `importlib.import_module(...)`."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def within(name: str, parents: set[str]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def who_imports(library: str, trees: Sources) -> list[Path]:
    return [file for file, tree in trees.items() if any(within(name, {library}) for name in imports(tree))]


def impurities(tree: ast.Module) -> list[str]:
    """What in a file of the replay core reaches for more than its arguments."""
    found = [name for name in imports(tree) if not within(name, PURE_CORE_MAY_IMPORT)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in {"np.random", "numpy.random"}:
            found += [ast.unparse(node)] * (node.attr not in PASSED_IN)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"open", "print", "input", "__import__"}:
            found.append(ast.unparse(node))
    return found


def unpickling(tree: ast.Module) -> list[str]:
    """What in a file could turn bytes into arbitrary objects."""
    found = [name for name in imports(tree) if within(name, UNPICKLERS)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "load" and ast.unparse(node) == "torch.load":
            found.append("torch.load")
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.append(ast.unparse(node))
    return found


def loaded_by(modules: list[str]) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after importing these."""
    program = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(output.stdout.split())


def module_names(folder: str) -> list[str]:
    files = sorted((PACKAGE / folder).rglob("*.py"))
    parts = [file.relative_to(ROOT).with_suffix("").parts for file in files]
    return [".".join(part for part in names if part != "__init__") for names in parts]


def test_law_1_the_replay_core_is_pure() -> None:
    core = sources(PACKAGE / "replay")
    assert core
    assert {file.name: found for file, tree in core.items() if (found := impurities(tree))} == {}


def test_law_1_importing_the_replay_core_loads_nothing_heavy() -> None:
    assert loaded_by(module_names("replay")) & HEAVY == set()


@pytest.mark.parametrize("library", ONE_HOME)
def test_law_3_one_module_at_most_imports(library: str) -> None:
    assert len(who_imports(library, sources(PACKAGE))) <= 1


@pytest.mark.parametrize("library", HOMES)
def test_law_3_a_library_stays_in_its_packages(library: str) -> None:
    homes = {file.relative_to(PACKAGE).parts[0] for file in who_imports(library, sources(PACKAGE))}
    assert homes <= HOMES[library]


def test_law_3_the_command_line_is_read_without_loading_anything_heavy() -> None:
    assert loaded_by(["dpsr_apex.cli"]) & (HEAVY | {"numpy", "numba", "rich", "matplotlib", "tensorboard"}) == set()


def test_law_5_nothing_is_unpickled() -> None:
    folders = [PACKAGE, *(ROOT / name for name in ("tests", "benchmarks", "launch", "docs", "tools"))]
    suspects = [file for file in files_in(*folders) if MAY_UNPICKLE.search(file.read_text(encoding="utf-8"))]
    assert {file.name: found for file in suspects if (found := unpickling(parsed(file)))} == {}


@pytest.fixture(scope="module")
def package_imports() -> list[Import]:
    return imports_of(PACKAGE)


def test_law_6_imports_point_downward(package_imports: list[Import]) -> None:
    assert forbidden(package_imports) == []


def test_law_6_every_part_of_the_package_is_in_a_layer_once() -> None:
    packages = {init.parent.name for init in PACKAGE.glob("*/__init__.py")}
    modules = {file.stem for file in PACKAGE.glob("*.py")}
    assert sorted(packages | modules) == sorted(part for layer in LAYERS.values() for part in layer)


PLANTED = {
    "replay/trees.py": "from dpsr_apex.wire.codec import decode",
    "record/metrics.py": "def f():\n    from dpsr_apex.processes import replay",
    "wire/keys.py": "import dpsr_apex.cli",
    "config.py": "from dpsr_apex import exploration",
    "brand_new.py": "import dpsr_apex.config",
}


def test_a_forbidden_import_would_be_noticed(tmp_path: Path) -> None:
    package = tmp_path / "dpsr_apex"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for file, line in PLANTED.items():
        with (package / file).open("a") as source:
            source.write(f"\n\n{line}\n")
    new_part, *others = forbidden(imports_of(package))
    assert new_part.startswith("brand_new: not in any layer")
    assert sorted(line.partition(":")[0] for line in others) == sorted(
        f"dpsr_apex/{file}" for file in list(PLANTED)[:4]
    )


def test_a_relative_import_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dpsr_apex").mkdir()
    (tmp_path / "dpsr_apex" / "config.py").write_text("from . import cli\n")
    with pytest.raises(ValueError, match="relative import"):
        imports_of(tmp_path / "dpsr_apex")


def test_law_6_the_graph_has_no_cycle(package_imports: list[Import]) -> None:
    edges = graph([one for one in package_imports if one.imported not in EVERYWHERE])
    while leaves := [part for part, below in edges.items() if not set(below) & edges.keys()]:
        for leaf in leaves:
            del edges[leaf]
    assert edges == {}


@pytest.mark.parametrize(
    "broken",
    [
        "import torch",
        "def f():\n    from torch import nn",
        "import time",
        "from dpsr_apex.envs import make",
        "x = np.random.default_rng()",
        "np.random.seed(0)",
        "open('file')",
    ],
)
def test_an_impure_core_would_be_noticed(broken: str) -> None:
    assert impurities(ast.parse(broken))


@pytest.mark.parametrize(
    "broken",
    [
        "import pickle",
        "from pickle import loads",
        "importlib.import_module('pickle')",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
    ],
)
def test_unpickling_would_be_noticed(broken: str) -> None:
    assert unpickling(ast.parse(broken))


def test_what_the_laws_allow_passes() -> None:
    allowed = "import numpy as np\nfrom dpsr_apex.replay.trees import f\ndef g(rng: np.random.Generator): ..."
    assert impurities(ast.parse(allowed)) == []
    assert unpickling(ast.parse("np.load(path, allow_pickle=False)\nsafetensors.numpy.load(data)")) == []


def test_a_heavy_module_would_be_seen_in_the_subprocess() -> None:
    assert "gymnasium" in loaded_by(["gymnasium"])
