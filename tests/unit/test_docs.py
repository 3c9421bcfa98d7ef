"""The examples and commands of the README and the documentation work, and their links and paths exist."""

from __future__ import annotations

import argparse
import ast
import re
import runpy
import tomllib
from functools import cache
from pathlib import Path

import pytest

from dpsr_apex.cli import parser
from dpsr_apex.config_files import load_config, shipped_experiments
from dpsr_apex.envs.check import check_restore
from dpsr_apex.experiment.grid import load_experiment
from tests.documents import PAGES, ROOT, Block, blocks, blocks_of, save_files, without_blocks

COMMANDS = [
    pytest.param(words, block, id=f"{block.title} {' '.join(words)}")
    for block in blocks("sh")
    for words in block.commands
]
EXPERIMENTS = ROOT / "docs" / "experiments.md"
LEAST_LITERAL = 12  # characters of a quoted message that must be literal text of the code, beside inserted values

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder from which modules can be imported; return it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.title)
def test_every_example_in_python_runs(block: Block, workplace: Path) -> None:
    save_files(block.page, workplace)
    script = workplace / (block.saved_as or "example.py")
    script.write_text(block.text, encoding="utf-8")
    runpy.run_path(str(script))


@by_page
def test_every_environment_that_is_shown_can_be_restored(page: Path, workplace: Path) -> None:
    save_files(page, workplace)
    checked = {name for block in blocks_of(page) for words in block.commands if words[0] == "check" for name in words}
    shown = {path.stem for path in workplace.glob("*.py") if "def step(" in path.read_text(encoding="utf-8")}
    names = {name for name in checked if name.partition(":")[0] in shown}
    assert {name.partition(":")[0] for name in names} == shown
    for name in names:
        result = check_restore(name, moments=50)
        assert result.passed, result.problem
        assert result.game_ends > 0


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: block.title)
def test_every_example_in_toml_is_a_config_or_an_experiment(block: Block, workplace: Path) -> None:
    save_files(block.page, workplace)
    file = workplace / "example.toml"
    file.write_text(block.text, encoding="utf-8")
    if "grid" in tomllib.loads(block.text):
        assert load_experiment(file).plans
    else:
        load_config(file)


@pytest.mark.parametrize(("words", "block"), COMMANDS)
def test_every_command_parses(words: list[str], block: Block, workplace: Path) -> None:
    if "--help" in words:
        return
    parsed = parser().parse_args(words)
    assert callable(parsed.run)
    save_files(block.page, workplace)
    if words[0] == "train":
        load_config(parsed.config, base=parsed.base, params=parsed.params, overrides=parsed.set)
    if words[0] == "experiment":
        load_experiment(parsed.file)


def test_every_shipped_experiment_is_listed_with_what_it_runs() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (\d+) \| ([\d,]+) \|$", EXPERIMENTS.read_text(), re.MULTILINE)
    planned = {name: load_experiment(name).plans for name in shipped_experiments()}
    listed = {name: (int(runs), int(steps.replace(",", ""))) for name, runs, steps in rows}
    assert listed == {name: (len(plans), plans[0].config.run.total_steps) for name, plans in planned.items()}


@by_page
def test_every_command_in_the_text_exists_with_its_options(page: Path) -> None:
    for line in re.findall(r"`dpsr-apex ([^`]+)`", without_blocks(page)):
        command, *words = line.split()
        options = _options(command)
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, line


def _options(command: str) -> set[str]:
    actions = parser()._actions  # argparse has no public accessor
    (commands,) = (action for action in actions if isinstance(action, argparse._SubParsersAction))
    assert command in commands.choices, command
    return {option for action in commands.choices[command]._actions for option in action.option_strings}


@by_page
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)(?![a-z-]*/)", page.read_text(), re.MULTILINE)) <= targets


@by_page
def test_every_link_and_picture_exists(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        path, _, heading = target.partition("#")
        if "://" in target:
            continue
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not heading or heading in _headings(found), target


def _headings(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@by_page
def test_every_file_that_is_named_exists(page: Path) -> None:
    folders = "benchmarks|configs|docs|dpsr_apex|examples|launch|tests|tools"
    for name in re.findall(rf"`((?:{folders})/[^`\s]*)`", without_blocks(page)):
        assert list(ROOT.glob(name.rstrip("/"))), name


@by_page
def test_every_quoted_message_is_one_of_the_code(page: Path) -> None:
    quoted = [line for block in blocks_of(page) if block.language == "text" for line in block.text.splitlines() if line]
    assert [line for line in quoted if not any(message.search(line) for message in _messages())] == []


def test_a_message_that_the_code_does_not_have_would_be_noticed() -> None:
    assert not any(message.search("The flux capacitor of actor-3 is empty") for message in _messages())


@cache
def _messages() -> list[re.Pattern[str]]:
    """Return a pattern for each line of text in the code, with a wildcard for each inserted value."""
    texts = [text for path in (ROOT / "dpsr_apex").rglob("*.py") for text in _texts(ast.parse(path.read_text()))]
    long = [parts for parts in texts if sum(map(len, parts)) >= LEAST_LITERAL]
    return [re.compile(".+?".join(map(re.escape, parts))) for parts in long]


def _texts(tree: ast.AST) -> list[list[str]]:
    """Return the literal parts of each line of each string that is no docstring, split at inserted values."""
    nodes = list(ast.walk(tree))
    formatted = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    inside = {id(part) for node in formatted for part in ast.walk(node) if part is not node}
    inside |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    plain = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in inside]
    joined = ["".join(_literal(part) for part in node.values) for node in formatted if id(node) not in inside]
    lines = [line for text in [*joined, *plain] if isinstance(text, str) for line in text.split("\n")]
    return [re.split(r"\0|%(?:\.\d)?[sdf]", line) for line in lines]


def _literal(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "\0"
