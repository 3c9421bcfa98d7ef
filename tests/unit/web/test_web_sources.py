"""What is read from a checkpoint is what the replay in it has, whichever part is read, and also when it disappears."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpsr_apex.config_files import load_config
from dpsr_apex.inspection.opening import open_run
from dpsr_apex.inspection.stored import find_transitions
from dpsr_apex.record.checkpoint import list_checkpoints
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.replay.survey import Survey
from dpsr_apex.web import Refusal
from dpsr_apex.web import state as state_module
from dpsr_apex.web.channel import decode_transition, encode_transition
from dpsr_apex.web.map_bytes import DIAMOND, TERMINAL, pack_survey
from dpsr_apex.web.open_run import STARRED, OpenRun
from dpsr_apex.web.pool import Pool
from dpsr_apex.web.runs import Runs
from dpsr_apex.web.sources import CheckpointSource
from dpsr_apex.web.stars import (
    LONGEST_NOTE,
    add_star,
    change_note,
    export_stars,
    list_stars,
    read_stars,
    remove_star,
)
from dpsr_apex.web.state import State


def newest(run_dir: Path) -> CheckpointSource:
    return CheckpointSource(list_checkpoints(run_dir / "checkpoints")[-1], load_config(run_dir / "config.toml"))


def columns_of(content: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read a survey as a browser does."""
    end = 4 + int.from_bytes(content[:4], "little")
    head = json.loads(content[4:end])
    columns = {}
    for name, kind in head["columns"].items():
        assert end % 8 == 0, "typed arrays must be aligned"
        columns[name] = np.frombuffer(content, f"<{kind}", head["rows"], end)
        end += -(-columns[name].nbytes // 8) * 8
    assert end == len(content)
    return head, columns


def rows_of(survey: Survey, columns: dict[str, NDArray[Any]]) -> NDArray[np.intp]:
    """The rows of a survey that a browser has received."""
    order = np.argsort(survey.identities)
    return order[np.searchsorted(survey.identities, columns["identity"], sorter=order)]


def test_a_survey_of_a_checkpoint_is_that_of_its_replay(trained: Path) -> None:
    replay = open_run(trained).replay
    found, expected = newest(trained).survey(), replay.survey(1_000_000)
    for name in Survey._fields:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def test_every_transition_of_a_checkpoint_is_found_as_it_is_stored(trained: Path) -> None:
    replay, source = open_run(trained).replay, newest(trained)
    expected = find_transitions(replay, replay.identities)
    found = {one.plain.identity: one for one in source.find([one.identity for one in expected])}
    assert len(found) == len(expected)
    for one in expected:
        plain = found[one.identity].plain
        assert str(plain) == str(one)  # as text, because a gain may be NaN
        assert decode_transition(*encode_transition(plain))._replace(gain=0.0) == one._replace(gain=0.0)
    assert any(one.recycles > 0 and one.origin >= 0 for one in expected)
    assert source.find([10**12, -1]) == []


def test_a_survey_for_a_browser_has_all_transitions_by_kind(trained: Path) -> None:
    survey = newest(trained).survey()
    head, columns = columns_of(pack_survey(survey))
    assert (head["t"], head["rows"], head["surveyed"], head["stored"], head["capacity"]) == (600, 200, 200, 200, 200)
    rows = rows_of(survey, columns)
    assert sorted(rows.tolist()) == list(range(200))
    assert (np.diff(columns["look"].astype(int) % DIAMOND) >= 0).all()
    assert columns["age"].tolist() == (survey.t - survey.births[rows]).tolist()
    assert (columns["look"] % DIAMOND == TERMINAL).tolist() == survey.terminals[rows].tolist()
    assert (columns["look"] >= DIAMOND).tolist() == (survey.depths[rows] > 0).tolist()
    for name in ("gain", "priority", "reward", "position", "depth", "recycles", "action"):
        column = getattr(survey, "priorities" if name == "priority" else name if name == "recycles" else f"{name}s")
        np.testing.assert_array_equal(columns[name], column[rows], err_msg=name)
    assert head["kinds"] == np.bincount(columns["look"] % DIAMOND, minlength=4).tolist()
    assert (columns["look"] >= DIAMOND).any()


def test_a_part_of_a_survey_has_the_kinds_and_ranges_of_all_of_it(trained: Path) -> None:
    survey = newest(trained).survey()
    whole, columns = columns_of(pack_survey(survey))
    part, chosen = columns_of(pack_survey(survey, 20))
    assert (part["rows"], part["surveyed"]) == (20, 200)
    assert sorted(rows_of(survey, chosen) // 10) == list(range(20)), "it is spread over all slots"
    for name in ("kinds", "ranges", "usual", "t", "stored"):
        assert part[name] == whole[name], name
    for name, (least, greatest) in whole["ranges"].items():
        assert (least, greatest) == (np.nanmin(columns[name]), np.nanmax(columns[name])), name
    for name, column in chosen.items():
        places = np.searchsorted(columns["identity"], chosen["identity"], sorter=np.argsort(columns["identity"]))
        np.testing.assert_array_equal(column, columns[name][np.argsort(columns["identity"])[places]], err_msg=name)


@pytest.mark.parametrize(
    ("rewards", "usual", "looks"),
    [
        ([0, 0, 0, 1, 0, 0], [0, 0], [0, 5, 5, 6, 3, 7]),  # as in most games
        ([1, 1, 1, 0, 1, 1], [1, 1], [0, 5, 5, 6, 3, 7]),  # as in CartPole
        ([3, 1, 1, 2, 3, 1], [3, 1], [0, 5, 5, 6, 3, 7]),  # with returns of three steps
        ([0, 1, 2, 3, 4, 5], [None, None], [0, 5, 5, 5, 3, 7]),
        ([], [None, None], []),
    ],
)
def test_a_look_is_the_rarest_kind_and_whether_it_is_recycled(
    rewards: list[float], usual: list[float | None], looks: list[int]
) -> None:
    count = len(rewards)
    blank, depths = np.zeros(count, np.int32), np.array([0, 3, 3, 3, 0, 5][:count], np.int32)
    survey = Survey(
        t=9,
        capacity=9,
        stored=count,
        identities=np.arange(count),
        births=blank.astype(np.int64),
        priorities=blank.astype(np.float32),
        gains=np.full(count, np.nan, np.float32),
        depths=depths,
        recycles=blank,
        actions=blank,
        rewards=np.array(rewards, np.float32),
        terminals=np.arange(count) > 3,
        positions=blank.astype(np.uint32),
    )
    head, columns = columns_of(pack_survey(survey))
    assert (head["usual"], head["ranges"]["gain"], head["rows"]) == (usual, None, count)
    assert columns["look"][np.argsort(columns["identity"])].tolist() == looks


def test_a_checkpoint_that_disappears_stays_readable_and_is_then_reported(run_dir: Path) -> None:
    opened = OpenRun("cart pole", RunDirectory(run_dir))
    try:
        label, survey = opened.survey("")
        assert label == "600"
        identity = int(survey.identities[5])
        shutil.rmtree(run_dir / "checkpoints")
        assert opened.find_one("600", identity)[1].plain.identity == identity
        with pytest.raises(Refusal, match="no checkpoint at t = 400 any more"):
            opened.survey("400")
        with pytest.raises(Refusal, match="no checkpoint yet"):
            opened.survey("")
        with pytest.raises(Refusal, match="was replaced, or never existed"):
            opened.find_one("", 10**9)
        with pytest.raises(Refusal, match="not running"):
            opened.survey("live")
    finally:
        opened.close()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def garble(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize("name", ["replay.safetensors", "replay.json", "manifest.json"])
@pytest.mark.parametrize("damage", [truncate, garble, Path.unlink])
def test_a_damaged_checkpoint_is_refused_with_the_reason(run_dir: Path, name: str, damage: object) -> None:
    path = list_checkpoints(run_dir / "checkpoints")[-1]
    assert callable(damage)
    damage(path / name)
    with pytest.raises(Refusal, match="step_000000000600"):
        newest(run_dir)


def test_runs_that_are_in_use_stay_open_however_many_there_are(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "RUNS_OPEN", 2)
    for name in "abcd":
        shutil.copytree(run_dir, run_dir.parent / name)

    async def opened() -> tuple[list[str], list[str]]:
        state = State(Runs(run_dir.parent), Pool(1))
        for name in "abc":
            await state.open_run(name)
        in_use = list(state.open_runs)
        state.open_runs["a"].used_at = state.open_runs["b"].used_at = time.monotonic() - 2 * state_module.RUN_IN_USE
        await state.open_run("d")
        kept = list(state.open_runs)
        for opened in state.open_runs.values():
            opened.close()
        return in_use, kept

    assert asyncio.run(opened()) == (["a", "b", "c"], ["c", "d"])


# Stars.


def test_a_star_keeps_a_moment_that_the_replay_replaces(run_dir: Path) -> None:
    run = RunDirectory(run_dir)
    opened = OpenRun("cart pole", run)
    earlier = opened.sources()[1]
    _, survey = opened.survey(earlier)
    identity = int(survey.identities[3])
    _, found = opened.find_one(earlier, identity)
    add_star(run, "Walk", survey.t, found, "a fall ✓")
    shutil.rmtree(run_dir / "checkpoints")
    label, again = opened.find_one("", identity)
    opened.close()
    assert label == STARRED
    for name in ("s_tm1", "s_t", "snapshot", "action", "reward", "terminal", "n_steps", "priority", "depth"):
        assert getattr(again.plain, name) == getattr(found.plain, name), name
    (listed,) = list_stars(run)
    assert (listed["identity"], listed["note"], listed["action"]) == (str(identity), "a fall ✓", found.plain.action)


def test_stars_are_changed_removed_and_exported(run_dir: Path) -> None:
    run, source = RunDirectory(run_dir), newest(run_dir)
    identities = source.survey().identities[:3].tolist()
    for found in source.find(identities):
        add_star(run, "Walk", 600, found, "")
    change_note(run, identities[1], "second")
    remove_star(run, identities[0])
    remove_star(run, 10**9)
    assert {one["identity"]: one["note"] for one in list_stars(run)} == {
        str(identities[1]): "second",
        str(identities[2]): "",
    }
    stars = read_stars(run)
    assert stars is not None
    assert export_stars(run, None) == run.moments.read_bytes()
    assert len(export_stars(run, [identities[1]])) < run.moments.stat().st_size
    for refused in (
        lambda: change_note(run, 7, "x"),
        lambda: change_note(run, identities[1], "x" * (LONGEST_NOTE + 1)),
        lambda: export_stars(run, [7]),
        lambda: add_star(run, "Another", 600, source.find(identities[:1])[0], ""),
    ):
        with pytest.raises(Refusal):
            refused()
    for identity in identities[1:]:
        remove_star(run, identity)
    assert not run.moments.exists()
    run.moments.write_bytes(b"damaged")
    with pytest.raises(Refusal, match="not a file of moments"):
        list_stars(run)
