"""Members of a run: who may join, who is refused and why, and whose lease has expired."""

from __future__ import annotations

import numpy as np
import pytest

from dpsr_apex import timeouts
from dpsr_apex.config_files import parse_config
from dpsr_apex.protocol import sessions
from dpsr_apex.protocol.replay_service import Outgoing
from dpsr_apex.wire.messages import (
    Alive,
    Gone,
    Heartbeat,
    Hello,
    Join,
    LearnerState,
    Leave,
    Message,
    Priorities,
    Refused,
    SampleRequest,
    SetActors,
    StatsRequest,
    Stranger,
    Terms,
    WeightsRequest,
    Welcome,
)
from tests.unit.protocol.watched_service import (
    CONFIG,
    EMPTY,
    ERA,
    KeyedService,
    acknowledged,
    chunk,
    enter,
    join,
    only,
    reply,
    service,
    tick_on,
)

# Coming in.


def test_anyone_is_told_what_is_run_here() -> None:
    terms = reply(service().handle(b"x", Hello(), 0.0))
    assert isinstance(terms, Terms)
    assert terms.run_id == "run-1"
    assert parse_config(terms.config, "the test") == CONFIG


def test_a_welcome_tells_an_actor_where_things_stand() -> None:
    replay = service(actors=3)
    welcome = Welcome(ERA, 0, 0, 3, 0, "")
    assert replay.handle(b"a", join(), 0.0) == [Outgoing(b"a", welcome), Outgoing(b"a", acknowledged(0, 0))]
    replay.handle(b"l", join("learner-0", "learner", weights_endpoint="tcp://w"), 0.0)
    replay.handle(b"a", chunk(0), 0.0)
    (second,) = only(replay.handle(b"b", join("actor-1"), 0.0), Welcome)
    assert second == Welcome(ERA, 5, 1, 3, 0, "tcp://w")
    assert reply(replay.handle(b"e", join("evaluator-0", "evaluator"), 0.0)) == Welcome(ERA, 5, -1, 3, 0, "tcp://w")


@pytest.mark.parametrize(("planned", "told"), [(None, 1), (0, 1), (5, 5)])
def test_the_planned_number_of_actors_is_at_least_one(planned: int | None, told: int) -> None:
    (welcome,) = only(service(actors=planned).handle(b"a", join(), 0.0), Welcome)
    assert welcome.actors == told


@pytest.mark.parametrize("is_heard_again", [True, False])
def test_a_restarted_process_waits_while_its_predecessor_may_have_died(is_heard_again: bool) -> None:
    replay = service()
    replay.handle(b"a", join("actor-0", incarnation=1), 0.0)
    restarted = join("actor-0", incarnation=2)
    for now in (1.1, 2.1):  # since the last heartbeat, one is missing
        assert replay.handle(b"b", restarted, now) == []
    if is_heard_again:
        replay.handle(b"a", Heartbeat(0), 2.5)
        assert isinstance(reply(replay.handle(b"b", restarted, 3.1)), Refused)
    else:
        assert len(only(replay.handle(b"b", restarted, 3.1), Welcome)) == 1
    assert replay.traffic.refused_joins == is_heard_again


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (join(run_id="run-2"), ["run-1", "run-2"]),
        (join(role="critic"), ["actor-0 has the actor's key", "'critic'", "--key"]),
        (join(emulator="0.11.0"), ["0.11.0", "0.12.1", "install"]),
        (join(environment="other"), ["actor-0", "other", "digest"]),
        (join("actor-9", incarnation=2), ["the name actor-9 is taken by a process heard from 0.3 s ago", "--name"]),
        (join("learner-1", "learner"), ["learner-0", "one learner", "0.3 s ago"]),
        (join("learner-0", "actor"), ["the name learner-0 is taken"]),
        (join(""), ["the name ''", "1 to 100 printable characters"]),
        (join("n" * 101), [f"the name '{'n' * 20}...'", "1 to 100"]),
        (join("two\nlines"), ["the name", "1 to 100"]),
        (join("\x1b[2J"), ["the name", "1 to 100"]),
        (join(run_id="r" * 101), ["run-1", f"not {'r' * 20}...:"]),
        (join(role="\n" * 1_000_000), ["actor-0 has the actor's key", "'\\\\n"]),
        (join(emulator="\U0001f579\n" * 1_000), ["ale-py \\U0001f579\\n"]),
        (join(environment="\x1b" * 1_000), ["\\x1b..."]),
    ],
)
def test_a_join_that_cannot_be_is_refused_with_its_reason(request_: Join, words: list[str]) -> None:
    replay = service()
    enter(replay, "actor-9", "learner-0")
    outgoing = replay.handle(b"x", request_, 0.3)
    refused = reply(outgoing)
    assert isinstance(refused, Refused)
    for word in words:
        assert word in refused.reason
    assert refused.reason.isprintable()
    assert len(refused.reason) < 500
    assert replay.traffic.refused_joins == 1
    note = replay.notes.newest[-1][1]
    assert refused.reason in note
    assert note.isprintable()
    assert len(note) < 1_000
    assert reply(replay.handle(b"x", Heartbeat(0), 0.3)) == Stranger()
    assert len(replay.sessions) == 2


