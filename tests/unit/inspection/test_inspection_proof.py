"""The proof of a moment: it holds for what was stored, and notices every change of it."""

from __future__ import annotations

import numpy as np
import pytest

from dpsr_apex.inspection.moments import Moment
from dpsr_apex.inspection.proof import prove
from tests.unit.inspection.played import cartpole, corridor, some_moments


@pytest.fixture(scope="module")
def moments() -> list[Moment]:
    return some_moments(cartpole(), 40)


def test_every_stored_moment_is_proved(moments: list[Moment]) -> None:
    env = cartpole()
    assert {moment.terminal for moment in moments} == {False, True}
    for moment in moments:
        proof = prove(env, moment)
        assert (proof.compared, proof.differs) == (("s′", "reward", "end"), ())
    assert proof.text("left") == "left again gives the stored s′, reward and end, bit for bit"


def test_the_smallest_difference_is_noticed(moments: list[Moment]) -> None:
    env, moment = cartpole(), moments[0]
    frame = np.nextafter(env.codec.inflate(moment.s_t[-1]), np.float32(9))
    for changed, said in (
        (moment._replace(s_t=(frame.tobytes(),)), r"s′ in"),
        (moment._replace(reward=float(np.nextafter(np.float32(1), np.float32(2)))), "reward 1.0 instead of 1.0000001"),
        (moment._replace(terminal=True), "end False instead of True"),
        (moment._replace(action=1 - moment.action), r"s′ in"),
        (moment._replace(snapshot=moments[1].snapshot), r"s′ in"),
    ):
        (difference,) = prove(env, changed).differs
        assert difference.startswith(said)
    assert "gives something else than is stored: s′ in" in prove(env, moment._replace(s_t=(frame.tobytes(),))).text(
        "left"
    )


def test_of_several_steps_the_first_is_compared_where_it_is_still_seen() -> None:
    env = corridor(stack=4)
    several = [moment for moment in some_moments(env, 30, n_steps=3) if moment.n_steps == 3]
    assert several
    for moment in several:
        proof = prove(env, moment)
        assert (proof.compared, proof.differs) == (("first frame",), ())
    assert "of its 3 steps only the first can be repeated" in proof.text("left")
    others = [moment for moment in several if moment.s_t[-3] != moment.s_t[-2]]
    changed = others[0]._replace(s_t=(*others[0].s_t[:1], others[0].s_t[-1], *others[0].s_t[2:]))
    assert prove(env, changed).differs


def test_of_several_steps_behind_one_frame_nothing_is_claimed() -> None:
    env = corridor()
    moment = next(one for one in some_moments(env, 30, n_steps=3) if one.n_steps == 3)
    proof = prove(env, moment)
    assert (proof.compared, proof.differs) == ((), ())
    assert proof.text("left").startswith("left again: nothing can be compared")
