"""What the replay returns, as messages: everything that the other side needs, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from dpsr_apex.config import ReplayConfig
from dpsr_apex.protocol import conversions
from dpsr_apex.protocol.conversions import (
    batch_message,
    joined_survey,
    recycle_request,
    stored_message,
    stored_rows,
    survey_parts,
)
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.transitions import unpacked
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.messages import Stored, SurveyPart
from tests.unit.protocol.watched_service import ERA, transitions

CONFIG = ReplayConfig(capacity=20, replace_candidates=4, recycle_candidates=3, recycle_period=5)


def filled(count: int) -> Replay:
    replay = Replay(CONFIG, 1000, np.random.default_rng(0))
    assert replay.insert(transitions(count)) == []
    return replay


def test_a_batch_carries_the_clock_and_whole_transitions_without_snapshots() -> None:
    replay = filled(9)
    sample = replay.sample(4)
    batch = batch_message(sample, replay.t, ERA)
    assert (batch.era, batch.t) == (ERA, 9)
    np.testing.assert_array_equal(batch.identities, sample.identities)
    np.testing.assert_array_equal(batch.weights, sample.weights)
    stored, found = replay.read(batch.identities), unpacked(batch.transitions)
    assert (found.s_tm1, found.s_t) == (stored.s_tm1, stored.s_t)
    for column in ("a_tm1", "r_t", "terminal", "n_steps"):
        np.testing.assert_array_equal(getattr(found, column), getattr(stored, column))
    assert found.snapshots == [b""] * 4
    assert all(stored.snapshots), "the replay still has them"


def test_a_request_to_recycle_has_all_that_an_actor_needs() -> None:
    replay = filled(24)
    stored = {name: replay.read(np.array([name])) for name in replay.identities.tolist()}
    (round_,) = replay.insert(transitions(1, first=24))
    request = recycle_request(round_, ERA)
    assert (request.era, request.round_number) == (ERA, round_.number)
    assert len(set(request.identities.tolist())) == 3
    assert request.starts.s_t == [()] * 3
    for row, name in enumerate(request.identities.tolist()):
        start, kept = request.starts.rows(row, row + 1), stored[name]
        assert (start.s_tm1, start.a_tm1, start.snapshots) == (kept.s_tm1, kept.a_tm1, kept.snapshots)


def with_gains(count: int) -> Replay:
    """A replay in which every third transition counts as recycled."""
    facts, arrays = filled(count).save()
    replay = Replay(CONFIG, 1000, np.random.default_rng(0))
    recycled = np.arange(len(arrays["gains"])) % 3 == 0
    gains = np.where(recycled, np.float32(0.5), np.float32(np.nan))
    more = {"depths": recycled.astype(np.int32), "recycles": 2 * recycled, "origins": np.where(recycled, 900, -1)}
    replay.load(facts, arrays | {"gains": gains} | more)
    return replay


def received(part: SurveyPart) -> SurveyPart:
    message = decode(encode(part))
    assert isinstance(message, SurveyPart)
    return message


@pytest.mark.parametrize("rows_per_part", [1, 7, 19, 20, 1_000])
def test_a_survey_in_parts_arrives_whole(rows_per_part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversions, "ROWS_PER_PART", rows_per_part)
    replay = with_gains(24)
    parts = [received(part) for part in survey_parts(replay, ERA)]
    assert len(parts) == -(-20 // rows_per_part)
    survey = joined_survey(parts)
    assert survey is not None
    for name, column in replay.survey(1_000)._asdict().items():
        np.testing.assert_array_equal(getattr(survey, name), column, err_msg=name)
        assert np.asarray(getattr(survey, name)).dtype == np.asarray(column).dtype, name


def test_an_empty_replay_has_a_survey_without_rows() -> None:
    (part,) = survey_parts(Replay(CONFIG, 1000, np.random.default_rng(0)), ERA)
    survey = joined_survey([received(part)])
    assert survey is not None
    assert (survey.rows, survey.stored, survey.t) == (0, 0, 0)


def test_parts_that_do_not_make_up_a_survey_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversions, "ROWS_PER_PART", 7)
    first, second, third = survey_parts(filled(20), ERA)
    later = survey_parts(filled(21), ERA)
    for parts in ([first, second], [first, third, second], [second, third], [first, second, later[2]]):
        assert joined_survey(parts) is None
    assert joined_survey([first, second, third._replace(era=ERA + 1)]) is None


def test_stored_transitions_arrive_with_all_that_is_known_and_without_those_that_are_gone() -> None:
    replay = with_gains(24)
    present = replay.identities[[4, 0, 3]]
    wanted = np.array([present[0], 10**6, present[1], -1, present[2]])
    message = decode(encode(stored_message(replay, wanted, ERA)))
    assert isinstance(message, Stored)
    assert (message.era, message.t) == (ERA, 24)
    found, expected = stored_rows(message), replay.rows_of(present)
    assert found.slots.identities.tolist() == present.tolist()
    for name in ("births", "gains", "depths", "recycles", "origins"):
        np.testing.assert_array_equal(getattr(found.slots, name), getattr(expected.slots, name), err_msg=name)
    np.testing.assert_array_equal(found.priorities, expected.priorities)
    assert found.transitions.snapshots == replay.read(present).snapshots
    assert found.transitions.s_t == replay.read(present).s_t