def test_the_longest_name_is_welcome() -> None:
    assert only(service().handle(b"x", join("ñ" * 100), 0.0), Welcome)


def test_members_of_other_machines_are_named_with_their_host() -> None:
    replay = service()
    replay.handle(b"a", join(), 0.0, host="10.0.0.7")
    replay.handle(b"b", join("actor-1", run_id="run-2"), 0.0, host="10.0.0.8")
    replay.handle(b"c", join(), 0.0, host="10.0.0.9")
    replay.handle(b"c", Leave(0), 0.0)
    joined, refused, moved, left = (text for _, text in replay.notes.newest)
    assert joined == "actor-0 at 10.0.0.7 joined"
    assert refused.startswith("actor-1 at 10.0.0.8 was refused: ")
    assert (moved, left) == ("actor-0 at 10.0.0.9 joined again", "actor-0 at 10.0.0.9 left")


def test_a_join_that_is_repeated_before_its_answer_arrives_is_reported_once() -> None:
    replay = service()
    for now in (0.0, 1.0, 1.0):
        assert only(replay.handle(b"a", join(), now), Welcome)
    assert [text for _, text in replay.notes.newest] == ["actor-0 joined"]
    assert replay.traffic.joins == 3


def test_a_refused_join_leaves_no_trace_in_the_rules() -> None:
    replay = service()
    replay.handle(b"x", join(environment="wrong", run_id="run-2"), 0.0)
    enter(replay, "actor-0")
    assert replay.sessions.environment == "digest"


def test_an_evaluator_may_have_another_environment() -> None:
    replay = service()
    for request_ in (
        join("evaluator-0", "evaluator", environment="wild"),
        join(),
        join("evaluator-1", "evaluator", environment="evaluation"),
        join("evaluator-2", "evaluator", environment=""),
        join("learner-0", "learner", environment=""),
    ):
        assert only(replay.handle(request_.name.encode(), request_, 0.0), Welcome)


def test_a_learner_gets_the_state_that_is_known() -> None:
    replay = service()
    assert [type(out.message) for out in replay.handle(b"l", join("learner-0", "learner"), 0.0)] == [
        Welcome,
        LearnerState,
    ]
    replay.handle(b"l", LearnerState('{"updates": 0}', b"arrays"), 0.0)
    replay.handle(b"x", Gone("learner-0"), 0.0)
    outgoing = replay.handle(b"m", join("learner-0", "learner", 2), 0.0)
    assert [out.message for out in outgoing[1:]] == [LearnerState('{"updates": 0}', b"arrays")]
    assert not only(replay.handle(b"a", join(), 0.0), LearnerState)


def test_a_process_that_joins_again_continues_at_its_new_address() -> None:
    replay = service()
    enter(replay, "actor-0", "actor-1")
    replay.handle(b"actor-0", chunk(0), 0.0)
    replay.handle(b"x", Gone("actor-0"), 0.0)
    enter(replay, "actor-2")
    (welcome,) = only(replay.handle(b"new", join("actor-1"), 0.0), Welcome)
    assert welcome == Welcome(ERA, 5, 1, 2, 0, "")
    assert reply(replay.handle(b"actor-1", Heartbeat(0), 0.0)) == Stranger()
    assert replay.handle(b"new", chunk(0, owner=1), 0.0) == [Outgoing(b"new", acknowledged(1, 10))]
    assert [actor.name for actor in replay.sessions.actors] == ["actor-1", "actor-2"]


def test_joining_again_renews_the_lease() -> None:
    replay = service()
    enter(replay, "actor-0")
    tick_on(replay, 0.0, 9.0)
    replay.handle(b"new", join(), 9.0)
    tick_on(replay, 9.0, 18.9)
    assert len(replay.sessions) == 1


def indices(replay: KeyedService) -> dict[str, int]:
    return {actor.name: actor.index for actor in replay.sessions.actors}


