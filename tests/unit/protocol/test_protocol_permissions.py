"""Who may send what: the role of a sender is that of its key, whatever its messages claim."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from dpsr_apex.wire.keys import ROLES
from dpsr_apex.wire.messages import (
    ACTOR,
    EVALUATOR,
    LEARNER,
    OWNER,
    SENDERS,
    SERVER,
    Gone,
    Heartbeat,
    LearnerState,
    Message,
    Refused,
    SampleRequest,
    Stranger,
    Welcome,
)
from tests.unit.protocol.watched_service import enter, join, only, reply, service
from tests.unit.wire.examples import EXAMPLES

CLIENTS = {role for role in ROLES if role != SERVER}
STATE = LearnerState('{"updates": 0}', b"arrays")


def documented_senders(message: type) -> set[str]:
    """The roles of clients that send a message to a server, as its docstring says."""
    found = re.match(r"(.*?) -> (?:replay|learner)\b", message.__doc__ or "")
    return set(re.split(r", | or ", found[1])) & CLIENTS if found else set()


def test_the_table_of_senders_is_what_the_messages_document() -> None:
    documented = {message: documented_senders(message) for message in get_args(Message)}
    assert {message: roles for message, roles in documented.items() if roles} == SENDERS


@pytest.mark.parametrize("role", sorted(CLIENTS))
@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_is_refused_unless_the_key_permits_it(message: Message, role: str) -> None:
    replay = service()
    enter(replay, "actor-0", "learner-0", "evaluator-0")
    before, traffic, members = replay.stats(0.0), replay.traffic.counts(), list(replay.sessions)
    outgoing = replay.handle(b"x", message, 0.0, role)
    if role in SENDERS.get(type(message), ()):
        assert replay.traffic.refused_messages == 0
        return
    refused = reply(outgoing)
    assert isinstance(refused, Refused)
    assert type(message).__name__ in refused.reason
    assert replay.traffic.counts() == traffic | {"refused_messages": 1}
    assert replay.stats(0.0)._replace(traffic=before.traffic) == before
    assert list(replay.sessions) == members


@pytest.mark.parametrize("role", sorted(CLIENTS))
@pytest.mark.parametrize("claimed", sorted(CLIENTS))
def test_a_process_joins_in_the_role_of_its_key_only(role: str, claimed: str) -> None:
    outgoing = service().handle(b"x", join("somebody", claimed), 0.0, role)
    assert isinstance(outgoing[0].message, Welcome if role == claimed != OWNER else Refused)


@pytest.mark.parametrize("role", sorted(CLIENTS))
def test_only_the_owner_can_report_the_end_of_the_learner_whose_state_only_a_learner_gets(role: str) -> None:
    replay = service()
    enter(replay, "learner-0")
    replay.handle(b"learner-0", STATE, 0.0, LEARNER)
    replay.handle(b"x", Gone("learner-0"), 0.0, role)
    assert (replay.sessions.learner is None) is (role == OWNER)
    successor = replay.handle(b"x", join("learner-0", "learner", 2), 0.0, role)
    assert not only(successor, LearnerState)
    assert only(replay.handle(b"l", join("learner-0", "learner", 3), 5.0, LEARNER), LearnerState) == [STATE]


@pytest.mark.parametrize("role", [ACTOR, EVALUATOR])
def test_the_address_of_a_member_is_of_no_use_without_its_key(role: str) -> None:
    replay = service()
    enter(replay, "learner-0")
    assert not only(replay.handle(b"learner-0", SampleRequest(), 0.0, LEARNER), Refused)
    sent = replay.handle(b"learner-0", Heartbeat(0), 0.0, role)
    assert [out.message for out in sent] == [Stranger()]


@pytest.mark.parametrize("name", ["learner", "evaluator", "actor-0", "actor-17"])
@pytest.mark.parametrize("role", [ACTOR, LEARNER, EVALUATOR])
def test_a_name_of_another_role_cannot_be_taken_to_keep_its_owner_out(role: str, name: str) -> None:
    replay = service()
    outgoing = replay.handle(b"x", join(name, role), 0.0, role)
    is_own = name.partition("-")[0] == role
    assert isinstance(outgoing[0].message, Welcome if is_own else Refused)
    owner = name.partition("-")[0]
    assert is_own or only(replay.handle(b"y", join(name, owner, 2), 0.0, owner), Welcome)
