"""A real head among clients that are broken, old or hostile: none of them does harm, and each gets a reason.

After every test a new actor and a new learner are served as usual, and in the end the replay is valid.
"""

from __future__ import annotations

import logging
import shutil
import socket as tcp
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from dpsr_apex import timeouts
from dpsr_apex.processes.actor import run_actor
from dpsr_apex.processes.discovery import Address, HeadLocator
from dpsr_apex.processes.link import ReplayLost, request_to_join
from dpsr_apex.processes.weights import pack_weights
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.transitions import Stack
from dpsr_apex.wire.addresses import port_of
from dpsr_apex.wire.codec import MAX_FRAME, MAX_PARTS, PROTOCOL, Frame, decode, encode
from dpsr_apex.wire.keys import load_keys, make_keys, new_keys
from dpsr_apex.wire.messages import (
    ACTOR,
    OWNER,
    SENDERS,
    SERVER,
    Acknowledged,
    Alive,
    Batch,
    Chunk,
    Gone,
    Heartbeat,
    Hello,
    Join,
    LearnerState,
    Leave,
    Message,
    Priorities,
    Recycle,
    Recycled,
    Refused,
    SampleRequest,
    SetActors,
    SetRate,
    StartsRequest,
    Stats,
    StatsRequest,
    StoredRequest,
    Stranger,
    SurveyRequest,
    Terms,
    Welcome,
)
from dpsr_apex.wire.sockets import CURVE_OVERHEAD, ServerSocket, wait
from tests.system.members import (
    Head,
    Member,
    Started,
    SyntheticLearner,
    Visitor,
    candidates,
    end_all_members,
    new_run,
    serving,
    serving_run,
    set_rate,
    started,
)
from tests.system.runs import PATIENCE, eventually, last_checkpoint, restored
from tests.unit.wire.examples import EXAMPLES, walk

CHUNK = 50  # transitions
BATCH = 16
NOTHING = np.zeros(0)
NOBODY = np.zeros(0, dtype=np.int64)
FOR_ANYONE = (Hello, Join, Gone, StatsRequest, SetRate, SetActors, SurveyRequest, StoredRequest, StartsRequest)


def chunk(sequence: int, count: int = CHUNK, **changes: Any) -> Chunk:
    return Chunk(sequence, walk(count, stack=1), None, NOTHING, NOBODY, 0.0)._replace(**changes)


def acknowledged(replies: list[Message]) -> list[tuple[int, int]]:
    """Return sequence number and clock of each acknowledgement."""
    return [(reply.sequence, reply.t) for reply in replies if isinstance(reply, Acknowledged)]


def answer(recycle: Recycle, **changes: Any) -> Recycled:
    count = recycle.identities.size
    lengths, rewards = np.ones(count, dtype=np.int64), np.zeros(count)
    made = walk(count, stack=1)
    return Recycled(
        recycle.era, recycle.round_number, recycle.identities, lengths, rewards, made, np.ones(count), NOBODY, []
    )._replace(**changes)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with serving(tmp_path_factory.mktemp("hostile") / "run") as head:
        yield head


@pytest.fixture
def head(served: Head) -> Iterator[Head]:
    """Start one head for all tests; it must still serve after each of them."""
    yield served
    set_rate(served.run, 0)
    end_all_members(served.run)
    assert_serves(served)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def assert_serves(head: Head) -> None:
    """Assert that a new actor and a new learner are served, and that the counters add up."""
    with closing(Member(head.run, "actor", "normal")) as actor, closing(SyntheticLearner(head.run)) as learner:
        before = actor.stats()
        assert (1, before.t + CHUNK) in acknowledged(actor.say(chunk(0)))
        batches = [reply for reply in learner.say(SampleRequest()) if isinstance(reply, Batch)]
        assert [len(batch.identities) for batch in batches] == [BATCH]
        learner.leave()
        actor.leave()
    assert_balanced(head.stats())