@pytest.mark.parametrize("name", ["actor-0", "learner-0"])
def test_a_silent_member_is_replaced_by_its_restarted_process_at_once(name: str) -> None:
    replay = service()
    enter(replay, "actor-0", "learner-0")
    role = name.split("-")[0]
    soon, later = timeouts.MEMBER_SILENCE - 0.1, timeouts.MEMBER_SILENCE + 0.1
    assert replay.handle(b"next", join(name, role, incarnation=2), soon) == [], "it may be slow"
    replay.handle(b"actor-0", Heartbeat(0), later)
    replay.handle(b"learner-0", Heartbeat(0), later)
    assert replay.handle(b"next", join(name, role, incarnation=2), later + soon) == [], "it was alive"
    welcome = only(replay.handle(b"next", join(name, role, incarnation=2), 2 * later), Welcome)[0]
    assert welcome.place == (0 if role == "actor" else -1)
    former = replay.handle(name.encode(), Heartbeat(0), 2 * later)
    assert only(former, Stranger), "should the former one be alive after all, it is not in the run"


def test_actors_get_the_smallest_free_index() -> None:
    replay = service()
    enter(replay, "actor-a", "actor-b", "actor-c", "learner-0")
    replay.handle(b"x", Gone("actor-b"), 0.0)
    enter(replay, "actor-d", "actor-e")
    assert indices(replay) == {"actor-a": 0, "actor-c": 2, "actor-d": 1, "actor-e": 3}


def test_actors_that_come_back_in_another_order_get_their_own_indices_back() -> None:
    replay = service()
    enter(replay, "actor-0", "actor-1", "actor-2", "actor-3")
    replay.handle(b"x", Gone("actor-1"), 0.0)
    replay.handle(b"actor-2", Leave(0), 0.0)
    enter(replay, "actor-2", "actor-1")
    assert indices(replay) == {"actor-0": 0, "actor-3": 3, "actor-2": 2, "actor-1": 1}


def test_planned_actors_have_the_indices_of_their_numbers_in_whatever_order_they_join() -> None:
    replay = service()
    replay.handle(b"x", SetActors(3), 0.0)
    enter(replay, "actor-2", "actor-7", "actor-x", "actor-0", "actor-1", "actor-99999999999999999999")
    assert indices(replay) == {
        "actor-2": 2,
        "actor-7": 0,
        "actor-x": 1,
        "actor-0": 3,
        "actor-1": 4,
        "actor-99999999999999999999": 5,
    }, "who is not planned takes the lowest, and who comes late what is left"
    for name in ("actor-7", "actor-x", "actor-0", "actor-1"):
        replay.handle(b"x", Gone(name), 0.0)
    enter(replay, "actor-1", "actor-0")
    assert {"actor-0": 0, "actor-1": 1, "actor-2": 2}.items() <= indices(replay).items()


def test_an_actor_whose_index_was_taken_gets_the_smallest_free_one_and_keeps_that() -> None:
    replay = service()
    enter(replay, "actor-a", "actor-b", "actor-c")
    replay.handle(b"x", Gone("actor-a"), 0.0)
    enter(replay, "actor-d", "actor-a")
    assert indices(replay) == {"actor-b": 1, "actor-c": 2, "actor-d": 0, "actor-a": 3}
    replay.handle(b"x", Gone("actor-d"), 0.0)
    replay.handle(b"x", Gone("actor-a"), 0.0)
    enter(replay, "actor-a")
    assert indices(replay)["actor-a"] == 3


def test_an_index_is_remembered_after_a_silence_but_not_for_another_role() -> None:
    replay = service()
    enter(replay, "actor-east", "actor-west")
    tick_on(replay, 0.0, 11.0)
    assert replay.everybody_left
    assert only(replay.handle(b"e", join("actor-west", "evaluator"), 11.0), Welcome)[0].place == -1
    replay.handle(b"e", Leave(0), 11.0)
    enter(replay, "actor-west", now=11.0)
    assert indices(replay) == {"actor-west": 1}


def test_the_indices_of_the_newest_names_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "REMEMBERED", 2)
    replay = service()
    enter(replay, "actor-a", "actor-b", "actor-c", "actor-d")
    replay.handle(b"x", Gone("actor-c"), 0.0)
    replay.handle(b"x", Gone("actor-d"), 0.0)
    enter(replay, "actor-c")
    replay.handle(b"x", Gone("actor-c"), 0.0)
    replay.handle(b"x", Gone("actor-b"), 0.0)
    enter(replay, "actor-c", "actor-d")
    assert indices(replay) == {"actor-a": 0, "actor-c": 2, "actor-d": 1}, "actor-d has been gone for longest"


