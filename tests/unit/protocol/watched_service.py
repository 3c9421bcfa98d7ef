"""A replay service without a network, and short ways to talk to it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from dpsr_apex.config import Config, LearnerConfig, ReplayConfig, RunConfig, SystemConfig
from dpsr_apex.protocol.replay_service import Outgoing, ReplayService
from dpsr_apex.replay.records import Floats, Round
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.transitions import Transitions, from_lists
from dpsr_apex.state import State
from dpsr_apex.wire.messages import (
    OWNER,
    SENDERS,
    Acknowledged,
    Chunk,
    Join,
    LearnerState,
    Message,
    Recycle,
    Recycled,
    SaveRequest,
    Welcome,
)

ERA = 7
BATCH = 2
EMPTY = np.zeros(0, dtype=np.int64)

CONFIG = Config(
    replay=ReplayConfig(capacity=20, replace_candidates=4, recycle_candidates=4, recycle_period=10),
    learner=LearnerConfig(batch_size=BATCH, learning_starts=8, steps_per_update=2),
    run=RunConfig(total_steps=100),
    system=SystemConfig(
        in_flight=15,
        in_flight_ahead=1_000,
        in_flight_behind=1_000,
        prefetch=4,
        rate_tolerance=8,
        recycle_deadline=5.0,
        lease=10.0,
    ),
)

DEEP = replace(CONFIG, replay=replace(CONFIG.replay, recycle_steps=3))
"""As above, with chains of up to three steps."""

Kind = TypeVar("Kind")


class WatchedReplay(Replay):
    """Remembers every transition that was inserted: its owner (the action), and its number (the reward)."""

    def __init__(self, config: Config) -> None:
        rng = np.random.default_rng(0)
        super().__init__(config.replay, config.run.total_steps, rng, config.run.environment_steps)
        self.inserted: list[tuple[int, int]] = []

    def insert(self, transitions: Transitions, td_errors: Floats | None = None) -> list[Round]:
        rounds = super().insert(transitions, td_errors)
        self.inserted += zip(transitions.a_tm1.tolist(), map(int, transitions.r_t.tolist()), strict=True)
        return rounds


class KeyedService(ReplayService):
    """A service whose senders have a key that permits what they send, unless a test gives them another."""

    def handle(self, sender: bytes, message: Message, now: float, role: str = "", host: str = "") -> list[Outgoing]:
        return super().handle(sender, message, now, role or self._role_of(sender, message), host)

    def _role_of(self, sender: bytes, message: Message) -> str:
        """That of the member at this address, except for what only the owner sends, and for a Join."""
        roles, member = SENDERS.get(type(message), frozenset({"actor"})), self.sessions.at(sender)
        if isinstance(message, Join):
            return message.role if message.role in roles else "actor"
        return member.role if member and OWNER not in roles else min(roles)


def service(config: Config = CONFIG, **changes: Any) -> KeyedService:
    """With `changes` of settings, by name in any section but `replay`."""
    for section in ("actor", "learner", "run", "system"):
        part = getattr(config, section)
        own = {name: value for name, value in changes.items() if hasattr(part, name)}
        config = replace(config, **{section: replace(part, **own)})
    return KeyedService(config, WatchedReplay(config), "run-1", "0.12.1", ERA)


def ask(number: int) -> list[Outgoing]:
    """Request number `number` for the learner's state."""
    return [Outgoing(b"learner-0", SaveRequest(ERA, number))]


def state_of(replay: KeyedService, updates: int) -> LearnerState:
    """The learner's answer to the last request for its state."""
    era, number = replay.learner.request
    return LearnerState(f'{{"updates": {updates}}}', b"1", era, number)


def give_state(replay: KeyedService, updates: int, now: float = 0.0) -> list[Outgoing]:
    """Let the learner answer the last request for its state."""
    return replay.handle(b"learner-0", state_of(replay, updates), now)


def inserted(replay: KeyedService) -> list[tuple[int, int]]:
    """Owner and number of every transition that was inserted, in order."""
    assert isinstance(replay.replay, WatchedReplay)
    return replay.replay.inserted