def assert_balanced(stats: Stats) -> None:
    traffic = stats.traffic
    assert traffic.received == traffic.inserted + traffic.refused + stats.queued
    assert traffic.inserted == stats.t


def growth(head: Head, before: dict[str, int]) -> dict[str, int]:
    """Return the counters of traffic that have changed."""
    return {name: count - before[name] for name, count in head.traffic().items() if count != before[name]}


# Members that send something wrong.


def test_a_chunk_sent_twice_is_inserted_once_and_acknowledged_twice(head: Head, stack: ExitStack) -> None:
    actor = stack.enter_context(closing(Member(head.run, "actor", "stutterer")))
    t = actor.stats().t
    before = head.traffic()
    replies = actor.say(chunk(0), chunk(0))
    assert acknowledged(replies) == [(1, t + CHUNK)] * 2
    assert growth(head, before) == {"sent": CHUNK, "received": CHUNK, "inserted": CHUNK, "duplicate_chunks": 1}
    assert actor.stats().t == t + CHUNK


def asked_to_recycle(actor: Member, rounds: int = 1) -> list[Recycle]:
    """Return the requests of `rounds` open rounds, after inserting what opens them."""
    requests: dict[int, Recycle] = {}
    sequence = actor.welcome.sequence
    while len(requests) < rounds:
        requests |= {request.round_number: request for request in candidates(actor.say(chunk(sequence)))}
        sequence += 1
    return list(requests.values())


def moved(before: Stats, after: Stats) -> dict[str, Any]:
    """Return the counters of the replay that have changed, while nothing was inserted."""
    assert (before.t, before.stored) == (after.t, after.stored)
    counts = asdict(before.replay)
    return {name: count - counts[name] for name, count in asdict(after.replay).items() if count != counts[name]}


def test_an_answer_to_a_round_that_has_ended_is_counted_and_dropped(head: Head, stack: ExitStack) -> None:
    actor = stack.enter_context(closing(Member(head.run, "actor", "late")))
    request = asked_to_recycle(actor)[-1]
    assert actor.say(answer(request)) == []
    before = actor.stats()
    assert actor.say(answer(request)) == []
    assert moved(before, actor.stats()) == {"answers_late": request.identities.size}


def test_an_answer_of_another_era_is_counted_and_dropped(head: Head, stack: ExitStack) -> None:
    actor = stack.enter_context(closing(Member(head.run, "actor", "former")))
    request = asked_to_recycle(actor)[-1]
    before = actor.stats()
    assert actor.say(answer(request, era=request.era + 1)) == []
    after = actor.stats()
    assert moved(before, after) == {}
    assert after.traffic.stale_eras == before.traffic.stale_eras + 1


def test_an_answer_for_candidates_of_another_round_is_refused(head: Head, stack: ExitStack) -> None:
    actor = stack.enter_context(closing(Member(head.run, "actor", "confused")))
    one, other = asked_to_recycle(actor, rounds=2)[:2]
    assert set(other.identities) - set(one.identities)
    before = actor.stats()
    (refused,) = actor.say(answer(other, round_number=one.round_number))
    assert isinstance(refused, Refused)
    assert f"round {one.round_number}" in refused.reason
    after = actor.stats()
    assert moved(before, after) == {}
    assert after.traffic.refused_messages == before.traffic.refused_messages + 1


BAD_ERRORS = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "-1.0": -1.0, "1e+60": 1e60}


def wrong_priorities(head: Head, stack: ExitStack, bad: float) -> tuple[Member, Message]:
    learner = stack.enter_context(closing(SyntheticLearner(head.run)))
    learner.send(SampleRequest())
    batch = learner.await_one(Batch)
    return learner, Priorities(batch.era, batch.identities, np.array([1.0] * (BATCH - 1) + [bad]))


