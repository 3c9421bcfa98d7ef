"""Which transitions are shown: compared with sorting all of them, one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpsr_apex.inspection.moments import (
    Moment,
    action_name,
    choose_kinds,
    find_moment,
    moments_in,
    number,
    signed,
    sum_up_recycled,
)
from dpsr_apex.replay.memory import DpsrReplay
from tests.unit.inspection.played import CONFIG, cartpole, corridor, filled, played, with_gains


@pytest.fixture(scope="module")
def replay() -> DpsrReplay:
    """More came than there is room for, and every third that is stored counts as recycled."""
    full = filled(played(cartpole(), 90))
    gains = np.where(np.arange(full.size) % 3 == 0, np.linspace(-1, 2, full.size), np.nan).astype(np.float32)
    return with_gains(full, gains)


def all_of(replay: DpsrReplay) -> list[Moment]:
    return moments_in(replay, np.arange(replay.size))


def test_a_moment_says_what_the_replay_knows(replay: DpsrReplay) -> None:
    for slot, moment in enumerate(all_of(replay)):
        row = replay.read(np.array([moment.identity]))
        assert moment.identity == replay.identities[slot]
        assert (moment.priority, moment.birth) == (replay.priorities[slot], replay.births[slot])
        assert moment.age == replay.t - moment.birth
        assert (moment.s_tm1, moment.s_t, moment.snapshot) == (row.s_tm1[0], row.s_t[0], row.snapshots[0])
        assert (moment.action, moment.reward, moment.terminal) == (row.a_tm1[0], row.r_t[0], row.terminal[0])
        assert moment.recycled == (slot % 3 == 0)


def test_each_kind_is_what_sorting_everything_gives(replay: DpsrReplay) -> None:
    everything = all_of(replay)
    kinds = {kind.title: [moment.identity for moment in kind.moments] for kind in choose_kinds(replay, 7)}
    recycled = [moment for moment in everything if moment.recycled]
    for title, among, key in (
        ("highest priority", everything, lambda moment: (-moment.priority, moment.identity)),
        ("lowest priority", everything, lambda moment: (moment.priority, moment.identity)),
        ("oldest survivors", everything, lambda moment: (moment.birth, moment.identity)),
        ("greatest gain by recycling", recycled, lambda moment: (-moment.gain, moment.identity)),
    ):
        assert kinds[title] == [moment.identity for moment in sorted(among, key=key)][:7], title
    assert len(kinds) == 4


def test_more_than_there_are_cannot_be_shown(replay: DpsrReplay) -> None:
    sizes = [len(kind.moments) for kind in choose_kinds(replay, 1_000)]
    assert sizes == [replay.size, replay.size, replay.size, math.ceil(replay.size / 3)]


def test_an_empty_replay_has_nothing_to_show() -> None:
    empty = DpsrReplay(CONFIG, 1_000, np.random.default_rng(0))
    assert [kind.moments for kind in choose_kinds(empty, 5)] == [[], [], [], []]
    assert sum_up_recycled(empty).stored == 0


def test_recycled_ones_are_summed_up(replay: DpsrReplay) -> None:
    gains = [moment.gain for moment in all_of(replay) if moment.recycled]
    summed = sum_up_recycled(replay)
    assert summed.stored == len(gains)
    assert summed.mean_gain == pytest.approx(np.mean(gains))
    assert summed.gaining == np.mean([gain > 0 for gain in gains])


def test_a_moment_is_found_by_its_identity_alone(replay: DpsrReplay) -> None:
    wanted = int(replay.identities[5])
    found = find_moment(replay, wanted)
    assert found is not None
    assert found.identity == wanted
    for stranger in (wanted + CONFIG.capacity, 10**30, -1):
        assert find_moment(replay, stranger) is None


def test_actions_have_names_where_the_environment_has_some() -> None:
    assert action_name(cartpole(), 1) == "right"
    assert action_name(corridor(), 0) == "left"
    assert action_name(None, 3) == "action 3"


def test_numbers_are_short() -> None:
    assert (number(0.0123456), number(12.0), number(1e-6), number(123456.0)) == (
        "0.0123",
        "12.0000",
        "1e-06",
        "1.23e+05",
    )
    assert (signed(0.5), signed(-0.5)) == ("+0.5000", "−0.5000")
