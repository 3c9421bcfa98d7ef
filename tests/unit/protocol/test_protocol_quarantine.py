"""What cannot be used is taken out of the replay by identity, once and for all, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from dpsr_apex.protocol.quarantine import LONGEST_REASON, Quarantine, readable
from dpsr_apex.replay.replay import Replay
from dpsr_apex.state import State
from dpsr_apex.wire.messages import Batch, Gone, Heartbeat, Leave, Recycle, Refused, SampleRequest, Unusable
from tests.unit.protocol.watched_service import (
    CONFIG,
    ERA,
    KeyedService,
    balanced,
    chunk,
    enter,
    filled,
    join,
    only,
    recycled,
    reply,
    restarted,
    service,
    transitions,
)

ACTORS = ("actor-0", "actor-1")


def unusable(identities: list[int], reason: str = "damaged frame", era: int = ERA) -> Unusable:
    return Unusable(era, np.array(identities, dtype=np.int64), reason)


def with_a_learner() -> KeyedService:
    """Ten transitions are stored."""
    replay = service()
    enter(replay, *ACTORS, "learner-0")
    for number in range(2):
        replay.handle(b"actor-0", chunk(number), 0.0)
    assert replay.replay.size == 10
    return replay


def quarantine_notes(replay: KeyedService) -> list[str]:
    return [note.text for note in replay.notes.newest if note.text.startswith("Quarantined")]


def test_what_the_learner_cannot_train_on_is_quarantined() -> None:
    replay = with_a_learner()
    names = replay.replay.identities
    bad = names[[2, 5]].tolist()
    assert replay.handle(b"learner-0", unusable(bad), 0.0) == []
    (record,) = replay.flow.quarantine.drain()
    assert (record.t, record.reason, record.rows.slots.identities.tolist()) == (10, "damaged frame", bad)
    assert record.rows.transitions.snapshots == [b"snapshot 0 2", b"snapshot 0 5"]
    assert replay.flow.quarantine.drain() == []
    assert (replay.replay.size, replay.replay.counters.quarantined, replay.traffic.unusable) == (8, 2, 2)
    assert quarantine_notes(replay) == ["Quarantined 2 transitions: damaged frame"]
    for _ in range(20):
        batches = only(replay.handle(b"learner-0", SampleRequest(), 0.0), Batch)
        assert not any(np.isin(batch.identities, bad).any() for batch in batches)
    assert replay.replay.check_valid() == (True, "")
    assert balanced(replay)


def test_what_was_reported_before_or_belongs_to_another_era_is_passed_over() -> None:
    replay = with_a_learner()
    name = int(replay.replay.identities[3])
    for message in (unusable([name], era=ERA - 1), unusable([name]), unusable([name, -1, name + 10**9])):
        assert replay.handle(b"learner-0", message, 0.0) == []
    assert (replay.replay.size, replay.replay.counters.quarantined) == (9, 1)
    assert (replay.traffic.unusable, replay.traffic.stale_eras) == (5, 1)
    assert quarantine_notes(replay) == [f"Quarantined transition {name}: damaged frame"]


def test_only_the_learner_may_report() -> None:
    replay = with_a_learner()
    before = replay.replay.size
    refused = reply(replay.handle(b"actor-0", unusable(replay.replay.identities.tolist()), 0.0, "actor"))
    assert isinstance(refused, Refused)
    assert replay.replay.size == before


def test_a_run_continues_after_everything_was_quarantined() -> None:
    replay = with_a_learner()
    replay.handle(b"learner-0", unusable(replay.replay.identities.tolist()), 0.0)
    assert replay.replay.size == 0
    assert replay.handle(b"learner-0", SampleRequest(), 0.0) == []  # nothing to sample, although a batch is due
    outgoing = replay.handle(b"actor-0", chunk(2), 0.0)
    assert len(only(outgoing, Batch)) == 1
    assert replay.replay.size == 5
    assert replay.replay.check_valid() == (True, "")


def test_a_run_ends_although_nothing_is_left_to_train_on() -> None:
    replay = service(total_steps=10)
    enter(replay, "actor-0", "learner-0")
    for number in range(2):
        replay.handle(b"actor-0", chunk(number), 0.0)
    assert not replay.finished
    replay.handle(b"learner-0", unusable(replay.replay.identities.tolist()), 0.0)
    assert replay.finished


def test_a_candidate_that_is_quarantined_is_given_to_no_actor() -> None:
    replay, requests = filled()
    enter(replay, "learner-0")
    gone, kept = requests[0].identities.tolist()
    replay.handle(b"learner-0", unusable([gone]), 0.0)
    assert replay.flow.dispatch.outstanding() == {"actor-0": 1, "actor-1": 2}
    again = only(replay.handle(b"x", Gone("actor-0"), 0.0), Recycle)
    assert [request.identities.tolist() for request in again] == [[kept]]


# Strikes.


def test_a_state_that_fails_in_two_rounds_is_quarantined() -> None:
    replay, requests = filled()
    name = int(requests[0].identities[0])
    replay.flow.strike([name], "earlier")
    assert replay.replay.size == 20
    replay.handle(b"actor-0", recycled(requests[0], transitions(0), requests[0].identities), 1.0)
    (record,) = replay.flow.quarantine.drain()
    assert (record.reason, record.rows.slots.identities.tolist()) == ("it is damaged (2 times)", [name])
    assert replay.replay.size == 19
    assert replay.flow.quarantine.save() == [[int(requests[0].identities[1]), 1]]


def test_an_actor_can_give_strikes_only_to_what_it_holds() -> None:
    replay, requests = filled()
    for _ in range(3):
        strangers = np.setdiff1d(replay.replay.identities, requests[0].identities)
        replay.handle(b"actor-0", recycled(requests[0], transitions(0), strangers), 1.0)
    assert replay.flow.quarantine.save() == []
    assert replay.replay.size == 20


def test_a_failure_without_a_reason_is_refused_and_changes_nothing() -> None:
    replay, requests = filled()
    message = recycled(requests[0], transitions(0), requests[0].identities)._replace(reasons=[])
    assert isinstance(reply(replay.handle(b"actor-0", message, 1.0)), Refused)
    assert replay.flow.quarantine.save() == []
    assert replay.flow.dispatch.outstanding()["actor-0"] == 2


@pytest.mark.parametrize("end", ["gone", "lease"])
def test_a_process_that_dies_gives_a_strike_to_each_candidate_that_it_held(end: str) -> None:
    replay, requests = filled()
    held = requests[0].identities.tolist()
    if end == "gone":
        replay.handle(b"x", Gone("actor-0"), 1.0)
    else:
        for now in np.arange(1.0, 14.0, 0.5):
            replay.handle(b"actor-1", Heartbeat(0), float(now))
            replay.tick(float(now))
    assert [name for name, _ in replay.flow.quarantine.save()] == sorted(held)
    assert replay.replay.counters.quarantined == 0


def test_a_state_with_which_two_processes_have_died_is_quarantined() -> None:
    replay, requests = filled()
    held = requests[0].identities.tolist()
    for name in ACTORS:  # the candidates go to the second actor
        replay.handle(b"x", Gone(name), 1.0)
    assert set(held) <= {name for record in replay.flow.quarantine.drain() for name in record.rows.slots.identities}
    assert not set(held) & set(replay.replay.identities.tolist())


def test_an_actor_that_leaves_or_reconnects_gives_no_strike() -> None:
    replay, _ = filled()
    replay.handle(b"actor-0", Leave(0), 1.0)
    replay.flow.actor_reconnected(replay.sessions.actors[0])
    assert replay.flow.quarantine.save() == []


def test_strikes_are_saved_with_the_replay() -> None:
    replay, requests = filled()
    replay.handle(b"actor-0", recycled(requests[0], transitions(0), requests[0].identities), 1.0)
    state = replay.save()
    loaded = service()
    loaded.load(State(state.facts, state.arrays))
    assert loaded.flow.quarantine.save() == [[name, 1] for name in sorted(requests[0].identities.tolist())]


def test_strikes_of_replaced_transitions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsr_apex.protocol.quarantine.REMEMBERED", 5)
    replay = Replay(CONFIG.replay, 1_000, np.random.default_rng(0))
    quarantine = Quarantine(replay)
    for _ in range(20):
        replay.insert(transitions(10))
        quarantine.strike(replay.identities[:3].tolist(), "why")
        assert len(quarantine._strikes) <= 5 + 3
    stored = set(replay.identities.tolist())
    assert {name for name, _ in quarantine.save()} <= stored
    quarantine.strike([10**12, -1], "why")
    assert {name for name, _ in quarantine.save()} <= stored


def test_a_reason_is_one_printable_line_of_limited_length() -> None:
    assert readable("a\n  b\x1b[2J" + "c" * 1_000) == "a b?[2J" + "c" * (LONGEST_REASON - 7)


def test_what_is_refused_on_arrival_is_noted_by_kind_with_its_sender() -> None:
    replay = service()
    enter(replay, "actor-0")
    bad = chunk(0, 6)
    bad.transitions.r_t[[1, 2, 4]] = np.nan, np.nan, np.inf
    bad.transitions.n_steps[5] = 9
    replay.handle(b"actor-0", bad, 0.0)
    rewards, steps = replay.flow.quarantine.drain_refusals()
    assert rewards[:3] == (2, "actor-0", "rewards")
    assert "reward nan" in rewards.reason
    assert (rewards.transitions, steps.kind, steps.transitions) == (3, "steps", 1)
    assert replay.flow.quarantine.drain_refusals() == []


def test_states_are_tried_out_once_an_actor_has_died_with_candidates() -> None:
    replay, requests = filled()
    assert not any(request.must_try for request in requests)
    asked = only(replay.handle(b"x", Gone(ACTORS[0]), 1.0), Recycle)
    assert asked
    assert all(request.must_try for request in asked)
    again = only(restarted(replay).handle(b"actor-2", join("actor-2"), 2.0), Recycle)
    assert again
    assert all(request.must_try for request in again)