def wrong_answer(head: Head, stack: ExitStack, bad: float) -> tuple[Member, Message]:
    actor = stack.enter_context(closing(Member(head.run, "actor", "miscalculating")))
    request = asked_to_recycle(actor)[-1]
    errors = np.ones(request.identities.size)
    errors[-1] = bad
    return actor, answer(request, td_errors=errors)


@pytest.mark.parametrize("bad", BAD_ERRORS)
@pytest.mark.parametrize("make", [wrong_priorities, wrong_answer])
def test_an_invalid_td_error_is_refused_with_its_value(
    head: Head, stack: ExitStack, make: Callable[[Head, ExitStack, float], tuple[Member, Message]], bad: str
) -> None:
    assert_serves(head)  # there is something to draw
    member, message = make(head, stack, BAD_ERRORS[bad])
    before = member.stats()
    replies = member.say(message)
    (reason,) = [reply.reason for reply in replies if isinstance(reply, Refused)]
    assert bad in reason
    after = member.stats()
    assert moved(before, after) == {}
    malformed = after.traffic.malformed - before.traffic.malformed
    refused = after.traffic.refused_messages - before.traffic.refused_messages
    assert sorted([malformed, refused]) == [0, 1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e7])
def test_an_invalid_reward_is_refused_with_its_value_and_the_others_are_stored(
    head: Head, stack: ExitStack, bad: float
) -> None:
    actor = stack.enter_context(closing(Member(head.run, "actor", f"miscalculating-{bad}")))
    t, before = head.stats().t, head.traffic()
    rows = replace(walk(3, stack=1), r_t=np.array([0.0, bad, 0.0], dtype=np.float32))
    settled = [reply for reply in actor.say(chunk(0, transitions=rows)) if isinstance(reply, Acknowledged)][-1]
    assert (settled.sequence, settled.t, settled.refused) == (1, t + 2, 1)
    assert growth(head, before) == {"sent": 3, "received": 3, "inserted": 2, "refused": 1, "bad_rewards": 1}
    note = f"miscalculating-{bad}: 1 of 3 transitions refused: the reward {np.float32(bad)} (env.reward_limit is 1e+06)"
    assert note in [note.text for note in head.stats().notes]


def test_a_late_priority_is_stale_and_does_not_change_the_transition_in_its_slot(
    tmp_path: Path, stack: ExitStack
) -> None:
    head = stack.enter_context(serving(tmp_path / "run", "replay.method=per", "replay.capacity=64"))
    actor = stack.enter_context(closing(Member(head.run, "actor", "actor")))
    learner = stack.enter_context(closing(SyntheticLearner(head.run)))
    actor.say(chunk(0, 64, td_errors=np.ones(64)))
    learner.send(SampleRequest())
    batch = learner.await_one(Batch)
    assert learner.say(Priorities(batch.era, batch.identities, np.full(BATCH, 2.0))) == []
    assert learner.stats().replay.priorities_updated == BATCH
    actor.say(chunk(1, 64, td_errors=np.full(64, 3.0)))  # replaces all of the oldest
    actor.leave()
    assert learner.say(Priorities(batch.era, batch.identities, np.full(BATCH, 1e6))) == []
    counters = learner.stats().replay
    assert (counters.priorities_updated, counters.priorities_stale) == (BATCH, BATCH)
    replay = restored_at_the_end(head, learner)
    np.testing.assert_allclose(replay.priorities, 3.0, atol=1e-5)


def restored_at_the_end(head: Head, learner: SyntheticLearner) -> Replay:
    """Return the replay of the checkpoint that the head writes when it is told to end."""
    head.process.terminate()
    learner.give_state_and_leave()
    assert head.wait() == 0
    return restored(head.run, last_checkpoint(head.run))


def test_a_learner_gets_at_most_as_many_batches_ahead_as_the_prefetch_limit(head: Head, stack: ExitStack) -> None:
    learner = stack.enter_context(closing(SyntheticLearner(head.run)))
    learner.settle()
    set_rate(head.run, 1_000_000)  # nothing is due for a long time
    before = head.traffic()
    assert learner.say(*[SampleRequest()] * 10) == []
    assert growth(head, before) == {"dropped_requests": 6}
    set_rate(head.run, 0)
    assert [type(reply) for reply in learner.say()] == [Batch] * 4


