"""Where classes of users are imported from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dpsr_apex.imports import load_class, load_module


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.chdir(tmp_path)


def write(name: str, content: str = "class Here:\n    pass\n") -> None:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(content)


@pytest.mark.parametrize(("file", "name"), [("tasks_a.py", "tasks_a"), ("tasks_b/maze.py", "tasks_b.maze")])
def test_a_module_in_the_current_directory_is_imported(file: str, name: str) -> None:
    write(file)
    assert load_class(f"{name}:Here").__module__ == name


def test_a_module_of_a_user_can_import_its_neighbour() -> None:
    write("neighbour_of_tasks_c.py")
    write("tasks_c.py", "from neighbour_of_tasks_c import Here\n")
    assert load_class("tasks_c:Here").__module__ == "neighbour_of_tasks_c"


@pytest.mark.parametrize("name", ["queue", "colorsys", "packaging"])
def test_a_file_in_the_current_directory_is_not_imported_instead_of_a_module_of_the_same_name(name: str) -> None:
    write(f"{name}.py")
    sys.modules.pop(name, None)
    before = list(sys.path)
    write("tasks_d.py")
    load_module("tasks_d")
    assert sys.path == [*before, str(Path.cwd())]
    assert not hasattr(load_module(name), "Here")


def test_the_current_directory_is_not_importable_before_a_module_there_is_named() -> None:
    write("zlib_.py")
    before = list(sys.path)
    load_module("json.decoder")
    load_module("colorsys")
    assert sys.path == before


def test_a_module_that_does_not_exist_is_named() -> None:
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="tasks_e"):
            load_module("tasks_e.maze")
    assert sys.path.count(str(Path.cwd())) == 1
