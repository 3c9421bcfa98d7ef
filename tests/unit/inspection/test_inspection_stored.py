"""Selection of notable transitions, compared with sorting all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpsr_apex.inspection.stored import (
    StoredTransition,
    action_name,
    find_transition,
    find_transitions,
    notable_groups,
    summarize_recycled,
)
from dpsr_apex.replay.replay import Replay
from tests.unit.inspection.example_replays import CONFIG, cartpole, corridor, filled_replay, played, with_gains


@pytest.fixture(scope="module")
def replay() -> Replay:
    """A full replay with evictions, in which every third transition counts as recycled."""
    full = filled_replay(played(cartpole(), 90))
    gains = np.where(np.arange(full.size) % 3 == 0, np.linspace(-1, 2, full.size), np.nan).astype(np.float32)
    return with_gains(full, gains)


def all_of(replay: Replay) -> list[StoredTransition]:
    return find_transitions(replay, replay.identities)


def test_a_stored_transition_has_all_columns_of_the_replay(replay: Replay) -> None:
    for slot, transition in enumerate(all_of(replay)):
        row = replay.read(np.array([transition.identity]))
        assert transition.identity == replay.identities[slot]
        assert (transition.priority, transition.birth) == (replay.priorities[slot], replay.births[slot])
        assert transition.age == replay.t - transition.birth
        assert (transition.s_tm1, transition.s_t, transition.snapshot) == (row.s_tm1[0], row.s_t[0], row.snapshots[0])
        assert (transition.action, transition.reward, transition.terminal) == (
            row.a_tm1[0],
            row.r_t[0],
            row.terminal[0],
        )
        assert transition.recycled == (slot % 3 == 0)


def test_groups_match_sorting_all_transitions(replay: Replay) -> None:
    everything = all_of(replay)
    groups = {
        group.title: [transition.identity for transition in group.transitions] for group in notable_groups(replay, 7)
    }
    recycled = [transition for transition in everything if transition.recycled]
    for title, among, key in (
        ("highest priority", everything, lambda transition: (-transition.priority, transition.identity)),
        ("lowest priority", everything, lambda transition: (transition.priority, transition.identity)),
        ("oldest", everything, lambda transition: (transition.birth, transition.identity)),
        ("largest recycling gain", recycled, lambda transition: (-transition.gain, transition.identity)),
    ):
        assert groups[title] == [transition.identity for transition in sorted(among, key=key)][:7], title
    assert len(groups) == 4


def test_groups_have_at_most_all_transitions(replay: Replay) -> None:
    sizes = [len(group.transitions) for group in notable_groups(replay, 1_000)]
    assert sizes == [replay.size, replay.size, replay.size, math.ceil(replay.size / 3)]


def test_an_empty_replay_gives_empty_groups() -> None:
    empty = Replay(CONFIG, 1_000, np.random.default_rng(0))
    assert [group.transitions for group in notable_groups(empty, 5)] == [[], [], [], []]
    assert summarize_recycled(empty).stored == 0


def test_recycled_transitions_are_summarized(replay: Replay) -> None:
    gains = [transition.gain for transition in all_of(replay) if transition.recycled]
    summed = summarize_recycled(replay)
    assert summed.stored == len(gains)
    assert summed.mean_gain == pytest.approx(np.mean(gains))
    assert summed.positive_share == np.mean([gain > 0 for gain in gains])


def test_a_transition_is_found_by_its_identity(replay: Replay) -> None:
    wanted = int(replay.identities[5])
    found = find_transition(replay, wanted)
    assert found is not None
    assert found.identity == wanted
    for unknown in (wanted + CONFIG.capacity, 10**30, -1):
        assert find_transition(replay, unknown) is None


def test_action_names_come_from_the_environment() -> None:
    assert action_name(cartpole(), 1) == "right"
    assert action_name(corridor(), 0) == "left"
    assert action_name(None, 3) == "action 3"