UNREADABLE_STATES = {
    "no JSON": LearnerState("{", b""),
    "no object": LearnerState("[]", SyntheticLearner.STATE.arrays),
    "no end": LearnerState("[" * 100_000, SyntheticLearner.STATE.arrays),
    "no updates": LearnerState("{}", SyntheticLearner.STATE.arrays),
    "less than none": LearnerState('{"updates": -1}', SyntheticLearner.STATE.arrays),
    "no number": LearnerState('{"updates": true}', SyntheticLearner.STATE.arrays),
    "no weights": LearnerState(SyntheticLearner.STATE.facts, b"garbage"),
    "no numpy": LearnerState(
        SyntheticLearner.STATE.facts, pack_weights({"x": np.ones(1, np.float16)}).replace(b"F16", b"BF16")
    ),
    "no finite weights": LearnerState(SyntheticLearner.STATE.facts, pack_weights({"number": np.full(1, np.nan)})),
}


@pytest.mark.parametrize("state", UNREADABLE_STATES)
def test_an_invalid_learner_state_is_refused(head: Head, stack: ExitStack, state: str) -> None:
    learner = stack.enter_context(closing(SyntheticLearner(head.run)))
    learner.settle()
    before = head.traffic()
    (refused,) = learner.say(UNREADABLE_STATES[state])
    assert isinstance(refused, Refused)
    assert growth(head, before) == {"malformed": 1}


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (SyntheticLearner.STATE._replace(facts='{"updates": 1000000000000000}'), "1,000,000,000,000,000 updates"),
        (SyntheticLearner.STATE._replace(arrays=pack_weights({"number": np.ones(2)})), "shapes"),
        (SyntheticLearner.STATE._replace(arrays=pack_weights({"another": np.ones(1)})), "names"),
    ],
)
def test_a_state_that_cannot_be_that_of_the_learner_is_refused_and_the_next_learner_gets_the_one_before(
    head: Head, stack: ExitStack, state: LearnerState, why: str
) -> None:
    learner = SyntheticLearner(head.run)
    learner.settle()
    assert learner.say(learner.STATE) == []
    (refused,) = learner.say(state)
    assert isinstance(refused, Refused)
    assert why in refused.reason
    learner.leave()
    successor = stack.enter_context(closing(SyntheticLearner(head.run)))
    assert successor.await_one(LearnerState) == learner.STATE


# Clients that are not members, or whose name is in use.


FOR_MEMBERS = [
    message for message in EXAMPLES if type(message) in SENDERS and not isinstance(message, (*FOR_ANYONE, LearnerState))
]


@pytest.mark.parametrize("message", [*FOR_MEMBERS, SyntheticLearner.STATE], ids=lambda message: type(message).__name__)
def test_a_message_for_members_is_not_accepted_before_joining(head: Head, stack: ExitStack, message: Message) -> None:
    visitor = stack.enter_context(closing(Visitor(head.run, min(SENDERS[type(message)]))))
    before = visitor.stats()
    assert visitor.say(message) == [Stranger()]
    after = visitor.stats()
    assert moved(before, after) == {}
    assert after.traffic.strangers == before.traffic.strangers + 1