def test_another_process_at_a_known_address_takes_the_place_of_the_former() -> None:
    replay = service()
    enter(replay, "actor-0")
    assert only(replay.handle(b"actor-0", join("actor-1"), 0.0), Welcome)
    assert [session.name for session in replay.sessions] == ["actor-1"]
    assert replay.sessions.named("actor-0") is None


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat(0),
        Leave(0),
        chunk(0),
        SampleRequest(),
        Priorities(ERA, EMPTY, np.zeros(0)),
        LearnerState("", b""),
    ],
)
def test_who_is_not_in_the_run_is_told_so_and_changes_nothing(message: Message) -> None:
    replay = service()
    assert replay.handle(b"x", message, 0.0) == [Outgoing(b"x", Stranger())]
    assert (replay.traffic.strangers, replay.traffic.received, replay.learner.states_received) == (1, 0, 0)


# Staying and going.


def test_a_heartbeat_is_answered_with_the_clock_and_the_way_to_the_weights() -> None:
    replay = service()
    enter(replay, "actor-0")
    replay.handle(b"actor-0", chunk(0), 0.0)
    assert reply(replay.handle(b"actor-0", Heartbeat(5), 0.0)) == Alive(5, 1, "")
    enter(replay, "learner-0")
    assert reply(replay.handle(b"actor-0", Heartbeat(5), 0.0)) == Alive(5, 1, "tcp://learner-0")


@pytest.mark.parametrize("message", [Heartbeat(0), chunk(0), chunk(9), StatsRequest(), WeightsRequest(0, 0)])
def test_every_message_renews_the_lease(message: Message) -> None:
    replay = service()
    enter(replay, "actor-0", "actor-1")
    tick_on(replay, 0.0, 9.0)
    replay.handle(b"actor-0", message, 9.0)
    tick_on(replay, 9.0, 18.9)
    assert [session.name for session in replay.sessions] == ["actor-0"]
    tick_on(replay, 18.9, 19.1)
    assert replay.everybody_left
    assert replay.traffic.expired_leases == 2
    assert "actor-0 was silent for 10." in replay.notes.newest[-1][1]


def test_nobody_is_blamed_for_time_in_which_the_service_did_not_listen() -> None:
    replay = service()
    enter(replay, "actor-0")
    tick_on(replay, 0.0, 5.0)
    replay.tick(60.0)  # the process stood still, and what came meanwhile is not read yet
    assert len(replay.sessions) == 1
    tick_on(replay, 60.0, 64.9)
    assert len(replay.sessions) == 1
    tick_on(replay, 64.9, 65.2)
    assert replay.everybody_left


def test_a_message_after_a_stall_does_not_prolong_the_lease_beyond_its_length() -> None:
    replay = service()
    enter(replay, "actor-0")
    tick_on(replay, 0.0, 1.0)
    replay.handle(b"actor-0", Heartbeat(0), 30.0)
    tick_on(replay, 30.0, 40.1)
    assert replay.everybody_left


def test_an_expired_process_can_come_back() -> None:
    replay = service()
    enter(replay, "actor-0")
    replay.handle(b"actor-0", chunk(0), 0.0)
    tick_on(replay, 0.0, 11.0)
    (welcome,) = only(replay.handle(b"actor-0", join(), 11.0), Welcome)
    assert welcome.sequence == 1
    assert reply(replay.handle(b"actor-0", chunk(0), 11.0)) == acknowledged(1, 5)
    assert (replay.t, replay.traffic.duplicate_chunks) == (5, 1)


def test_one_that_has_died_is_gone_at_once() -> None:
    replay = service()
    enter(replay, "actor-0")
    assert replay.handle(b"supervisor", Gone("actor-0"), 0.0) == []
    assert replay.everybody_left
    assert replay.handle(b"supervisor", Gone("actor-0"), 0.0) == []
    enter(replay, "actor-0")
    assert "actor-0 is gone" in [text for _, text in replay.notes.newest]


def test_what_actors_say_they_sent_is_added_up_over_all_of_them_once() -> None:
    replay = service()
    enter(replay, "actor-0", "actor-1", "learner-0")
    replay.handle(b"actor-0", Heartbeat(10), 0.0)
    replay.handle(b"actor-0", Leave(30), 0.0)
    replay.handle(b"actor-1", Heartbeat(5), 0.0)
    replay.handle(b"learner-0", Heartbeat(1000), 0.0)
    assert replay.traffic.sent == 35
    enter(replay, "actor-0")
    replay.handle(b"actor-0", Heartbeat(32), 0.0)
    assert replay.traffic.sent == 37
    assert [actor.sent for actor in replay.stats(0.0).actors] == [5, 32]
