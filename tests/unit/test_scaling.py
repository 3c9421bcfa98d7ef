"""The tables of docs/scaling.md follow from what was measured."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from benchmarks import scaling
from benchmarks.publish import PUBLISHED
from benchmarks.scaling import Fleet

RESULTS = json.loads((PUBLISHED / "results.json").read_text(encoding="utf-8"))
WIRE = json.loads((scaling.FOLDER / "wire_costs.json").read_text(encoding="utf-8"))
COSTS = scaling.load_costs(RESULTS, WIRE)
PAGE = scaling.FOLDER.with_suffix(".md")


def test_the_load_that_filled_the_core_when_it_was_measured_fills_it_here() -> None:
    without_keys = COSTS._replace(chunk_sealing=0.0, batch_sealing=0.0)
    measured = Fleet(1, COSTS.mixed_in, batches=COSTS.mixed_out)
    assert scaling.replay_core(without_keys, measured) == pytest.approx(1.0)
    assert scaling.most_transitions(without_keys, COSTS.mixed_out) == pytest.approx(COSTS.mixed_in)
    assert scaling.replay_core(COSTS, measured) > 1.0


def test_nobody_gets_more_networks_than_there_are() -> None:
    assert Fleet(10, steps=1_000, weights_period=100, batches=3).answers == 30
    assert Fleet(10, steps=1_000, weights_period=500, batches=3).answers == 20


def test_a_limit_is_the_last_number_of_actors_that_fits() -> None:
    rows = re.findall(r"^\| (.+) \| ([\d,]+) \| ([\d,]+) \|$", scaling.show_limits(COSTS), re.MULTILINE)
    limits = {what: int(most.replace(",", "")) for what, _, most in rows}
    steps = 1 / COSTS.step
    shares: dict[str, Callable[[int], float]] = {
        "the replay's core": lambda n: scaling.replay_core(COSTS, Fleet(n, steps)),
        "transitions on the replay's line, 1 Gbit/s": lambda n: scaling.replay_line(COSTS, Fleet(n, steps), 1),
        "weights every 1,000 steps, 10 Gbit/s": lambda n: scaling.weights_line(COSTS, Fleet(n, steps, 1_000), 10),
        "weights every 100 steps, sealed by one thread": lambda n: scaling.weights_core(COSTS, Fleet(n, steps)),
        "one network, within 10 s when all wait, 1 Gbit/s": lambda n: scaling.answer_time(COSTS, n, 1, 1) / 10,
    }
    for what, share in shares.items():
        assert share(limits[what]) <= 1.0 < share(limits[what] + 1)


def test_the_page_shows_every_table() -> None:
    shown = set(re.findall(r"<!-- bench: (\w+) -->", PAGE.read_text(encoding="utf-8")))
    assert shown == scaling.parts(RESULTS).keys()