@pytest.mark.parametrize(
    ("changes", "named"),  # what the reason must name
    [
        ({"run_id": "elsewhere"}, "elsewhere"),
        ({"role": "critic"}, "'critic'"),
        ({"emulator": "0.0.1"}, "ale-py 0.0.1"),
        ({"environment": "another"}, "environment of odd"),
        ({"name": ""}, "1 to 100"),
        ({"name": "x" * 1_000_000}, "1 to 100"),
        ({"name": "two\nlines"}, "1 to 100"),
        ({"name": "\x1b[2Jclear"}, "1 to 100"),
        ({"run_id": "x" * 1_000_000}, "xxx"),
        ({"role": "\n" * 1_000_000}, "actor's key"),
        ({"emulator": "\x1b[2J" * 10_000}, "ale-py"),
        ({"environment": "\n" * 1_000_000}, "environment of odd"),
    ],
    ids=lambda part: repr(part)[:40],
)
def test_a_client_that_does_not_fit_is_refused_in_one_short_line(
    head: Head, stack: ExitStack, changes: dict[str, Any], named: str
) -> None:
    first = stack.enter_context(closing(Member(head.run, "actor", "first")))
    visitor = stack.enter_context(closing(Visitor(head.run, ACTOR)))
    request = first.request._replace(**{"name": "odd", "incarnation": 1, **changes})
    before = head.traffic()
    (refused,) = visitor.say(request)
    assert isinstance(refused, Refused)
    assert named in refused.reason
    assert refused.reason.isprintable()
    assert len(refused.reason) < 500
    assert growth(head, before) == {"refused_joins": 1}
    assert [actor.name for actor in head.stats().actors] == ["first"]


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """A head with a short lease and a short recycling deadline."""
    settings = ("system.lease=5", "system.recycle_deadline=1")
    with serving(tmp_path_factory.mktemp("hasty") / "run", *settings) as head:
        yield head


def test_a_name_is_free_again_when_its_owner_was_silent_for_longer_than_the_lease(
    hasty: Head, stack: ExitStack
) -> None:
    first = stack.enter_context(closing(Member(hasty.run, "actor", "twin")))
    second = stack.enter_context(closing(Visitor(hasty.run, ACTOR)))
    join = request_to_join(first.request.run_id, "actor", "twin", "synthetic")
    (refused,) = second.say(join)
    assert isinstance(refused, Refused)
    assert "twin" in refused.reason
    assert "--name" in refused.reason
    assert Alive in map(type, first.say(Heartbeat(0)))
    eventually(lambda: Welcome in map(type, second.say(join)))  # no answer while the owner may return
    assert first.say(Heartbeat(0)) == [Stranger()]
    assert [actor.name for actor in hasty.stats().actors] == ["twin"]


def test_an_answer_to_a_round_that_has_expired_is_counted_and_dropped(hasty: Head, stack: ExitStack) -> None:
    actor = stack.enter_context(closing(Member(hasty.run, "actor", "slow")))
    request = asked_to_recycle(actor)[-1]
    eventually(lambda: actor.stats().replay.rounds_expired > request.round_number)
    before = actor.stats()
    assert actor.say(answer(request)) == []
    count = request.identities.size
    assert moved(before, actor.stats()) == {"answers_late": count, "chain_steps_late": count}
    assert_serves(hasty)


# Data that is not a message.


def noise(rng: np.random.Generator, messages: Sequence[Message], count: int) -> Iterator[list[bytes]]:
    """Yield random frames, and these messages with random damage; a few are still valid."""
    whole = [[bytes(frame) for frame in encode(message)] for message in messages]
    for _ in range(count):
        frames = list(whole[rng.integers(len(whole))])
        at = int(rng.integers(len(frames)))
        frame = frames[at]
        place = int(rng.integers(len(frame) + 1))
        match rng.integers(7):
            case 0:
                frames = [rng.bytes(int(rng.integers(64))) for _ in range(rng.integers(1, MAX_PARTS + 2))]
            case 1:
                frames[at] = frame[:place]
            case 2:
                frames[at] = frame[:place] + rng.bytes(1) + frame[place + 1 :]
            case 3:
                frames[0] = frames[0][: place % 8] + rng.bytes(1) + frames[0][place % 8 + 1 :]
            case 4:
                del frames[at]
            case 5:
                frames.insert(at, frame)
            case 6:
                frames[1:] = whole[rng.integers(len(whole))][1:]
        yield frames or [b""]


