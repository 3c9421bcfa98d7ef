"""Chunks in, batches out, candidates there and back: in order, each once, and at the right time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsr_apex.protocol import inbox
from dpsr_apex.protocol.events import Late, Struck
from dpsr_apex.protocol.quarantine import LONGEST_REASON
from dpsr_apex.protocol.replay_service import Outgoing
from dpsr_apex.record.journal.encoding import encode_events
from dpsr_apex.wire.messages import (
    Acknowledged,
    Batch,
    Chunk,
    Gone,
    Heartbeat,
    Leave,
    Priorities,
    Recycle,
    Refused,
    SampleRequest,
    SetRate,
    Welcome,
)
from tests.unit.protocol.watched_service import (
    BATCH,
    CONFIG,
    DEEP,
    EMPTY,
    ERA,
    acknowledged,
    answer,
    balanced,
    chained,
    chunk,
    enter,
    filled,
    inserted,
    join,
    only,
    recycled,
    reply,
    service,
    tick_on,
    transitions,
)

# Chunks.


def test_chunks_are_taken_in_order_and_each_once() -> None:
    replay = service()
    enter(replay, "actor-0")
    assert reply(replay.handle(b"actor-0", chunk(1), 0.0)) == acknowledged(0, 0)
    assert reply(replay.handle(b"actor-0", chunk(0), 0.0)) == acknowledged(1, 5)
    assert reply(replay.handle(b"actor-0", chunk(0), 0.0)) == acknowledged(1, 5)
    assert reply(replay.handle(b"actor-0", chunk(2), 0.0)) == acknowledged(1, 5)
    assert (replay.traffic.gaps, replay.traffic.duplicate_chunks) == (2, 1)
    assert (replay.traffic.received, replay.traffic.inserted) == (5, 5)


def test_small_chunks_share_the_frames_that_they_repeat() -> None:
    def following(sequence: int, owner: int) -> Chunk:
        frames = [f"frame {owner} {sequence + i}".encode() for i in range(4)]  # copies, as they are received
        rows = transitions(1, sequence, owner)
        rows.s_tm1[0], rows.s_t[0] = tuple(frames[:3]), tuple(frames[1:])
        return chunk(sequence, 1, owner)._replace(transitions=rows)

    replay = service()
    enter(replay, "actor-0", "actor-1")
    for sequence in range(4):
        for owner in range(2):
            replay.handle(f"actor-{owner}".encode(), following(sequence, owner), 0.0)
    stored = replay.replay.read(replay.replay.identities)
    frames = [frame for stack in (*stored.s_tm1, *stored.s_t) for frame in stack]
    assert len(frames) == 2 * 4 * 6
    assert len({id(frame) for frame in frames}) == len(set(frames)) == 2 * (4 + 3)
    replay.handle(b"actor-0", Leave(0), 0.0)
    assert replay.flow.inbox.stream(("actor-0", 1)).newest == ()


def test_chunks_wait_for_the_learner_and_only_what_is_settled_is_acknowledged() -> None:
    replay = service()  # batches are due at t = 8, 10, ..., and 4 may be owed
    enter(replay, "actor-0", "actor-1")
    for number in range(3):
        assert replay.handle(b"actor-0", chunk(number), 0.0) == [
            Outgoing(b"actor-0", acknowledged(number + 1, 5 * number + 5))
        ]
    assert replay.handle(b"actor-0", chunk(3), 0.0) == [Outgoing(b"actor-0", acknowledged(4, 20))]
    assert replay.handle(b"actor-0", chunk(4), 0.0) == []
    assert replay.handle(b"actor-1", chunk(0, owner=1), 0.0) == []
    assert replay.handle(b"actor-0", chunk(5), 0.0) == []
    assert reply(replay.handle(b"actor-0", chunk(4), 0.0)) == acknowledged(4, 20)
    assert balanced(replay)
    assert replay.flow.inbox.queued_transitions == 15
    enter(replay, "learner-0")
    outgoing = []
    for _ in range(4):
        outgoing += replay.handle(b"learner-0", SampleRequest(), 0.0)
    kinds = [type(out.message).__name__ for out in outgoing]
    assert kinds == ["Batch", "Batch", "Batch", "Acknowledged", "Batch"]
    assert inserted(replay)[-5:] == [(0, number) for number in range(20, 25)]


def test_the_queue_is_one_for_all_actors_in_the_order_of_arrival() -> None:
    replay = service()
    enter(replay, "actor-0", "actor-1", "learner-0")
    for number in range(4):
        replay.handle(b"actor-0", chunk(number), 0.0)
    order = [(1, 0), (0, 4), (1, 1), (0, 5)]
    for owner, number in order:
        assert replay.handle(f"actor-{owner}".encode(), chunk(number, owner=owner), 0.0) == []
    replay.handle(b"x", SetRate(0), 0.0)
    settled = inserted(replay)[20::5]
    assert settled == [(owner, 5 * number) for owner, number in order]


def test_what_a_dropped_actor_has_queued_is_as_if_not_sent_and_may_be_sent_again() -> None:
    replay = service()
    enter(replay, "actor-0", "actor-1")
    for number in range(6):
        replay.handle(b"actor-0", chunk(number), 0.0)
    replay.handle(b"actor-1", chunk(0, owner=1), 0.0)
    assert (replay.t, replay.flow.inbox.queued_transitions) == (20, 15)
    replay.drop(b"actor-0", "it takes too much")
    replay.drop(b"a stranger", "it takes too much")
    assert [actor.name for actor in replay.sessions.actors] == ["actor-1"]
    assert replay.flow.inbox.queued_transitions == 5
    assert balanced(replay)
    for _ in range(3):
        enter(replay, "actor-0")
        replay.drop(b"actor-0", "it takes too much again")
    assert [note.text for note in replay.notes.newest if "too much" in note.text] == [
        "actor-0 was dropped: it takes too much"
    ]
    enter(replay, "actor-0")
    replay.handle(b"x", SetRate(0), 0.0)
    for number in range(4, 6):
        replay.handle(b"actor-0", chunk(number), 0.0)
    assert inserted(replay)[20:] == [(1, n) for n in range(5)] + [(0, n) for n in range(20, 30)]
    assert replay.traffic.lost == 0


def test_more_than_the_window_of_one_actor_is_dropped() -> None:
    replay = service()
    enter(replay, "actor-0", "actor-1")
    for number in range(8):
        replay.handle(b"actor-0", chunk(number), 0.0)
    assert replay.t == 20
    assert (replay.traffic.overruns, replay.traffic.gaps) == (1, 0)  # 4, 5 and 6 are queued
    assert replay.handle(b"actor-0", chunk(7), 0.0) == []
    assert replay.traffic.overruns == 2
    replay.handle(b"actor-1", chunk(0, owner=1), 0.0)
    assert replay.flow.inbox.queued_transitions == 20
    assert balanced(replay)


def test_what_a_dead_actor_has_sent_is_inserted_all_the_same() -> None:
    replay = service()
    enter(replay, "actor-0")
    for number in range(6):
        replay.handle(b"actor-0", chunk(number), 0.0)
    replay.handle(b"x", Gone("actor-0"), 0.0)
    outgoing = replay.handle(b"x", SetRate(0), 0.0)
    assert replay.t == 30
    assert not only(outgoing, Acknowledged)
    (welcome,) = only(replay.handle(b"new", join(), 0.0), Welcome)
    assert welcome.sequence == 6


def test_an_acknowledgement_goes_to_the_newest_address() -> None:
    replay = service()
    enter(replay, "actor-0")
    for number in range(5):
        replay.handle(b"actor-0", chunk(number), 0.0)
    (welcome,) = only(replay.handle(b"new", join(), 0.0), Welcome)
    assert welcome.sequence == 5
    assert only(replay.handle(b"x", SetRate(0), 0.0), Acknowledged, "new") == [acknowledged(5, 25)]


def test_another_incarnation_of_a_name_begins_from_zero() -> None:
    replay = service()
    enter(replay, "actor-0")
    replay.handle(b"actor-0", chunk(0), 0.0)
    replay.handle(b"x", Gone("actor-0"), 0.0)
    (welcome,) = only(replay.handle(b"new", join(incarnation=2), 0.0), Welcome)
    assert welcome.sequence == 0
    replay.handle(b"new", chunk(0), 0.0)
    assert replay.t == 10


def test_a_replay_that_went_back_continues_from_what_the_actor_still_has() -> None:
    replay = service()
    (welcome,) = only(replay.handle(b"a", join(sequence=7), 0.0), Welcome)
    assert welcome.sequence == 7
    assert reply(replay.handle(b"a", chunk(6), 0.0)) == acknowledged(7, 0)
    assert reply(replay.handle(b"a", chunk(7), 0.0)) == acknowledged(8, 5)


def test_a_jump_ahead_of_what_is_queued_never_goes_back() -> None:
    replay = service()
    enter(replay, "actor-0")
    for number in range(6):
        replay.handle(b"actor-0", chunk(number), 0.0)
    replay.handle(b"actor-0", join(sequence=50), 0.0)
    assert set(only(replay.handle(b"x", SetRate(0), 0.0), Acknowledged)) == {acknowledged(50, 25), acknowledged(50, 30)}
    assert balanced(replay)


def test_the_number_of_gone_actors_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "REMEMBERED", 3)
    replay = service(steps_per_update=0)
    enter(replay, "actor-live")
    replay.handle(b"actor-live", chunk(0), 0.0)
    for number in range(6):
        enter(replay, f"actor-{number}")
        replay.handle(f"actor-{number}".encode(), chunk(0), 0.0)
        replay.handle(f"actor-{number}".encode(), Leave(5), 0.0)
    assert [name for name, *_ in replay.flow.inbox.save()] == ["actor-live", "actor-3", "actor-4", "actor-5"]
    assert reply(replay.handle(b"actor-live", chunk(0), 0.0)) == acknowledged(1, replay.t)
    enter(replay, "actor-4")
    for number in range(6, 12):
        enter(replay, f"actor-{number}")
        replay.handle(f"actor-{number}".encode(), Leave(0), 0.0)
    assert reply(replay.handle(b"actor-4", chunk(0), 0.0)) == acknowledged(1, replay.t)


def test_nothing_is_inserted_beyond_the_last_step_and_actors_wait_there() -> None:
    replay = service(total_steps=18, steps_per_update=0)
    enter(replay, "actor-0")
    outgoing = [out for number in range(5) for out in replay.handle(b"actor-0", chunk(number, 4, scores=[number]), 0.0)]
    outgoing += replay.handle(b"actor-0", chunk(5, 4, scores=[5]), 0.0)
    assert [message.sequence for message in only(outgoing, Acknowledged)] == [1, 2, 3, 4, 5]
    assert (replay.t, replay.traffic.inserted, replay.traffic.refused) == (18, 18, 2)
    assert [message.sequence for message in only(replay.goodbye(True, "over"), Acknowledged)] == [6]
    assert (replay.t, replay.traffic.inserted, replay.traffic.refused) == (18, 18, 6)
    assert [score for score, _ in replay.drain_episodes()] == [0, 1, 2, 3, 4]
    assert replay.finished


def test_td_errors_are_cut_with_their_transitions() -> None:
    replay = service(total_steps=8, steps_per_update=0)
    enter(replay, "actor-0")
    replay.handle(b"actor-0", chunk(0, 6, td_errors=np.arange(6.0)), 0.0)
    replay.handle(b"actor-0", chunk(1, 6, td_errors=np.arange(6.0, 12.0)), 0.0)
    np.testing.assert_allclose(replay.replay.priorities, np.arange(8.0), atol=1e-5)


@pytest.mark.parametrize(
    "bad",
    [
        chunk(0, td_errors=np.ones(6)),
        chunk(0, scores=[1.0, 2.0])._replace(lengths=np.array([3])),
    ],
)
def test_a_chunk_that_the_replay_refuses_is_settled_counted_logged_and_told(
    bad: Chunk, caplog: pytest.LogCaptureFixture
) -> None:
    replay = service()
    enter(replay, "actor-0")
    settled, refused = (message for _, message in replay.handle(b"actor-0", bad, 0.0))
    assert settled == acknowledged(1, 0)
    assert isinstance(refused, Refused)
    assert refused.reason in caplog.text
    assert (replay.traffic.refused, replay.traffic.inserted, replay.t) == (5, 0, 0)
    assert replay.traffic.refused_messages == 1
    assert "actor-0" in caplog.text
    assert replay.drain_episodes() == []
    assert balanced(replay)
    assert reply(replay.handle(b"actor-0", chunk(1), 0.0)) == acknowledged(2, 5)


def test_a_bad_transition_is_refused_without_the_others_of_its_chunk() -> None:
    replay = service()
    enter(replay, "actor-0")
    bad = chunk(0)
    bad.transitions.r_t[2] = np.nan
    bad.transitions.n_steps[4] = 9
    assert reply(replay.handle(b"actor-0", bad, 0.0)) == acknowledged(1, 3)._replace(refused=2)
    assert inserted(replay) == [(0, 0), (0, 1), (0, 3)]
    assert (replay.traffic.refused, replay.traffic.bad_rewards, replay.traffic.bad_steps) == (2, 1, 1)
    assert replay.traffic.refused_messages == 0
    assert balanced(replay)
    (note,) = [note.text for note in replay.notes.newest if "refused" in note.text]
    assert note == "actor-0: 2 of 5 transitions refused: the reward nan (env.reward_limit is 1e+06)"
    assert reply(replay.handle(b"actor-0", chunk(1), 0.0)) == acknowledged(2, 8)._replace(refused=2)


def test_td_errors_stay_with_their_transitions_when_one_is_refused() -> None:
    replay = service(total_steps=8, steps_per_update=0)
    enter(replay, "actor-0")
    replay.handle(b"actor-0", chunk(0, 6, td_errors=np.array([0.0, 1.0, -1.0, 1e51, 4.0, 5.0])), 0.0)
    assert [number for _, number in inserted(replay)] == [0, 1, 4, 5]
    np.testing.assert_allclose(replay.replay.priorities, [0.0, 1.0, 4.0, 5.0], atol=1e-5)
    assert replay.traffic.bad_priorities == 2


def test_a_chunk_without_a_good_transition_is_settled_and_stores_nothing() -> None:
    replay = service()
    enter(replay, "actor-0")
    bad = chunk(0)
    bad.transitions.r_t[:] = np.inf
    assert reply(replay.handle(b"actor-0", bad, 0.0)) == acknowledged(1, 0)._replace(refused=5)
    assert reply(replay.handle(b"actor-0", bad, 0.0)) == acknowledged(1, 0)._replace(refused=5)
    assert (replay.traffic.refused, replay.traffic.duplicate_chunks, replay.t) == (5, 1, 0)


def test_episodes_are_collected_once() -> None:
    replay = service()
    enter(replay, "actor-0")
    replay.handle(b"actor-0", chunk(0, scores=[21.0, -3.0]), 0.0)
    replay.handle(b"actor-0", chunk(0, scores=[21.0, -3.0]), 0.0)
    assert replay.drain_episodes() == [(21.0, 11), (-3.0, 11)]
    assert replay.drain_episodes() == []


# Batches and priorities.


def due_one_by_one(t: int, learning_starts: int, steps_per_update: int) -> int:
    return sum(1 for now in range(1, t + 1) if now >= learning_starts and now % steps_per_update == 0)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 12), st.integers(1, 5))
def test_batches_follow_the_transitions_however_they_arrive(
    counts: list[int], learning_starts: int, steps_per_update: int
) -> None:
    replay = service(
        learning_starts=learning_starts, steps_per_update=steps_per_update, prefetch=1000, rate_tolerance=1000
    )
    enter(replay, "actor-0", "learner-0")
    for _ in range(150):
        replay.handle(b"learner-0", SampleRequest(), 0.0)
    batches = 0
    for number, count in enumerate(counts):
        t = replay.t
        outgoing = replay.handle(b"actor-0", Chunk(number, transitions(count, t), None, np.zeros(0), EMPTY, 0.0), 0.0)
        batches += len(only(outgoing, Batch))
        assert replay.t == t + count
        assert batches == replay.rate.batches == due_one_by_one(replay.t, learning_starts, steps_per_update)


def test_the_learner_gets_batches_for_its_credits_as_they_become_due() -> None:
    replay = service()
    enter(replay, "actor-0", "learner-0")
    assert replay.handle(b"learner-0", SampleRequest(), 0.0) == []
    assert replay.handle(b"learner-0", SampleRequest(), 0.0) == []
    assert not only(replay.handle(b"actor-0", chunk(0), 0.0), Batch)
    outgoing = replay.handle(b"actor-0", chunk(1), 0.0)
    batches = only(outgoing, Batch, "learner-0")
    assert [(batch.era, batch.t, batch.identities.size) for batch in batches] == [(ERA, 10, BATCH)] * 2
    assert not only(replay.handle(b"actor-0", chunk(2), 0.0), Batch)
    assert replay.flow.credits == 0


def test_batches_come_before_the_next_chunk_so_that_they_are_sampled_when_due() -> None:
    replay = service(rate_tolerance=2)
    enter(replay, "actor-0", "learner-0")
    for number in range(6):  # the fourth and later ones wait
        replay.handle(b"actor-0", chunk(number, 4), 0.0)
    clocks = []
    for _ in range(8):
        outgoing = replay.handle(b"learner-0", SampleRequest(), 0.0)
        clocks += [batch.t for batch in only(outgoing, Batch)]
    assert clocks == [12, 12, 16, 16, 20, 20, 24, 24]  # due at 8, 10, ..., and one may be owed


def test_requests_beyond_the_prefetch_are_dropped() -> None:
    replay = service()
    enter(replay, "learner-0")
    for _ in range(6):
        replay.handle(b"learner-0", SampleRequest(), 0.0)
    assert (replay.flow.credits, replay.traffic.dropped_requests) == (4, 2)


@pytest.mark.parametrize("ending", ["gone", "lease", "leave", "moved"])
def test_the_credits_of_a_learner_go_with_it(ending: str) -> None:
    replay = service()
    enter(replay, "learner-0", "actor-0")
    replay.handle(b"learner-0", SampleRequest(), 0.0)
    if ending == "gone":
        replay.handle(b"x", Gone("learner-0"), 0.0)
    elif ending == "lease":
        tick_on(replay, 0.0, 9.0)
        replay.handle(b"actor-0", Heartbeat(0), 9.0)
        tick_on(replay, 9.0, 11.0)
    elif ending == "leave":
        replay.handle(b"learner-0", Leave(0), 0.0)
    else:
        replay.handle(b"new", join("learner-0", "learner"), 0.0)
    assert replay.flow.credits == 0
    assert not only(replay.handle(b"actor-0", chunk(0, 10), 11.0), Batch)


def test_priorities_reach_the_replay() -> None:
    replay, _ = filled()
    enter(replay, "learner-0")
    (batch,) = only(replay.handle(b"learner-0", SampleRequest(), 0.0), Batch)
    name = int(batch.identities[0])
    assert replay.handle(b"learner-0", Priorities(ERA, np.array([name]), np.array([9.0])), 0.0) == []
    assert replay.replay.priorities[name % CONFIG.replay.capacity] == pytest.approx(9.0)


@pytest.mark.parametrize("td_errors", [[-1.0], [np.nan], [1e99], [1.0, 2.0]])
def test_bad_priorities_are_refused_and_change_nothing(
    td_errors: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    replay, _ = filled()
    enter(replay, "learner-0")
    before = replay.replay.priorities
    message = Priorities(ERA, replay.replay.identities[:1], np.array(td_errors))
    assert isinstance(reply(replay.handle(b"learner-0", message, 0.0)), Refused)
    np.testing.assert_array_equal(replay.replay.priorities, before)
    assert replay.traffic.refused_messages == 1
    assert "learner-0" in caplog.text


def test_answers_to_another_process_of_the_replay_are_counted_and_passed_over() -> None:
    replay, requests = filled()
    enter(replay, "learner-0")
    before = replay.replay.priorities
    names = replay.replay.identities[:2]
    assert replay.handle(b"learner-0", Priorities(ERA + 1, names, np.array([-1.0, 50.0])), 0.0) == []
    assert (
        replay.handle(
            b"actor-0", answer(requests[0], ERA - 1)._replace(failed=requests[0].identities, reasons=[""] * 2), 0.0
        )
        == []
    )
    np.testing.assert_array_equal(replay.replay.priorities, before)
    assert replay.traffic.stale_eras == 2
    assert sum(replay.flow.dispatch.outstanding().values()) == 4


# Recycling.


def test_a_round_is_split_over_the_actors_and_closed_by_their_answers() -> None:
    replay, requests = filled()
    assert [request.identities.size for request in requests] == [2, 2]
    assert replay.handle(b"actor-0", answer(requests[0]), 1.0) == []
    assert replay.replay.rounds
    assert replay.handle(b"actor-1", answer(requests[1]), 1.0) == []
    counters = replay.replay.counters
    assert (counters.rounds_closed, counters.rounds_expired, counters.candidates_applied) == (1, 0, 4)
    assert replay.replay.check_valid() == (True, "")


def test_only_actors_recycle() -> None:
    replay = service(steps_per_update=0)
    enter(replay, "learner-0", "evaluator-0", "actor-0")
    outgoing = [out for number in range(6) for out in replay.handle(b"actor-0", chunk(number), 0.0)]
    assert {out.address for out in outgoing if isinstance(out.message, Recycle)} == {b"actor-0"}


@pytest.mark.parametrize("ending", ["gone", "leave", "lease"])
def test_what_a_gone_actor_was_to_recycle_goes_to_another_one_once(ending: str) -> None:
    replay, requests = filled(recycle_deadline=60.0)
    if ending == "gone":
        outgoing = replay.handle(b"x", Gone("actor-1"), 1.0)
    elif ending == "leave":
        outgoing = replay.handle(b"actor-1", Leave(0), 1.0)
    else:
        tick_on(replay, 0.0, 9.0)
        replay.handle(b"actor-0", Heartbeat(0), 9.0)
        outgoing = tick_on(replay, 9.0, 11.0)
    (again,) = only(outgoing, Recycle, "actor-0")
    np.testing.assert_array_equal(again.identities, requests[1].identities)
    enter(replay, "actor-2", now=11.0)
    outgoing = replay.handle(b"x", Gone("actor-0"), 11.0)
    (first,) = only(outgoing, Recycle, "actor-2")
    np.testing.assert_array_equal(first.identities, requests[0].identities)
    assert not only(replay.handle(b"x", Gone("actor-2"), 11.0), Recycle)
    assert replay.replay.counters.rounds_expired == 1
    assert replay.replay.counters.candidates_lost == 4


def test_what_may_have_been_lost_with_a_link_is_given_out_again() -> None:
    replay, requests = filled()
    outgoing = replay.handle(b"new", join("actor-1"), 1.0)
    assert sum(task.identities.size for task in only(outgoing, Recycle)) == 2
    outgoing = replay.handle(b"new", join("actor-1"), 1.0)
    assert not only(outgoing, Recycle)  # the same link: nothing was lost
    assert sum(replay.flow.dispatch.outstanding().values()) == 4
    assert replay.traffic.candidates_reissued == requests[1].identities.size


def test_a_round_waits_for_an_actor_and_ends_at_its_deadline() -> None:
    replay, _ = filled()
    replay.handle(b"x", Gone("actor-0"), 1.0)
    replay.handle(b"x", Gone("actor-1"), 1.0)
    assert replay.replay.rounds
    enter(replay, "actor-2", now=2.0)
    assert replay.flow.dispatch.outstanding() == Counter({"actor-2": 2})  # the other two went down twice
    replay.tick(4.9)
    assert replay.replay.rounds
    replay.tick(5.0)
    assert not replay.replay.rounds
    assert replay.replay.counters.rounds_expired == 1
    assert replay.replay.check_valid() == (True, "")


def test_a_round_with_failures_ends_with_what_has_arrived() -> None:
    replay, requests = filled()
    part = requests[0]
    one = recycled(part, transitions(1), part.identities[1:])
    replay.handle(b"actor-0", one, 1.0)
    nothing = recycled(part, transitions(0), requests[1].identities)
    replay.handle(b"actor-1", nothing, 1.0)
    counters = replay.replay.counters
    assert (counters.rounds_expired, counters.candidates_applied, counters.candidates_lost) == (1, 1, 3)
    assert replay.traffic.candidates_failed == 3


def test_a_late_answer_is_counted_and_passed_over() -> None:
    replay, requests = filled()
    replay.tick(6.0)
    assert replay.handle(b"actor-0", answer(requests[0]), 7.0) == []
    assert replay.replay.counters.answers_late == 2


def test_of_a_late_answer_only_the_counts_are_recorded() -> None:
    replay, requests = filled()
    replay.tick(6.0)
    replay.events.is_kept = True
    late = answer(requests[0])._replace(failed=np.arange(1_000), reasons=["x" * 10_000] * 1_000)
    assert replay.handle(b"actor-0", late, 7.0) == []
    assert replay.events.take() == [Late(2, 2)]


def test_steps_that_nobody_was_asked_to_take_do_not_end_a_run() -> None:
    config = replace(DEEP, run=replace(DEEP.run, environment_steps=100))
    replay, requests = filled(config)
    assert not replay.replay.is_over
    steps = replay.replay.environment_steps
    made_up = chained(requests[0]._replace(round_number=99), [3, 3])
    repeated = chained(requests[0], [3, 3])
    for _ in range(40):
        assert replay.handle(b"actor-0", made_up, 1.0) == []
        assert replay.handle(b"actor-0", repeated, 1.0) == []
    assert replay.replay.counters.answers_late == 40 * 2 + 39 * 2
    assert replay.replay.environment_steps == steps
    assert not replay.replay.is_over


def test_of_several_results_of_one_candidate_in_a_message_the_first_counts() -> None:
    replay, requests = filled()
    request = requests[0]
    twice = request._replace(identities=np.repeat(request.identities, 2))
    assert replay.handle(b"actor-0", recycled(twice, transitions(4)), 1.0) == []
    assert replay.handle(b"actor-1", answer(requests[1]), 1.0) == []
    counters = replay.replay.counters
    assert (counters.rounds_closed, counters.answers_late, counters.chain_steps_late) == (1, 2, 0)


def test_steps_of_late_results_count_once_and_as_many_as_were_asked_for() -> None:
    replay, requests = filled(DEEP, lease=100.0)
    tick_on(replay, 1.0, 16.0)
    late = chained(requests[0], [3, 2])._replace(lengths=np.array([2**62, 2]))
    assert replay.handle(b"actor-1", late, 17.0) == [], "the other actor was not asked"
    assert replay.replay.counters.chain_steps_late == 0
    replay, requests = filled(DEEP, lease=100.0)
    tick_on(replay, 1.0, 16.0)
    for _ in range(3):
        assert replay.handle(b"actor-0", late, 17.0) == []
    assert replay.replay.counters.chain_steps_late == 5


def test_failures_that_were_not_assigned_are_not_recorded_and_reasons_are_short() -> None:
    replay, requests = filled()
    request = requests[0]
    replay.events.is_kept = True
    claimed = [*request.identities.tolist(), *range(10_000, 11_000)]
    failures = recycled(request, transitions(0))._replace(
        failed=np.array(claimed), reasons=["x" * 10_000] * len(claimed)
    )
    assert replay.handle(b"actor-0", failures, 1.0) == []
    events = replay.events.take()
    struck = [event for event in events if isinstance(event, Struck)]
    assert [event.identities for event in struck] == [[identity] for identity in request.identities.tolist()]
    assert max(len(event.reason) for event in struck) == LONGEST_REASON
    assert sum(len(frame) for frame in encode_events(events)) < 5_000


def test_a_chunk_without_transitions_is_refused() -> None:
    replay = service()
    enter(replay, "actor-0")
    assert isinstance(reply(replay.handle(b"actor-0", chunk(0, count=0, scores=[1.0]), 0.0)), Refused)
    assert replay.handle(b"actor-0", chunk(0), 0.0)
    assert (replay.t, replay.drain_episodes()) == (5, [])


def test_no_more_episodes_end_in_a_chunk_than_it_has_transitions() -> None:
    replay = service()
    enter(replay, "actor-0")
    replay.handle(b"actor-0", chunk(0, scores=range(1_000)), 0.0)
    assert [score for score, _ in replay.drain_episodes()] == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("fault", ["stranger", "td_error"])
def test_a_wrong_answer_is_refused_and_changes_nothing(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    replay, requests = filled()
    good = answer(requests[0])
    bad = (
        good._replace(identities=good.identities + 100_000)
        if fault == "stranger"
        else good._replace(td_errors=-good.td_errors)
    )
    assert isinstance(
        reply(replay.handle(b"actor-0", bad._replace(failed=good.identities, reasons=[""] * 2), 1.0)), Refused
    )
    assert "actor-0" in caplog.text
    assert replay.traffic.refused_messages == 1
    assert replay.flow.dispatch.outstanding()["actor-0"] == 2
    replay.handle(b"actor-0", good, 1.0)
    replay.handle(b"actor-1", answer(requests[1]), 1.0)
    assert replay.replay.counters.rounds_closed == 1


def test_a_result_with_a_bad_transition_is_dropped_without_the_others() -> None:
    replay, requests = filled()
    bad = answer(requests[0])
    bad.transitions.r_t[1] = np.nan
    assert replay.handle(b"actor-0", bad, 1.0) == []
    replay.handle(b"actor-1", answer(requests[1]), 1.0)
    replay.tick(1.0)
    counters = replay.replay.counters
    assert (counters.candidates_applied, counters.candidates_lost, counters.rounds_expired) == (3, 1, 1)
    assert (replay.traffic.candidates_failed, replay.traffic.bad_rewards) == (1, 1)
    assert "actor-0: 1 result of recycling refused: bad data" in [note.text for note in replay.notes.newest]


# Chains of several steps.


def test_later_steps_of_chains_tick_the_clock_and_are_no_insertions_of_actors() -> None:
    replay, requests = filled(DEEP)
    for actor, request in zip((b"actor-0", b"actor-1"), requests, strict=True):
        replay.handle(actor, chained(request, [3, 2]), 1.0)
    assert (replay.t, replay.traffic.inserted) == (36, 30)
    assert replay.replay.counters.chain_steps == 10
    assert replay.replay.environment_steps == 40
    assert balanced(replay)
    assert replay.replay.check_valid() == (True, "")


@pytest.mark.parametrize("lengths", [[4, 1], [0, 2], [3, -1]])
def test_a_chain_of_an_impossible_length_is_refused(lengths: list[int]) -> None:
    replay, requests = filled(DEEP)
    bad = chained(requests[0], [1, 1])._replace(
        lengths=np.array(lengths), transitions=transitions(sum(lengths)), td_errors=np.ones(sum(lengths))
    )
    outgoing = replay.handle(b"actor-0", bad, 1.0)
    assert [type(out.message) for out in outgoing] == [Refused]
    assert replay.traffic.refused_messages == 1
    assert not replay.replay.rounds[0].answers
    replay.handle(b"actor-0", chained(requests[0], [3, 3]), 1.0)
    assert len(replay.replay.rounds[0].answers) == 2


def test_a_chunk_that_fits_only_if_chains_are_short_waits_for_them() -> None:
    replay, requests = filled(DEEP, environment_steps=44)  # t = 30, and 12 steps are reserved
    assert replay.handle(b"actor-0", chunk(6), 1.0) == []
    assert (replay.t, replay.finished) == (30, False)
    sent = [
        out
        for actor, request in zip((b"actor-0", b"actor-1"), requests, strict=True)
        for out in replay.handle(actor, chained(request, [1, 1]), 1.0)
    ]
    assert only(sent, Acknowledged)[-1].sequence == 7
    assert (replay.t, replay.replay.environment_steps) == (35, 39)
    replay.handle(b"actor-0", chunk(7), 1.0)
    assert (replay.t, replay.replay.environment_steps, replay.traffic.refused) == (40, 44, 0)
    assert replay.finished
    assert balanced(replay)
