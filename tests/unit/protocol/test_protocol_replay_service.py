"""The replay service as a whole: what does not belong, what it reports, how it is saved and how a run ends."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from dpsr_apex import timeouts
from dpsr_apex.config_files import parse_config
from dpsr_apex.processes.weights import pack_weights
from dpsr_apex.protocol import inbox
from dpsr_apex.protocol.members import MEMBER_NOTES, REFUSAL_NOTES
from dpsr_apex.protocol.replay_service import (
    LEAST_EVICTED,
    MOST_AHEAD,
    MOST_STORED,
    Outgoing,
)
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.messages import (
    Acknowledged,
    Alive,
    Batch,
    Chunk,
    Gone,
    Goodbye,
    Heartbeat,
    Hello,
    LearnerState,
    LearnerStats,
    Learning,
    Leave,
    Message,
    Priorities,
    Recycle,
    Recycled,
    Refused,
    SampleRequest,
    SaveRequest,
    SetActors,
    SetRate,
    Stats,
    StatsRequest,
    Stored,
    StoredRequest,
    Stranger,
    SurveyPart,
    SurveyRequest,
    Terms,
    WeightsRequest,
    Welcome,
)
from dpsr_apex.wire.statistics import (
    ActorsMissing,
    ActorStats,
    LearnerMissing,
    LearnerPaused,
    Note,
    RateStats,
    RoundsOpen,
    UpdatesOwed,
)
from tests.unit.protocol.watched_service import (
    CONFIG,
    EMPTY,
    ERA,
    acknowledged,
    answer,
    balanced,
    chunk,
    enter,
    filled,
    give_state,
    join,
    only,
    recycled,
    reply,
    restarted,
    service,
    tick_on,
    transitions,
)

# What does not belong.


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        ("actor-0", SampleRequest()),
        ("actor-0", Priorities(ERA, EMPTY, np.zeros(0))),
        ("actor-0", Learning(1, 1, 0.0, 0.0, 0.0, 0.0)),
        ("actor-0", LearnerState("mine", b"")),
        ("learner-0", chunk(0)),
        ("learner-0", Recycled(ERA, 0, EMPTY, EMPTY, np.zeros(0), transitions(0), np.zeros(0), EMPTY, [])),
        ("evaluator-0", chunk(0)),
        ("actor-0", Alive(0, 1, "")),
        ("actor-0", Stranger()),
        ("learner-0", WeightsRequest(0, 0)),
    ],
)
def test_a_message_from_the_wrong_role_or_to_the_wrong_place_is_refused(sender: str, message: Message) -> None:
    replay = service()
    enter(replay, "actor-0", "learner-0", "evaluator-0")
    refused = reply(replay.handle(sender.encode(), message, 0.0))
    assert isinstance(refused, Refused)
    assert type(message).__name__ in refused.reason
    assert (replay.traffic.received, replay.flow.credits, replay.learner.states_received, replay.learner.report) == (
        0,
        0,
        0,
        None,
    )


def test_what_cannot_be_read_is_counted_and_told_to_members_only(caplog: pytest.LogCaptureFixture) -> None:
    replay = service()
    enter(replay, "actor-0")
    assert replay.malformed(b"actor-0", "it has no frames", 0.0) == [Outgoing(b"actor-0", Refused("it has no frames"))]
    assert replay.malformed(b"\x00\xff", "it has no frames", 0.0) == []
    assert replay.traffic.malformed == 2
    assert "actor-0: it has no frames" in caplog.text
    assert "00ff: it has no frames" in caplog.text


def test_refused_joins_are_counted_always_and_noted_a_few_times_a_minute() -> None:
    replay = service()
    wrong = join("actor", "odd")._replace(run_id="elsewhere")
    for number in range(3_000):
        replay.handle(b"x", wrong, number / 100)
    assert (replay.traffic.refused_joins, len(replay.notes.newest)) == (3_000, REFUSAL_NOTES)
    enter(replay, "actor-0")
    assert replay.notes.newest[-1].text == "actor-0 joined"
    replay.handle(b"x", wrong, 100.0)
    assert f"{3_000 - REFUSAL_NOTES:,}" in replay.notes.newest[-1].text


def test_a_member_that_joins_and_leaves_all_the_time_is_noted_a_limited_number_of_times() -> None:
    replay = service()
    for _ in range(MEMBER_NOTES):
        enter(replay, "actor-0")
        replay.handle(b"actor-0", Leave(0), 0.0)
    assert replay.traffic.joins == MEMBER_NOTES
    assert replay.notes.newest[-1].number == MEMBER_NOTES


@pytest.mark.parametrize("sender", [b"actor-0", b"stranger"])
def test_another_protocol_is_told_to_everyone(sender: bytes) -> None:
    replay = service()
    enter(replay, "actor-0")
    refused = reply(replay.wrong_protocol(sender, "it speaks protocol 2, this run 1", 0.0))
    assert refused == Refused("it speaks protocol 2, this run 1: install the same version of dpsr_apex")
    assert replay.traffic.malformed == 1


# Looking at it and steering it.


def test_a_survey_is_given_to_anyone_but_not_too_often() -> None:
    replay, _ = filled()
    stored = replay.replay.identities.tolist()
    (part,) = (outgoing.message for outgoing in replay.handle(b"x", SurveyRequest(), 5.0))
    assert isinstance(part, SurveyPart)
    assert part.identities.tolist() == stored
    assert isinstance(reply(replay.handle(b"y", SurveyRequest(), 5.0 + timeouts.SURVEY_GAP / 2)), Refused)
    assert isinstance(reply(replay.handle(b"y", SurveyRequest(), 5.0 + timeouts.SURVEY_GAP)), SurveyPart)


def test_stored_transitions_are_given_to_anyone_but_not_too_many() -> None:
    replay, _ = filled()
    wanted = replay.replay.identities[:3]
    stored = reply(replay.handle(b"x", StoredRequest(wanted), 5.0))
    assert isinstance(stored, Stored)
    assert stored.identities.tolist() == wanted.tolist()
    assert isinstance(reply(replay.handle(b"x", StoredRequest(np.arange(MOST_STORED + 1)), 5.0)), Refused)


def test_statistics_are_the_state_of_the_run() -> None:
    replay, _ = filled(steps_per_update=2, rate_tolerance=1000)
    enter(replay, "learner-0", now=1.0)
    replay.handle(b"learner-0", SampleRequest(), 1.0)
    replay.handle(b"learner-0", Learning(5, 2, 0.5, 1.5, 2.5, 0.25), 1.0)
    replay.row = {"return_mean": 3.0}
    stats = reply(replay.handle(b"x", StatsRequest(), 2.0))
    assert isinstance(stats, Stats)
    assert stats == replay.stats(2.0) == decode(encode(stats))
    assert (stats.era, stats.t, stats.total_steps, stats.stored, stats.capacity) == (ERA, 30, 100, 20, 20)
    assert (stats.finished, stats.ending, stats.planned_actors, stats.queued) == (False, False, 1, 0)
    assert stats.replay.candidates_drawn == 4
    assert stats.traffic.inserted == 30
    assert stats.rate == RateStats(steps_per_update=2, achieved=23.0, batches=1, owed=11)
    epsilon = CONFIG.actor.exploration.at(30, 100)
    assert stats.actors[1] == ActorStats("actor-1", 1, "", epsilon, epsilon, 2.0, sent=0, recycling=2)
    assert stats.learner == LearnerStats(1.0, Learning(5, 2, 0.5, 1.5, 2.5, 0.25))
    assert stats.notes == [Note(1, "actor-0 joined"), Note(2, "actor-1 joined"), Note(3, "learner-0 joined")]
    assert stats.row == {"return_mean": 3.0}
    assert replay.goodbye(False, "enough")
    assert replay.stats(2.0).ending


def test_statistics_stay_as_they_were_while_the_run_continues() -> None:
    replay, _ = filled()
    before = replay.stats(0.0)
    encoded = encode(before)
    replay.handle(b"actor-0", chunk(6), 0.0)
    replay.notes.add("later")
    assert before == decode(encoded)
    assert replay.stats(0.0).traffic.inserted == 35


def test_stats_tell_where_an_actor_is_and_between_which_rungs_it_stands() -> None:
    replay = service(ladder=True, environments=3, actors=2)
    enter(replay, "actor-0")
    replay.handle(b"actor-1", join("actor-1"), 0.0, host="far.example")
    near, far = replay.stats(0.0).actors
    assert (near.host, far.host) == ("", "far.example")
    assert (near.epsilon_low, near.epsilon_high) == pytest.approx((0.4 ** (1 + 7 * 2 / 5), 0.4))
    assert (far.epsilon_low, far.epsilon_high) == pytest.approx((0.4**8, 0.4 ** (1 + 7 * 3 / 5)))


def test_statistics_of_a_run_without_members_can_travel_too() -> None:
    stats = service(steps_per_update=0).stats(0.0)
    assert decode(encode(stats)) == stats
    assert (stats.learner, stats.actors, stats.rate.achieved) == (None, [], None)


def test_in_free_running_nothing_is_owed() -> None:
    replay, _ = filled(steps_per_update=0)
    stats = replay.stats(0.0)
    assert decode(encode(stats)) == stats
    assert stats.rate.owed is None


def test_a_learner_without_a_report_has_none() -> None:
    replay = service()
    enter(replay, "learner-0")
    assert replay.stats(3.0).learner == LearnerStats(3.0, None)


def test_who_waits_for_whom() -> None:
    replay = service(total_steps=40)
    assert replay.stats(0.0).waiting == [LearnerMissing(None), ActorsMissing(None)]
    enter(replay, "learner-0", "actor-0")
    assert replay.stats(0.0).waiting == []
    replay.handle(b"learner-0", SampleRequest(), 0.0)
    assert replay.stats(0.0).waiting == [replay.rate.learner_waits_for(0)] == [LearnerPaused(8)]
    replay.handle(b"x", Gone("learner-0"), 0.0)
    for number in range(6):
        replay.handle(b"actor-0", chunk(number), 12.0)
    assert replay.stats(12.0).waiting == [LearnerMissing(12.0), replay.rate.actors_wait_for(20)]
    enter(replay, "learner-0", now=12.0)
    assert ActorsMissing(5.0) in replay.stats(17.0).waiting
    replay.handle(b"x", SetRate(0), 12.0)
    replay.handle(b"x", SetRate(1), 12.0)
    for number in range(6, 9):
        replay.handle(b"actor-0", chunk(number), 12.0)
    assert replay.t == 40
    replay.handle(b"actor-0", Leave(0), 12.0)
    assert replay.stats(12.0).waiting == [UpdatesOwed(10), RoundsOpen(2)]
    replay.handle(b"x", SetRate(0), 12.0)
    assert replay.stats(12.0).waiting == [RoundsOpen(2)]
    replay.goodbye(False, "enough")
    assert replay.stats(12.0).waiting == []


def test_the_last_word_of_a_role_is_the_newest_of_all_that_are_gone() -> None:
    replay = service()
    enter(replay, "learner-0", "actor-0", "actor-1")
    replay.handle(b"actor-0", Leave(0), 6.0)
    tick_on(replay, 0.0, 10.2)
    enter(replay, "learner-0", now=10.2)
    (waiting,) = replay.stats(10.2).waiting
    assert isinstance(waiting, ActorsMissing)
    assert waiting.silent_seconds == pytest.approx(4.2)


def test_the_rate_can_be_changed_while_running() -> None:
    replay = service()
    enter(replay, "actor-0", "learner-0")
    for number in range(6):
        replay.handle(b"actor-0", chunk(number), 0.0)
    assert replay.t == 20
    outgoing = replay.handle(b"x", SetRate(0), 0.0)
    assert replay.t == 30
    stats = only(outgoing, Stats, "x")
    assert stats[0].rate.steps_per_update == 0
    assert "0 transitions per update from t = 20 on" in replay.notes.newest[-1].text


def test_a_negative_rate_is_refused() -> None:
    replay = service()
    assert isinstance(reply(replay.handle(b"x", SetRate(-1), 0.0)), Refused)
    assert replay.rate.steps_per_update == 2


def test_the_number_of_actors_can_be_changed_while_running() -> None:
    replay = service(actors=1, ladder=True)
    enter(replay, "actor-0")
    replay.handle(b"actor-0", chunk(0), 0.0)
    (stats,) = only(replay.handle(b"x", SetActors(8), 0.0), Stats, "x")
    assert stats.planned_actors == 8
    assert stats.notes[-1].text == "8 actors are planned from t = 5 on"
    assert (stats.actors[0].epsilon_low, stats.actors[0].epsilon_high) == pytest.approx((0.4, 0.4))
    terms = reply(replay.handle(b"x", Hello(), 0.0))
    assert isinstance(terms, Terms)
    planned = replace(CONFIG, actor=replace(CONFIG.actor, ladder=True), system=replace(CONFIG.system, actors=8))
    assert parse_config(terms.config, "the test") == replay.config == planned
    assert reply(replay.handle(b"actor-0", Heartbeat(5), 0.0)) == Alive(5, 8, "")


def test_who_is_more_than_planned_stays_on_the_ladder_until_it_leaves() -> None:
    replay = service(actors=3)
    enter(replay, "actor-0", "actor-1", "actor-2")
    replay.handle(b"x", SetActors(1), 0.0)
    assert replay.notes.newest[-1][1] == "1 actor is planned from t = 0 on"
    assert reply(replay.handle(b"actor-0", Heartbeat(0), 0.0)) == Alive(0, 3, "")
    replay.handle(b"actor-1", Leave(0), 0.0)
    replay.handle(b"actor-2", Leave(0), 0.0)
    assert reply(replay.handle(b"actor-0", Heartbeat(0), 0.0)) == Alive(0, 1, "")


@pytest.mark.parametrize("actors", [0, -1, 10_001, 2**62])
def test_a_number_of_actors_that_cannot_be_is_refused_with_what_can(actors: int) -> None:
    replay = service(actors=2)
    before = replay.config
    assert reply(replay.handle(b"x", SetActors(actors), 0.0)) == Refused(
        f"actors must be from 1 to 10,000 (got {actors})"
    )
    assert replay.config is before
    assert list(replay.notes.newest) == []


def test_reports_of_the_learner_are_kept_and_handed_on() -> None:
    replay = service()
    enter(replay, "learner-0")
    reports = [Learning(number, 1, 0.0, 0.0, 0.0, 0.0) for number in range(2)]
    for report in reports:
        replay.handle(b"learner-0", report, 0.0)
    assert replay.learner.report == reports[1]
    assert replay.learner.drain_reports() == reports
    assert replay.learner.drain_reports() == []


def test_notes_are_numbered_and_the_last_hundred_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    replay = service()
    for number in range(150):
        replay.notes.add(f"note {number}")
    assert len(replay.notes.newest) == 100
    assert replay.notes.newest[0] == (51, "note 50")
    assert replay.notes.newest[-1] == (150, "note 149")
    assert "note 149" in caplog.text


# Saving and ending.


def test_without_a_learner_no_state_is_awaited() -> None:
    replay = service()
    assert replay.request_save() == []
    assert not replay.learner.owes_state


def test_a_state_that_was_asked_for_is_awaited_until_it_comes() -> None:
    replay = service()
    enter(replay, "learner-0")
    assert replay.request_save() == [Outgoing(b"learner-0", SaveRequest(ERA, 1))]
    assert replay.request_save() == []
    assert replay.learner.owes_state
    assert give_state(replay, 0) == []
    assert (replay.learner.owes_state, replay.learner.states_received, replay.learner.state.arrays) == (False, 1, b"1")


def test_a_learner_with_a_new_link_is_asked_for_its_state_again() -> None:
    replay = service()
    enter(replay, "learner-0")
    replay.request_save()
    outgoing = replay.handle(b"new", join("learner-0", "learner"), 0.0)
    assert [type(out.message) for out in outgoing] == [Welcome, LearnerState, SaveRequest]
    assert replay.learner.owes_state


def test_the_state_of_a_learner_that_is_gone_is_not_awaited() -> None:
    replay = service()
    enter(replay, "learner-0", "actor-0")
    replay.request_save()
    replay.handle(b"actor-0", Leave(0), 0.0)
    assert replay.learner.owes_state
    replay.handle(b"x", Gone("learner-0"), 0.0)
    assert (replay.learner.owes_state, replay.learner.states_received) == (False, 0)


def test_a_run_is_finished_when_nothing_more_comes_and_nothing_is_owed() -> None:
    replay = service(total_steps=12)
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 12), 0.0)
    assert not replay.finished
    for _ in range(2):
        replay.handle(b"learner-0", SampleRequest(), 0.0)
        assert not replay.finished
    replay.handle(b"learner-0", SampleRequest(), 0.0)
    assert replay.finished


def test_after_the_goodbye_nothing_more_is_taken_and_everybody_leaves() -> None:
    replay, requests = filled(steps_per_update=2, rate_tolerance=22)
    enter(replay, "learner-0")
    replay.handle(b"actor-1", chunk(0, owner=1), 0.0)
    replay.handle(b"actor-1", chunk(1, owner=1), 0.0)
    queued = replay.flow.inbox.queued_transitions
    t = replay.t
    assert queued > 0
    goodbye = Goodbye(True, "the run is finished")
    outgoing = replay.goodbye(True, "the run is finished")
    assert {type(message) for _, message in outgoing[:-3]} == {Acknowledged}, "what is queued is refused first"
    assert outgoing[-3:] == [Outgoing(name, goodbye) for name in (b"actor-0", b"actor-1", b"learner-0")]
    assert replay.ending
    assert not replay.flow.dispatch.has_waiting
    assert only(replay.handle(b"actor-0", chunk(6), 0.0), Acknowledged, "actor-0") == [acknowledged(7, t)]
    assert (replay.t, replay.traffic.refused, replay.flow.inbox.queued_transitions) == (t, queued + 5, 0)
    assert balanced(replay)
    assert replay.handle(b"learner-0", SampleRequest(), 0.0) == []
    replay.handle(b"actor-0", answer(requests[0]), 0.0)
    assert reply(replay.handle(b"actor-0", Heartbeat(5), 0.0)) == goodbye
    refused = reply(replay.handle(b"x", join("actor-5"), 0.0))
    assert refused == Refused("the run has ended: the run is finished")
    for name in (b"actor-0", b"learner-0"):
        assert not replay.everybody_left
        replay.handle(name, Leave(0), 0.0)
    assert not replay.everybody_left
    tick_on(replay, 0.0, 10.1)
    assert replay.everybody_left


def test_a_run_that_is_stopped_acknowledges_nothing_that_it_does_not_store() -> None:
    replay, _ = filled(steps_per_update=2, rate_tolerance=22)
    replay.handle(b"actor-1", chunk(0, owner=1), 0.0)
    replay.handle(b"actor-0", Heartbeat(45), 0.0)
    queued, stored = replay.flow.inbox.queued_transitions, replay.traffic.inserted
    assert queued > 0
    assert only(replay.goodbye(False, "the run was stopped"), Acknowledged) == []
    assert only(replay.handle(b"actor-1", chunk(1, owner=1), 0.0), Acknowledged) == [], "it comes too late"
    replay.handle(b"actor-0", Leave(50), 0.0)
    replay.handle(b"actor-1", Leave(10), 0.0)
    traffic = replay.traffic
    assert (traffic.sent, traffic.received, traffic.inserted, traffic.refused) == (60, stored, stored, 0)
    assert traffic.lost == 60 - stored
    assert restarted(replay).traffic == traffic


def test_what_a_process_that_ended_had_sent_is_lost_until_it_returns() -> None:
    replay = service()
    enter(replay, "actor-0")
    replay.handle(b"actor-0", chunk(0), 0.0)
    replay.handle(b"actor-0", Heartbeat(15), 0.0)
    tick_on(replay, 0.0, 10.1)
    assert (replay.traffic.expired_leases, replay.traffic.lost) == (1, 10)
    (welcome,) = only(replay.handle(b"a", join(sequence=1, acknowledged=5), 11.0), Welcome)
    assert (welcome.sequence, replay.traffic.lost) == (1, 0)
    replay.handle(b"a", Gone("actor-0"), 11.0)
    assert (replay.traffic.sent, replay.traffic.inserted, replay.traffic.lost) == (15, 5, 10)


def test_what_was_acknowledged_after_the_last_checkpoint_is_lost_with_the_replay_and_counted() -> None:
    replay = service(steps_per_update=0)
    enter(replay, "actor-0")
    replay.handle(b"actor-0", chunk(0), 0.0)
    other = restarted(replay)  # chunks 1 and 2 went to the one that crashed, and chunk 3 was not acknowledged
    (welcome,) = only(other.handle(b"a", join(sequence=3, acknowledged=15), 0.0), Welcome)
    assert welcome.sequence == 3
    assert (other.traffic.sent, other.traffic.lost) == (15, 10)
    other.handle(b"a", chunk(3), 0.0)
    other.handle(b"a", Leave(20), 0.0)
    assert (other.traffic.sent, other.traffic.inserted, other.traffic.lost) == (20, 10, 10)
    assert restarted(other).traffic == other.traffic


@pytest.mark.parametrize("count", [2**63 - 1, -(2**63)])
def test_no_count_of_an_actor_makes_the_statistics_unsendable(count: int) -> None:
    replay = service()
    for number in range(9):
        name = f"actor-{number}"
        replay.handle(name.encode(), join(name, sequence=3, acknowledged=count), 0.0)
        replay.handle(name.encode(), Heartbeat(count), 0.0)
    stats = replay.stats(0.0)
    assert decode(encode(stats)) == stats


def test_no_number_of_processes_makes_the_statistics_unsendable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MOST_IN_ALL", 3 * inbox.MOST_SENT)
    replay = service()
    enter(replay, "actor-0")
    replay.handle(b"actor-0", chunk(0), 0.0)
    for number in range(1, 9):
        replay.handle(b"liar", join(f"actor-{number}", sequence=3, acknowledged=2**63 - 1), 0.0)
    assert replay.traffic.sent == inbox.MOST_IN_ALL
    replay.handle(b"actor-0", chunk(1), 0.0)
    assert (replay.t, replay.traffic.inserted) == (10, 10)
    replay.handle(b"liar", Leave(2**63 - 1), 0.0)
    assert replay.traffic.lost + replay.traffic.inserted >= inbox.MOST_IN_ALL


def test_the_largest_transitions_are_evicted_and_the_user_is_told() -> None:
    replay = service()
    enter(replay, "actor-0", "learner-0")
    made = transitions(5)
    large = replace(made, snapshots=[*made.snapshots[:3], bytes(LEAST_EVICTED), bytes(LEAST_EVICTED)])
    replay.handle(b"actor-0", Chunk(0, large, None, np.zeros(0), np.zeros(0, np.int64), 0.0), 0.0)
    names = replay.replay.identities
    replay.shrink(10 * LEAST_EVICTED, "too much memory")
    assert replay.replay.identities.tolist() == names[:3].tolist()
    replay.tick(1.0)
    assert "Quarantined 2 transitions: too much memory" in [note.text for note in replay.notes.newest]
    replay.hold("the journal cannot be written")
    replay.shrink(10 * LEAST_EVICTED, "too much memory")
    assert replay.replay.size == 3, "nothing may change that cannot be recorded"


def test_a_batch_that_was_asked_for_before_the_goodbye_is_not_given_after_it() -> None:
    replay = service()
    enter(replay, "actor-0", "learner-0")
    replay.handle(b"actor-0", chunk(0, 9), 0.0)
    replay.handle(b"learner-0", SampleRequest(), 0.0)
    replay.handle(b"learner-0", SampleRequest(), 0.0)
    replay.goodbye(False, "stopped")
    replay.rate.batches -= 1  # one is due
    assert replay.tick(0.0) == []


def test_one_that_lost_its_link_during_the_farewell_has_left() -> None:
    replay = service()
    enter(replay, "actor-0")
    replay.goodbye(False, "stopped")
    assert isinstance(reply(replay.handle(b"new", join("actor-0"), 0.0)), Refused)
    assert replay.everybody_left


def test_a_restarted_replay_inserts_nothing_twice_and_loses_nothing_that_was_queued() -> None:
    replay = service()
    enter(replay, "actor-0")
    for number in range(6):
        replay.handle(b"actor-0", chunk(number), 0.0)
    replay.handle(b"actor-0", Heartbeat(30), 0.0)
    other = restarted(replay)
    assert (other.t, other.traffic.received, other.traffic.sent) == (20, 20, 30)
    assert balanced(other)
    assert isinstance(reply(other.handle(b"a", join(environment="other"), 0.0)), Refused)
    (welcome,) = only(other.handle(b"a", join(sequence=2), 0.0), Welcome)  # it has not heard of all that is settled
    assert (welcome.sequence, welcome.t) == (4, 20)
    assert reply(other.handle(b"a", chunk(3), 0.0)) == acknowledged(4, 20)
    other.handle(b"a", Heartbeat(30), 0.0)
    assert other.traffic.sent == 30


def test_one_that_is_saved_and_loaded_gives_the_same_batches() -> None:
    replay = service(steps_per_update=1)
    enter(replay, "actor-0")
    replay.handle(b"actor-0", chunk(0, 12), 0.0)
    other = restarted(replay)
    for each in (replay, other):
        enter(each, "learner-0")
    for _ in range(5):
        one, two = (only(each.handle(b"learner-0", SampleRequest(), 0.0), Batch) for each in (replay, other))
        assert len(one) == len(two) == 1
        np.testing.assert_array_equal(one[0].identities, two[0].identities)
        np.testing.assert_array_equal(one[0].weights, two[0].weights)
    for each in (replay, other):
        assert each.handle(b"learner-0", SampleRequest(), 0.0) == []


def test_a_loaded_replay_continues_with_its_open_rounds() -> None:
    replay, requests = filled()
    replay.handle(b"actor-0", recycled(requests[0], transitions(1)), 0.0)
    assert len(replay.replay.rounds) == 1
    other = restarted(replay)
    assert other.replay.check_valid() == (True, "")
    assert other.replay.counters == replay.replay.counters
    (again,) = only(other.handle(b"actor-2", join("actor-2"), 5.0), Recycle)
    unanswered = [name for request in requests for name in request.identities.tolist()][1:]
    assert sorted(again.identities.tolist()) == sorted(unanswered), "the answered one is not sent out again"
    other.handle(b"actor-2", answer(again), 5.1)
    assert not other.replay.rounds
    assert other.replay.counters.rounds_closed == 1
    assert other.replay.check_valid() == (True, "")


def test_a_round_that_was_open_when_it_was_saved_has_a_deadline_again() -> None:
    replay, _ = filled()
    other = restarted(replay)
    other.tick(1_000.0)
    other.tick(1_000.0 + CONFIG.system.recycle_deadline - 0.1)
    assert other.replay.rounds
    other.tick(1_000.0 + CONFIG.system.recycle_deadline)
    assert not other.replay.rounds
    assert other.replay.counters.rounds_expired == 1


def test_updates_that_a_dead_learner_took_along_are_owed_again() -> None:
    replay = service(steps_per_update=1, rate_tolerance=100, learning_starts=8)
    enter(replay, "actor-0", "learner-0")
    for number in range(4):
        replay.handle(b"actor-0", chunk(number), 0.0)
    for _ in range(5):
        replay.handle(b"learner-0", SampleRequest(), 0.0)
    replay.handle(b"learner-0", LearnerState('{"updates": 2}', b"1"), 0.0)
    assert replay.rate.batches == 5
    replay.handle(b"same", join("learner-0", "learner"), 0.0)
    assert replay.rate.batches == 5, "the same process has lost nothing"
    replay.handle(b"x", Gone("learner-0"), 0.0)
    replay.handle(b"new", join("learner-0", "learner", 2), 0.0)
    assert replay.rate.batches == 2


@pytest.mark.parametrize(("steps_per_update", "most"), [(2, 2 * 47), (0, MOST_AHEAD)])
def test_more_updates_than_are_possible_are_refused(steps_per_update: int, most: int) -> None:
    replay = service(steps_per_update=steps_per_update)
    enter(replay, "learner-0")
    good, bad = (LearnerState(f'{{"updates": {count}}}', b"1") for count in (most, most + 1))
    assert not only(replay.handle(b"learner-0", good, 0.0), Refused), "they may be made for a replay that went back"
    (refused,) = only(replay.handle(b"learner-0", bad, 1.0), Refused)
    assert f"{most + 1:,} updates" in refused.reason
    assert replay.learner.state == good


def test_a_state_with_other_arrays_than_the_one_before_is_refused() -> None:
    replay = service()
    enter(replay, "learner-0")
    arrays = np.ones((3, 2)), np.zeros((3, 2)), np.ones(6)
    first, same, other = (LearnerState('{"updates": 0}', pack_weights({"a": array})) for array in arrays)
    for state, is_refused in ((first, False), (same, False), (other, True)):
        assert bool(only(replay.handle(b"learner-0", state, 0.0), Refused)) is is_refused
    assert replay.learner.state == same


def test_a_state_that_does_not_come_is_asked_for_again() -> None:
    replay = service()
    enter(replay, "learner-0")
    tick_on(replay, 0.0, 0.5)
    assert [type(out.message) for out in replay.request_save()] == [SaveRequest]
    asked = []
    for now in np.arange(0.5, 20.0, 0.5).tolist():
        replay.handle(b"learner-0", Heartbeat(0), now)
        asked += only(replay.tick(now), SaveRequest)
    assert 2 <= len(asked) <= 4, "every half a lease"
    give_state(replay, 0, now=20.0)
    assert not replay.learner.owes_state
    assert not only(replay.tick(30.0), SaveRequest)


def test_actors_hear_how_many_they_are_when_more_come_than_planned() -> None:
    replay = service(actors=2)
    enter(replay, "actor-0", "actor-1")
    assert reply(replay.handle(b"actor-0", Heartbeat(0), 0.0)) == Alive(0, 2, "")
    enter(replay, "actor-2")
    assert reply(replay.handle(b"actor-0", Heartbeat(0), 0.0)) == Alive(0, 3, "")
