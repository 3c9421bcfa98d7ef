"""The simulation can fail: each of these bugs, planted into the real code, is caught by a history."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dpsr_apex import timeouts
from dpsr_apex.protocol import client_instructions
from dpsr_apex.protocol.clients import ActorClient, LearnerClient
from dpsr_apex.protocol.events import LearnerSeated
from dpsr_apex.protocol.flow import Flow
from dpsr_apex.protocol.inbox import Arrival, Inbox, Key, Stream
from dpsr_apex.protocol.instructions import HeadStatus, Instruction, Tell, Terminate
from dpsr_apex.protocol.learner_record import LearnerRecord
from dpsr_apex.protocol.members import Members
from dpsr_apex.protocol.membership import Membership
from dpsr_apex.protocol.outbox import Outbox
from dpsr_apex.protocol.prefetch import Prefetch
from dpsr_apex.protocol.replay_service import Outgoing
from dpsr_apex.protocol.restarts import Exit, RestartPolicy
from dpsr_apex.protocol.run_end import RunEnd
from dpsr_apex.protocol.sessions import Session, Sessions
from dpsr_apex.protocol.supervised_process import SupervisedProcess
from dpsr_apex.protocol.supervision import Supervision
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.rounds import LaterSteps
from dpsr_apex.wire.messages import Acknowledged, Chunk, Heartbeat, LearnerState, Message, Stranger, Welcome
from tests.simulation.hosts import ActorHost
from tests.simulation.network import Faults
from tests.simulation.trouble import Odds
from tests.simulation.world import HistoryFailed, run

SEEDS = 200  # at most; under its odds, a history catches a bug with a probability of 0.1 to 0.8

Patch = pytest.MonkeyPatch
Bug = Callable[[Patch], None]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.CRITICAL):
        yield


def chunks_are_taken_whatever_their_numbers(patch: Patch) -> None:
    def put(inbox: Inbox, stream: Stream, chunk: Chunk) -> bool:
        stream.accepted = max(stream.accepted, chunk.sequence + 1)
        stream.queued += len(chunk.transitions)
        inbox._traffic.received += len(chunk.transitions)
        inbox._queue.append(Arrival(stream, chunk))
        return True

    patch.setattr(Inbox, "put", put)


def chunks_are_acknowledged_before_they_are_inserted(patch: Patch) -> None:
    take_chunk = Flow.take_chunk

    def take(flow: Flow, actor: Session, chunk: Chunk) -> Acknowledged:
        take_chunk(flow, actor, chunk)
        stream = flow.inbox.stream(actor.key)
        return flow.acknowledgement(stream)._replace(sequence=stream.accepted)

    patch.setattr(Flow, "take_chunk", take)


def queued_chunks_are_saved_as_if_they_were_settled(patch: Patch) -> None:
    save = Inbox.save

    def saved(inbox: Inbox) -> list[list[Any]]:
        for stream in inbox._streams.values():
            stream.settled, stream.done = stream.accepted, stream.done + stream.queued
        return save(inbox)

    patch.setattr(Inbox, "save", saved)


def queued_chunks_are_acknowledged_when_a_run_is_stopped(patch: Patch) -> None:
    close = Flow.close
    patch.setattr(Flow, "close", lambda flow, _finished: close(flow, True))


def queued_chunks_of_a_run_that_was_stopped_count_as_received(patch: Patch) -> None:
    patch.setattr(Inbox, "return_queued", lambda inbox: inbox._queue.clear())


def chunks_that_a_replay_had_before_it_went_back_are_not_counted_as_lost(patch: Patch) -> None:
    begin = Inbox.begin

    def uncounted(inbox: Inbox, key: Key, sequence: int, _acknowledged: int) -> Stream:
        return begin(inbox, key, sequence, 0)

    patch.setattr(Inbox, "begin", uncounted)


def what_actors_had_sent_before_they_ended_is_not_counted_as_lost(patch: Patch) -> None:
    def end(inbox: Inbox, key: Key) -> None:
        inbox._ended[key] = None

    patch.setattr(Inbox, "end", end)


def what_an_actor_that_returns_will_send_again_stays_counted_as_lost(patch: Patch) -> None:
    begin = Inbox.begin

    def counted(inbox: Inbox, key: Key, sequence: int, acknowledged: int) -> Stream:
        lost = inbox._traffic.lost
        stream = begin(inbox, key, sequence, acknowledged)
        inbox._traffic.lost = max(lost, inbox._traffic.lost)
        return stream

    patch.setattr(Inbox, "begin", counted)


def the_window_is_forgotten_when_an_actor_joins_again(patch: Patch) -> None:
    handle = ActorClient.handle

    def forgetful(client: ActorClient, message: Message, now: float) -> list[client_instructions.ActorInstruction]:
        if isinstance(message, Welcome):
            client.outbox._unacknowledged.clear()
        return handle(client, message, now)

    patch.setattr(ActorClient, "handle", forgetful)


def nothing_is_sent_again_after_a_welcome(patch: Patch) -> None:
    patch.setattr(Outbox, "resume", lambda *_: [])


def nothing_overdue_is_sent_again(patch: Patch) -> None:
    create = Outbox.__init__
    patch.setattr(
        Outbox, "__init__", lambda box, chunk, in_flight, _patience, now: create(box, chunk, in_flight, math.inf, now)
    )


def an_actor_does_not_tell_what_it_can_still_send(patch: Patch) -> None:
    patch.setattr(Outbox, "oldest", property(lambda _: 0))
    patch.setattr(ActorHost, "acknowledged", property(lambda actor: actor.rows_before(_oldest(actor))))


def _oldest(actor: ActorHost) -> int:
    """What the property that is patched returned."""
    outbox = actor.client.outbox
    return outbox._unacknowledged[0].sequence if outbox._unacknowledged else outbox._next_sequence


def a_replay_that_went_back_does_not_go_ahead_to_what_an_actor_has(patch: Patch) -> None:
    begin = Inbox.begin
    patch.setattr(Inbox, "begin", lambda inbox, key, _sequence, acknowledged: begin(inbox, key, 0, acknowledged))


def a_stranger_does_not_join_again(patch: Patch) -> None:
    handle = Membership.handle

    def trusting(member: Membership, message: Message, now: float) -> list[client_instructions.LinkInstruction]:
        return handle(member, Heartbeat(0) if isinstance(message, Stranger) else message, now)

    patch.setattr(Membership, "handle", trusting)


def a_silent_head_is_not_connected_to_again(patch: Patch) -> None:
    patch.setattr(Membership, "_reconnect", lambda *_: [])


def credits_are_kept_when_a_learner_joins_again(patch: Patch) -> None:
    patch.setattr(Prefetch, "joined", lambda _: None)


def lost_batches_are_not_requested_again(patch: Patch) -> None:
    create = Prefetch.__init__
    patch.setattr(Prefetch, "__init__", lambda prefetch, depth, _patience: create(prefetch, depth, math.inf))


def a_state_that_could_not_be_sent_is_dropped(patch: Patch) -> None:
    undelivered = LearnerClient.undelivered
    patch.setattr(
        LearnerClient,
        "undelivered",
        lambda client, message: None if isinstance(message, LearnerState) else undelivered(client, message),
    )
    patch.setattr(LearnerRecord, "tick", lambda *_: [])


def a_run_that_is_stopped_does_not_wait_for_its_last_updates(patch: Patch) -> None:
    stop = RunEnd._stop

    def hasty(end: RunEnd, now: float) -> list[Outgoing]:
        return end._say_goodbye(True, now) if end._service.finished else stop(end, now)

    patch.setattr(RunEnd, "_stop", hasty)


def updates_that_a_crashed_learner_has_lost_are_not_owed_again(patch: Patch) -> None:
    def seat(members: Members, incarnation: int) -> None:
        members._learner.trained_by = incarnation
        members._flow.events.add(LearnerSeated(incarnation, members._flow.rate.batches))

    patch.setattr(Members, "_seat_learner", seat)


def leases_never_expire(patch: Patch) -> None:
    patch.setattr(Sessions, "silent", lambda *_: [])
    patch.setattr(Sessions, "is_replaced_by", lambda *_: False)


def a_process_that_ended_in_order_is_not_restarted(patch: Patch) -> None:
    def status(supervision: Supervision, head: HeadStatus, now: float) -> list[Instruction]:
        supervision._head, supervision._heard_at = head, now
        return []

    patch.setattr(Supervision, "status", status)


def the_replay_is_not_told_of_crashes(patch: Patch) -> None:
    crashed = Supervision._crashed

    def silent(supervision: Supervision, process: SupervisedProcess, exit: Exit, now: float) -> list[Instruction]:
        return [one for one in crashed(supervision, process, exit, now) if not isinstance(one, Tell)]

    patch.setattr(Supervision, "_crashed", silent)


def restart_budgets_are_never_reset(patch: Patch) -> None:
    patch.setattr(timeouts, "STABLE_AFTER", math.inf)


def another_number_of_actors_is_ignored(patch: Patch) -> None:
    patch.setattr(Supervision, "_follow_plan", lambda *_: [])


def actors_that_are_not_planned_any_more_are_not_asked_to_stop(patch: Patch) -> None:
    follow_plan = Supervision._follow_plan
    patch.setattr(
        Supervision,
        "_follow_plan",
        lambda supervision, now: [one for one in follow_plan(supervision, now) if not isinstance(one, Terminate)],
    )


def processes_that_hang_are_not_killed(patch: Patch) -> None:
    patch.setattr(SupervisedProcess, "enforce_deadlines", lambda *_: [])


def resources_are_never_released(patch: Patch) -> None:
    patch.setattr(SupervisedProcess, "release", lambda _: [])


def preempted_actors_do_not_come_back(patch: Patch) -> None:
    patch.setattr(RestartPolicy, "preempted", lambda *_: None)


def later_steps_of_stale_candidates_are_forgotten(patch: Patch) -> None:
    insert_later_steps = Replay._insert_later_steps

    def insert(replay: Replay, steps: LaterSteps) -> None:
        if replay.counters.candidates_stale == 0:
            insert_later_steps(replay, steps)

    patch.setattr(Replay, "_insert_later_steps", insert)


def chains_do_not_tick_the_clock(patch: Patch) -> None:
    insert_later_steps = Replay._insert_later_steps

    def insert(replay: Replay, steps: LaterSteps) -> None:
        t = replay.t
        insert_later_steps(replay, steps)
        replay.t = t

    patch.setattr(Replay, "_insert_later_steps", insert)


SCALED, LOSSY = Odds(faults=("scale",)), Odds(faults=("pause",), network=(Faults(lost=0.1),))
WENT_BACK = Odds(durabilities=("none",), faults=("disk",), disk_faults=("crash",))

BUGS: dict[Bug, Odds] = {  # with odds under which a history often leads to it
    chunks_are_taken_whatever_their_numbers: Odds(),
    chunks_are_acknowledged_before_they_are_inserted: Odds(),
    queued_chunks_are_saved_as_if_they_were_settled: Odds(),
    queued_chunks_are_acknowledged_when_a_run_is_stopped: Odds(),
    queued_chunks_of_a_run_that_was_stopped_count_as_received: Odds(),
    chunks_that_a_replay_had_before_it_went_back_are_not_counted_as_lost: WENT_BACK,
    what_actors_had_sent_before_they_ended_is_not_counted_as_lost: Odds(),
    what_an_actor_that_returns_will_send_again_stays_counted_as_lost: Odds(faults=("cut",), fault_pauses=(1.0,)),
    the_window_is_forgotten_when_an_actor_joins_again: Odds(),
    nothing_is_sent_again_after_a_welcome: Odds(),
    nothing_overdue_is_sent_again: Odds(),
    an_actor_does_not_tell_what_it_can_still_send: WENT_BACK,
    a_replay_that_went_back_does_not_go_ahead_to_what_an_actor_has: WENT_BACK,
    a_stranger_does_not_join_again: Odds(faults=("pause",), fault_pauses=(1.0,)),
    a_silent_head_is_not_connected_to_again: Odds(),
    credits_are_kept_when_a_learner_joins_again: Odds(
        durabilities=("process",), faults=("disk",), disk_faults=("crash",), network=(Faults(),), fault_pauses=(4.0,)
    ),
    lost_batches_are_not_requested_again: LOSSY,
    a_state_that_could_not_be_sent_is_dropped: Odds(faults=("cut",)),
    a_run_that_is_stopped_does_not_wait_for_its_last_updates: Odds(
        faults=("command",), network=(Faults(),), seconds=60.0, fault_pauses=(4.0,)
    ),
    updates_that_a_crashed_learner_has_lost_are_not_owed_again: Odds(),
    leases_never_expire: Odds(faults=("crash", "loss"), fault_pauses=(4.0,)),
    a_process_that_ended_in_order_is_not_restarted: Odds(faults=("cut",), full_at_end=1.0),
    the_replay_is_not_told_of_crashes: Odds(),
    restart_budgets_are_never_reset: Odds(is_long=True),
    another_number_of_actors_is_ignored: SCALED,
    actors_that_are_not_planned_any_more_are_not_asked_to_stop: SCALED,
    processes_that_hang_are_not_killed: Odds(faults=("pause",)),
    resources_are_never_released: Odds(),
    preempted_actors_do_not_come_back: Odds(faults=("loss", "scale"), network=(Faults(),), fault_pauses=(1.0,)),
    later_steps_of_stale_candidates_are_forgotten: Odds(),
    chains_do_not_tick_the_clock: Odds(),
}


def assert_caught(bug: Bug, odds: Odds) -> None:
    """Plant a bug, and assert that a history fails that does not fail without it."""
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        seed = next((seed for seed in range(SEEDS) if _fails(seed, odds)), None)
    assert seed is not None, f"none of {SEEDS} histories fails"
    run(seed, odds=odds)


def _fails(seed: int, odds: Odds) -> bool:
    try:
        run(seed, odds=odds)
    except HistoryFailed:
        return True
    return False


@pytest.mark.parametrize(("bug", "odds"), BUGS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_bug_is_caught(bug: Bug, odds: Odds) -> None:
    assert_caught(bug, odds)