def transitions(count: int, first: int = 0, owner: int = 0) -> Transitions:
    numbers = range(first, first + count)
    return from_lists(
        s_tm1=[(f"s {owner} {i}".encode(),) for i in numbers],
        a_tm1=np.full(count, owner),
        r_t=np.array(numbers, dtype=np.float32),
        s_t=[(f"s' {owner} {i}".encode(),) for i in numbers],
        terminal=np.zeros(count, dtype=np.bool_),
        n_steps=np.ones(count, dtype=np.uint8),
        snapshots=[f"snapshot {owner} {i}".encode() for i in numbers],
    )


def chunk(sequence: int, count: int = 5, owner: int = 0, scores: Iterable[float] = (), td_errors: Any = None) -> Chunk:
    """Number `sequence` of chunks that all have `count` transitions."""
    scores = np.array(list(scores), dtype=np.float64)
    rows = transitions(count, sequence * count, owner)
    return Chunk(sequence, rows, td_errors, scores, np.full(scores.size, 11), 0.0)


def acknowledged(sequence: int, t: int, updates: int = 0) -> Acknowledged:
    return Acknowledged(sequence, t, updates, CONFIG.system.in_flight, refused=0)


def join(name: str = "actor-0", role: str = "actor", incarnation: int = 1, **changes: Any) -> Join:
    endpoint = f"tcp://{name}" if role == "learner" else ""
    return Join("run-1", role, name, incarnation, "0.12.1", "digest", 0, 0, endpoint)._replace(**changes)


def enter(replay: KeyedService, *names: str, now: float = 0.0) -> None:
    """Each name joins from the address of the same letters; its role is what comes before the dash."""
    for name in names:
        outgoing = replay.handle(name.encode(), join(name, name.split("-")[0]), now)
        assert isinstance(outgoing[0].message, Welcome), outgoing


def only(outgoing: list[Outgoing], kind: type[Kind], address: str | None = None) -> list[Kind]:
    """The messages of one kind, to one address or to any."""
    return [
        message for to, message in outgoing if isinstance(message, kind) and (address is None or to == address.encode())
    ]


def reply(outgoing: list[Outgoing]) -> Message:
    (one,) = outgoing
    return one.message


def answer(recycle: Recycle, era: int = ERA) -> Recycled:
    count = recycle.identities.size
    return recycled(recycle._replace(era=era), transitions(count))


def recycled(request: Recycle, made: Transitions, failed: Any = EMPTY) -> Recycled:
    """Answer the first candidates of a request with chains of one transition each."""
    count = len(made)
    lengths, rewards = np.ones(count, dtype=np.int64), np.zeros(count)
    identities = request.identities[:count]
    reasons = ["it is damaged"] * len(failed)
    own = request.era, request.round_number, identities, lengths, rewards
    return Recycled(*own, made, np.ones(count), failed, reasons)


def chained(request: Recycle, lengths: list[int]) -> Recycled:
    """Answer the candidates of a request with chains of these lengths."""
    made = transitions(sum(lengths), first=1_000)
    answered = recycled(request, transitions(len(lengths)))
    return answered._replace(lengths=np.array(lengths), transitions=made, td_errors=np.ones(len(made)))


def tick_on(replay: KeyedService, start: float, stop: float) -> list[Outgoing]:
    """Ticks as often as a process gives them."""
    return [sent for now in np.arange(start, stop, 0.2).tolist() for sent in replay.tick(now)] + replay.tick(stop)


def balanced(replay: KeyedService) -> bool:
    traffic = replay.traffic
    return traffic.received == traffic.inserted + traffic.refused + replay.flow.inbox.queued_transitions


def filled(config: Config = CONFIG, **changes: Any) -> tuple[KeyedService, list[Recycle]]:
    """One with actor-0 and actor-1, free running, whose first round was opened at t = 30."""
    replay = service(config, **{"steps_per_update": 0, **changes})
    enter(replay, "actor-0", "actor-1")
    sent = [out for number in range(6) for out in replay.handle(b"actor-0", chunk(number), 0.0)]
    requests = only(sent, Recycle)
    assert replay.t == 30
    assert sum(request.identities.size for request in requests) == 4
    return replay, requests


def restarted(replay: KeyedService, era: int = ERA) -> KeyedService:
    """Another process of it, from what it saves; what was inserted is remembered across processes."""
    facts, arrays = replay.save()
    other = KeyedService(replay.config, WatchedReplay(replay.config), "run-1", "0.12.1", era)
    other.load(State(json.loads(json.dumps(facts)), arrays))
    inserted(other).extend(inserted(replay))
    return other
