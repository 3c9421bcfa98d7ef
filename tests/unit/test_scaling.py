"""The tables of docs/scaling.md follow from the published measurements."""

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


def test_the_measured_maximum_load_gives_a_core_load_of_1() -> None:
    without_keys = COSTS._replace(chunk_encryption=0.0, batch_encryption=0.0)
    measured = Fleet(1, COSTS.mixed_in, batches=COSTS.mixed_out)
    assert scaling.replay_core(without_keys, measured) == pytest.approx(1.0)
    assert scaling.max_transitions(without_keys, COSTS.mixed_out) == pytest.approx(COSTS.mixed_in)
    assert scaling.replay_core(COSTS, measured) > 1.0


def test_an_actor_receives_each_version_of_the_weights_at_most_once() -> None:
    assert Fleet(10, steps=1_000, weights_period=100, batches=3).weights_sent == 30
    assert Fleet(10, steps=1_000, weights_period=500, batches=3).weights_sent == 20


def test_a_limit_is_the_largest_number_of_actors_with_a_load_of_at_most_1() -> None:
    rows = re.findall(r"^\| (.+) \| ([\d,]+) \| ([\d,]+) \|$", scaling.show_limits(COSTS), re.MULTILINE)
    limits = {resource: int(limit.replace(",", "")) for resource, _, limit in rows}
    steps = 1 / COSTS.step
    loads: dict[str, Callable[[int], float]] = {
        "replay core": lambda n: scaling.replay_core(COSTS, Fleet(n, steps)),
        "transitions on the replay's link, 1 Gbit/s": lambda n: scaling.replay_link(COSTS, Fleet(n, steps), 1),
        "weights every 1,000 steps, 10 Gbit/s": lambda n: scaling.weights_link(COSTS, Fleet(n, steps, 1_000), 10),
        "weights every 100 steps, encrypted by one thread": lambda n: scaling.weights_core(COSTS, Fleet(n, steps)),
        "one network within 10 s if all actors wait, 1 Gbit/s": lambda n: scaling.weights_latency(COSTS, n, 1, 1) / 10,
    }
    for resource, load in loads.items():
        assert load(limits[resource]) <= 1.0 < load(limits[resource] + 1)


def test_the_page_contains_every_table() -> None:
    shown = set(re.findall(r"<!-- bench: (\w+) -->", PAGE.read_text(encoding="utf-8")))
    assert shown == scaling.parts(RESULTS).keys()