@pytest.mark.parametrize("role", ["stranger", "actor", "learner"])
def test_thousands_of_broken_messages_do_no_harm(head: Head, stack: ExitStack, role: str) -> None:
    rng = np.random.default_rng(len(role))
    visitor = Visitor(head.run, ACTOR) if role == "stranger" else Member(head.run, role, f"noisy-{role}")
    stack.enter_context(closing(visitor))
    request = visitor.request if isinstance(visitor, Member) else request_to_join("elsewhere", "actor", "noisy", "")
    era = visitor.welcome.era if isinstance(visitor, Member) else 0
    priorities = Priorities(era, np.arange(BATCH), np.ones(BATCH))
    said = [*EXAMPLES, request, SyntheticLearner.STATE, chunk(0), SampleRequest(), priorities]
    malformed = head.traffic()["malformed"]
    for number in range(10):
        for frames in noise(rng, said, 100):
            visitor.send_frames(frames)
        await_refusal(visitor, request._replace(run_id=f"end of {number}"))
        visitor.send(request)  # it may have left
    assert head.traffic()["malformed"] > malformed + 60
    assert_balanced(head.stats())
    visitor.send(Leave(0))  # under whichever name it has joined


def await_refusal(visitor: Visitor, request: Join) -> None:
    """Send a Join until it is refused: the connection is closed again and again. Other answers are those to noise."""

    def is_refused() -> bool:
        visitor.client.send(encode(request))
        wait([visitor.client], 1.0)
        answers = iter(visitor.client.receive, None)
        reasons = [answer.reason for answer in map(decode, answers) if isinstance(answer, Refused)]
        return any(request.run_id in reason for reason in reasons)

    eventually(is_refused)


def test_a_message_of_100_000_parts_is_malformed(head: Head, stack: ExitStack) -> None:
    actor = stack.enter_context(closing(Member(head.run, "actor", "shredder")))
    actor.settle()
    before = head.traffic()
    actor.send_frames([b"x"] * 100_000)
    assert [type(reply) for reply in actor.say()] == [Refused]
    assert growth(head, before) == {"malformed": 1}


def connected(head: Head) -> tcp.socket:
    return tcp.create_connection(("127.0.0.1", port_of(head.address(OWNER).endpoint)), timeout=PATIENCE)


def greeted(head: Head) -> tcp.socket:
    """A bare connection to the head, after the greetings of ZeroMQ (version 3.0) and before any proof of a key."""
    connection = connected(head)
    greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
    connection.sendall(greeting)
    received = b""
    while len(received) < len(greeting):
        received += connection.recv(1_000)
    return connection


LONG = b"\x02"  # the next eight bytes are the size of the frame


@pytest.mark.parametrize("size", [MAX_FRAME + CURVE_OVERHEAD + 1, 2**62, 2**64 - 1])
def test_a_frame_above_the_size_limit_closes_the_connection(head: Head, size: int) -> None:
    with closing(greeted(head)) as connection:
        connection.sendall(LONG + size.to_bytes(8))
        with pytest.raises(ConnectionError):
            send_much(connection)


def send_much(connection: tcp.socket) -> None:
    """Send more than a frame may have, and than the system's buffers hold."""
    for _ in range(64):
        connection.sendall(bytes(MAX_FRAME))


def test_an_announced_frame_that_is_not_sent_takes_no_memory(head: Head, stack: ExitStack) -> None:
    before = head.resident_bytes
    for _ in range(20):
        connection = stack.enter_context(closing(greeted(head)))
        connection.sendall(LONG + MAX_FRAME.to_bytes(8) + b"the beginning of it")
    head.stats()
    assert head.resident_bytes - before < 10 * MAX_FRAME


