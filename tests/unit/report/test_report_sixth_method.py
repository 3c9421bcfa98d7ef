"""A method added to the table appears in reports, in its own colour, without any other change."""

from __future__ import annotations

import base64
import csv
import re
from pathlib import Path

import numpy as np
import pytest

from dpsr_apex.config import SETTINGS, ReplayConfig
from dpsr_apex.kinds import OneOf
from dpsr_apex.methods import METHODS, Method
from dpsr_apex.replay.records import Arrivals, Floats
from dpsr_apex.replay.removers import REMOVERS
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.slots import SlotIndex
from dpsr_apex.replay.trees import Slots
from dpsr_apex.report.command import report_runs
from tests.unit.replay.naive import transitions_of
from tests.unit.replay.twins import make_config, make_rows
from tests.unit.report.made_runs import make_run

COLOUR = "#117733"
SIXTH = Method("per_random", "proportional", "random", "none", "PER with random replacement", "–", COLOUR, "P")


class AnyTransition:
    """A transition chosen uniformly at random is replaced."""

    is_ring = False

    def __init__(self, _config: ReplayConfig, index: SlotIndex) -> None:
        self._index = index

    def replace(self, arrivals: Arrivals, rng: np.random.Generator) -> tuple[Slots, Floats]:
        """Choose a slot for each arrival, perhaps that of an earlier one."""
        slots = rng.integers(self._index.identities.size, size=len(arrivals.transitions))
        return slots, self._index.write(slots, arrivals)


@pytest.fixture(autouse=True)
def sixth_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the method and its remover, as a line in either table would."""
    monkeypatch.setitem(REMOVERS, "random", AnyTransition)
    monkeypatch.setitem(METHODS, SIXTH.name, SIXTH)
    setting = SETTINGS["replay.method"]  # its names were read from METHODS when config was imported
    assert isinstance(setting.kind, OneOf)
    monkeypatch.setitem(SETTINGS, "replay.method", setting._replace(kind=OneOf(tuple(METHODS))))


def pictures_of(page: Path) -> dict[str, str]:
    """Return the SVG text of each picture of a page by its alternative text."""
    image = r'<img src="data:image/svg\+xml;base64,([^"]+)"[^>]* alt="([^"]+)"'
    found = re.findall(image, page.read_text(encoding="utf-8"))
    return {alt: base64.b64decode(svg).decode() for svg, alt in found}


def test_the_replay_uses_the_parts_of_a_new_method() -> None:
    replay = Replay(make_config(SIXTH.name, capacity=50), 1_000, np.random.default_rng(0))
    assert replay.insert(transitions_of(make_rows(0, 500))) == []
    assert replay.check_valid() == (True, "")
    assert replay.counters.replaced == 450
    assert replay.births.min() <= 450  # with the oldest replaced, all would be among the last 50


def test_a_report_includes_a_new_method_in_its_own_colour(tmp_path: Path) -> None:
    for method, level in (("uniform", 80), (SIXTH.name, 120)):
        for seed in range(2):
            make_run(tmp_path / f"{method}{seed}", method=method, seed=seed, level=level)
    assert report_runs([tmp_path], None) == 0

    page = tmp_path / "report" / "index.html"
    assert f"<title>uniform and {SIXTH.name} in CartPole-v1" in page.read_text(encoding="utf-8")
    pictures = pictures_of(page)
    about_it = {alt for alt in pictures if SIXTH.name in alt and "robability" not in alt}  # those compare pairs
    assert about_it == {alt for alt, svg in pictures.items() if COLOUR in svg}
    assert len(about_it) >= 3
    for name in ("curves", "final", "throughput", "replay"):
        with (page.parent / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            groups = dict.fromkeys(row["group"] for row in csv.DictReader(file))
        assert list(groups) == ["uniform", SIXTH.name], name  # in the order of the table
