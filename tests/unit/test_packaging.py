"""The files that describe the package agree with each other, and name only what exists."""

from __future__ import annotations

import re
import tomllib

import yaml

import dpsr_apex
from dpsr_apex import __version__
from tests.documents import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCKED = {
    re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower()
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    if "==" in line
}


def _names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[\w.-]+", requirement) for requirement in requirements)
    return {re.sub(r"[-_.]+", "-", match[0]).lower() for match in found if match}


UNPINNED = {  # packages of extras that no test needs, because a stand-in replaces them
    "mlflow-skinny",  # needs an older importlib_metadata than the pinned one
    "trackio",  # needs a web framework and its many dependencies
}


def test_every_dependency_is_pinned() -> None:
    extras = PROJECT["optional-dependencies"].values()
    wanted = _names(PROJECT["dependencies"] + [name for extra in extras for name in extra])
    assert wanted - LOCKED == UNPINNED


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    versions = re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert versions[0] == __version__
    assert versions == sorted(set(versions), key=lambda version: [int(part) for part in version.split(".")])[::-1]


def test_the_citation_describes_this_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # required by the format
    assert (citation["title"], citation["version"], citation["license"], citation["abstract"]) == (
        *(PROJECT["name"], __version__, PROJECT["license"]),
        PROJECT["description"],
    )
    assert citation["authors"] == PROJECT["authors"]
    assert citation["authors"][0]["name"] in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_workflows_and_hooks_run_what_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    steps = []
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
        steps += [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in steps
    assert (ROOT / ".ci" / "run").exists()
    assert {step.split()[1] for step in steps if step.startswith("make ")} <= targets
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    assert {hook["entry"].split()[0] for hook in hooks} == {".venv/bin/ruff", ".venv/bin/python"}


def test_the_package_is_marked_as_typed() -> None:
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert (ROOT / dpsr_apex.__name__ / "py.typed").exists()