def test_sizes_that_do_not_add_up_are_refused(head: Head, stack: ExitStack) -> None:
    actor = stack.enter_context(closing(Member(head.run, "actor", "boaster")))
    actor.settle()
    header, columns, pieces = encode(chunk(0, 2))
    sizes = 2 * (7).to_bytes(4, "little")  # of two pieces
    assert sizes in bytes(columns)
    actor.send_frames([header, bytes(columns).replace(sizes, b"\xff" * len(sizes)), pieces])
    (refused,) = actor.say()
    assert isinstance(refused, Refused)
    assert "transitions" in refused.reason


def test_idle_connections_do_not_lock_out_other_clients(tmp_path: Path, stack: ExitStack) -> None:
    few_files = ("bash", "-c", 'ulimit -Sn 100; exec "$@"', "bash")  # each connection takes one
    head = stack.enter_context(serving(tmp_path / "run", before=few_files))
    member = stack.enter_context(closing(Member(head.run, "actor", "early")))
    for _ in range(250):
        stack.enter_context(closing(connected(head)))
    for sequence in range(4):  # rows are written meanwhile
        assert (sequence + 1, CHUNK * (sequence + 1)) in acknowledged(member.say(chunk(sequence)))
    assert_serves(head)


# A member that stops reading.


def test_a_member_that_stops_reading_delays_no_other_and_fills_no_memory(head: Head, stack: ExitStack) -> None:
    actor = stack.enter_context(closing(Member(head.run, "actor", "writer")))
    learner = stack.enter_context(closing(SyntheticLearner(head.run)))
    size = 5_000
    frames: list[Stack] = [(bytes([i]) * size,) for i in range(CHUNK + 1)]
    large = replace(walk(CHUNK, stack=1), s_tm1=frames[:-1], s_t=frames[1:])
    for sequence in range(8):
        actor.say(chunk(sequence, transitions=large))
    before = head.resident_bytes
    requests = 2_000
    learner.send(*[SampleRequest()] * requests)
    eventually(lambda: head.stats().rate.batches >= requests)  # others are served meanwhile
    assert (9, head.stats().t + CHUNK) in acknowledged(actor.say(chunk(8)))
    assert head.resident_bytes - before < requests * BATCH * size / 2
    came = read_again(learner)
    assert 1 <= sum(isinstance(message, Batch) for message in came) < requests


def read_again(member: Member) -> list[Message]:
    """Return all messages queued for it. Messages beyond the queue were dropped, so the request is repeated."""
    came: list[Message] = []

    def caught_up() -> bool:
        member.client.send(encode(Hello()))
        wait([member.client], 1.0)
        while (frames := member.client.receive()) is not None:
            came.append(decode(frames))
        return any(isinstance(message, Terms) for message in came)

    eventually(caught_up)
    return came


def test_after_all_this_the_replay_is_valid(served: Head, stack: ExitStack) -> None:
    learner = stack.enter_context(closing(SyntheticLearner(served.run)))
    stats = learner.stats()
    replay = restored_at_the_end(served, learner)  # which checks its invariants
    assert (replay.t, replay.size) == (stats.t, stats.stored)
    traffic = last_checkpoint(served.run).parts["replay"].facts["traffic"]
    assert traffic == stats.traffic.counts()
    assert traffic["received"] == traffic["inserted"] + traffic["refused"]


# What a user reads who starts an actor that cannot join.

NEXT_VERSION = PROTOCOL + 1


def of_next_version(message: Message) -> list[bytes]:
    """The message as the next version of the protocol would send it, as far as this one can know."""
    frames = [bytes(frame) for frame in encode(message)]
    return [msgpack.packb([NEXT_VERSION, *msgpack.unpackb(frames[0])[1:]]), *frames[1:]]


