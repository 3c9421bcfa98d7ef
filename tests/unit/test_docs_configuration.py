"""docs/configuration.md is what the dataclasses say."""

from __future__ import annotations

import re

from docs.configuration import PAGE, UNITS, Comment, comments_of, write_page
from dpsr_apex.config import FIXED, SECTIONS, SETTINGS

DIMENSIONLESS = {
    "adam_epsilon",
    "start_share",
    "discount",
    "gradient_clip",
    "epsilon",
    "seed",
    "priority_floor",
    "reward_limit",
    "recycle_exploration",
    "recycle_share",
    "exponent_tolerance",
}


def comments() -> dict[str, Comment]:
    sections = {section: comments_of(kind) for section, kind in SECTIONS.items()}
    return {f"{section}.{name}": comment for section, found in sections.items() for name, comment in found.items()}


def test_the_page_is_the_one_that_make_docs_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page()


def test_every_setting_is_there_once_with_its_range_its_unit_and_whether_it_is_fixed() -> None:
    rows = dict(re.findall(r"^\| `(\w+\.\w+)` \| .+? \| .+? \| (.+) \|$", write_page(), re.MULTILINE))
    assert list(rows) == list(SETTINGS)
    found = comments()
    for key, values in rows.items():
        assert str(SETTINGS[key].range or "") in values
        assert found[key].unit in values
        assert values.endswith("*fixed*") == (key in FIXED)


def test_every_count_and_duration_has_a_unit_and_every_setting_a_meaning() -> None:
    found = comments()
    assert found.keys() == SETTINGS.keys()
    assert all(comment.meaning for comment in found.values())
    without = {key for key, setting in SETTINGS.items() if setting.kind in (int, float) and not found[key].unit}
    assert {key.split(".")[1] for key in without} == DIMENSIONLESS
    assert {comment.unit for comment in found.values()} == {"", *UNITS}


def test_a_comment_is_split_into_symbol_unit_and_meaning() -> None:
    found = comments()
    assert found["replay.capacity"][:2] == ("N", "transitions")
    assert found["replay.sampling_exponent"][:2] == ("alpha(t)", "")
    assert found["env.stack"][:2] == ("", "frames")
    assert found["actor.ladder"][:2] == ("", "")
