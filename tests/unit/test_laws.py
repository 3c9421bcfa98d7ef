"""The laws of the architecture that a machine can check: a pure core, one home for each library, nothing unpickled."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dpsr_apex"

PURE_CORE_MAY_IMPORT = {
    *("__future__", "abc", "collections", "dataclasses", "enum", "functools", "itertools", "math", "typing"),
    *("numpy", "numba", "dpsr_apex.replay", "dpsr_apex.config"),
}
PASSED_IN = {"Generator", "BitGenerator", "SeedSequence"}  # of numpy.random; all else has or makes a state of its own
HEAVY = {"torch", "zmq", "msgpack", "ale_py", "minatar", "gymnasium", "ray"}
ONE_HOME = ("zmq", "msgpack", "ale_py", "minatar", "ray")
HOMES_OF_TORCH = ("agent", "roles")
UNPICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "multiprocessing"}

Sources = dict[Path, ast.Module]


def sources(*folders: Path) -> Sources:
    files = [file for folder in folders for file in sorted(folder.rglob("*.py")) if ".venv" not in str(file)]
    return {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}


def imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names of all modules that a file imports, at any depth, by statement or by a literal name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            yield ast.unparse(node.args[0]).strip("'\"")


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
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
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


def test_law_3_torch_stays_where_one_acts_or_learns() -> None:
    homes = {file.relative_to(PACKAGE).parts[0] for file in who_imports("torch", sources(PACKAGE))}
    assert homes <= set(HOMES_OF_TORCH)


def test_law_3_the_replay_server_loads_neither_torch_nor_the_emulator() -> None:
    servers = [name for name in module_names("roles") if "replay" in name]
    assert loaded_by(["dpsr_apex.wire.messages", *servers]) & {"torch", "ale_py", "minatar"} == set()


def test_law_5_nothing_is_unpickled() -> None:
    trees = sources(PACKAGE, ROOT / "tests", ROOT / "benchmarks", ROOT / "launch")
    assert {file.name: found for file, tree in trees.items() if (found := unpickling(tree))} == {}


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