@pytest.mark.parametrize(
    ("replies", "code", "words"),
    [
        (of_next_version(Refused("it speaks protocol 1, this run 2: install the same version")), 2, "install the same"),
        (of_next_version(Terms("run", "config = 1")), 2, f"version {NEXT_VERSION}"),
        ([b"HTTP/1.1 400 Bad Request"], 1, "tcp://127.0.0.1:"),
        (encode(Stranger()), 1, "tcp://127.0.0.1:"),
    ],
)
def test_an_actor_reports_a_server_that_it_cannot_use(
    tmp_path: Path, stack: ExitStack, replies: list[Frame], code: int, words: str
) -> None:
    make_keys(tmp_path)
    keys = load_keys(tmp_path / "server.key", SERVER)
    server = stack.enter_context(closing(ServerSocket("tcp://127.0.0.1:0", keys, accepted=[ACTOR])))
    address = server.endpoint.removeprefix("tcp://")
    key = ("--key", tmp_path / "actor.key")
    actor = stack.enter_context(started(tmp_path / "log", "actor", "--connect", address, *key))
    while actor.runs:
        wait([server], 0.1)
        if received := server.receive():
            server.send(received.sender, replies)
    assert_refused(actor, code, words)


def assert_refused(actor: Started, code: int, *words: str) -> None:
    """Assert that it has ended with this exit code, and that its last line names these; there is no traceback."""
    assert actor.wait() == code, actor.said
    assert actor.last_line.startswith("dpsr-apex: ")
    for word in words:
        assert word in actor.last_line
    assert "Traceback" not in actor.said


def test_a_client_of_another_version_is_told_to_install_the_same(hasty: Head, stack: ExitStack) -> None:
    visitor = stack.enter_context(closing(Visitor(hasty.run, ACTOR)))
    before = hasty.traffic()
    visitor.send_frames(of_next_version(Hello()))
    (refused,) = visitor.say()
    assert isinstance(refused, Refused)
    assert [part for part in (str(NEXT_VERSION), str(PROTOCOL), "dpsr_apex") if part not in refused.reason] == []
    assert growth(hasty, before) == {"malformed": 1}


def test_an_actor_with_another_environment_is_refused(hasty: Head, tmp_path: Path, stack: ExitStack) -> None:
    assert_serves(hasty)  # its environment is a synthetic one from now on
    before = hasty.traffic()
    actor = stack.enter_context(started(tmp_path / "log", "actor", *hasty.connect(ACTOR), "--name", "real"))
    assert_refused(actor, 2, "environment of real", "(synthetic)")
    assert growth(hasty, before) == {"refused_joins": 1}


def test_an_actor_leaves_when_another_run_is_served_at_the_same_address(tmp_path: Path, stack: ExitStack) -> None:
    first = stack.enter_context(serving(tmp_path / "first"))
    actor = stack.enter_context(started(tmp_path / "log", "actor", *first.connect(ACTOR), "--name", "faithful"))
    eventually(lambda: [one.name for one in first.stats().actors] == ["faithful"])
    bind = first.host_and_port
    first.kill()
    other = new_run(tmp_path / "second")
    shutil.copytree(first.run.keys, other.keys)
    second = stack.enter_context(serving_run(other, bind=bind))
    assert_refused(actor, 2, *(head.run.identity.read_text() for head in (first, second)))
    assert second.traffic()["refused_joins"] == 1


def test_an_actor_without_a_head_reports_the_address(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(timeouts, "HEAD_ANSWER", 0.5)
    monkeypatch.setattr(timeouts, "HEAD_SILENCE", 0.1)
    caplog.set_level(logging.INFO)
    nowhere = f"tcp://127.0.0.1:{stack.enter_context(closing(unused())).getsockname()[1]}"
    with pytest.raises(ReplayLost, match=f"{nowhere} .*--key"):
        run_actor(HeadLocator(Address(nowhere, new_keys()[ACTOR])), "lonely")
    assert nowhere in caplog.text, "it reports what it waits for"


def unused() -> tcp.socket:
    """Return a socket whose port is reserved while it is open, but not listening."""
    port = tcp.socket()
    port.bind(("127.0.0.1", 0))
    return port
