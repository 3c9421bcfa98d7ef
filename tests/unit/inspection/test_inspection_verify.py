"""Verification passes for stored transitions and detects every change to them."""

from __future__ import annotations

import numpy as np
import pytest

from dpsr_apex.inspection.stored import StoredTransition
from dpsr_apex.inspection.verify import verify_transition
from tests.unit.inspection.example_replays import cartpole, corridor, stored_transitions


@pytest.fixture(scope="module")
def transitions() -> list[StoredTransition]:
    return stored_transitions(cartpole(), 40)


def test_every_stored_transition_is_verified(transitions: list[StoredTransition]) -> None:
    env = cartpole()
    assert {transition.terminal for transition in transitions} == {False, True}
    for transition in transitions:
        verification = verify_transition(env, transition)
        assert (verification.compared, verification.differs) == (("s′", "reward", "terminal"), ())
    assert verification.text("left") == "repeating left reproduces the stored s′, reward and terminal, bit for bit"


def test_the_smallest_difference_is_detected(transitions: list[StoredTransition]) -> None:
    env, transition = cartpole(), transitions[0]
    frame = np.nextafter(env.codec.decompress(transition.s_t[-1]), np.float32(9))
    for changed, expected in (
        (transition._replace(s_t=(env.codec.compress(frame),)), r"s′ in"),
        (
            transition._replace(reward=float(np.nextafter(np.float32(1), np.float32(2)))),
            "reward 1.0 instead of 1.0000001",
        ),
        (transition._replace(terminal=True), "terminal False instead of True"),
        (transition._replace(action=1 - transition.action), r"s′ in"),
        (transition._replace(snapshot=transitions[1].snapshot), r"s′ in"),
    ):
        (difference,) = verify_transition(env, changed).differs
        assert difference.startswith(expected)
    assert "does not reproduce the stored outcome: s′ in" in verify_transition(
        env, transition._replace(s_t=(env.codec.compress(frame),))
    ).text("left")


def test_of_n_step_transitions_the_first_frame_is_compared() -> None:
    env = corridor(stack=4)
    several = [transition for transition in stored_transitions(env, 30, n_steps=3) if transition.n_steps == 3]
    assert several
    for transition in several:
        verification = verify_transition(env, transition)
        assert (verification.compared, verification.differs) == (("first frame",), ())
    assert "only the first of its 3 steps can be repeated" in verification.text("left")
    others = [transition for transition in several if transition.s_t[-3] != transition.s_t[-2]]
    changed = others[0]._replace(s_t=(*others[0].s_t[:1], others[0].s_t[-1], *others[0].s_t[2:]))
    assert verify_transition(env, changed).differs


def test_of_n_step_transitions_without_the_first_frame_nothing_is_compared() -> None:
    env = corridor()
    transition = next(one for one in stored_transitions(env, 30, n_steps=3) if one.n_steps == 3)
    verification = verify_transition(env, transition)
    assert (verification.compared, verification.differs) == ((), ())
    assert verification.text("left").startswith("repeating left: nothing can be compared")
