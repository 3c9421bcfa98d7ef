"""An actor's process: steps environments, sends chunks, and re-enters stored states between its steps.

A chunk is kept until the replay has acknowledged it, and sent again when an answer is overdue. When too many are on
their way the actor stops stepping, but goes on to recycle and to listen.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import NamedTuple

import numpy as np

from dpsr_apex.config import Config
from dpsr_apex.config_files import parse_config
from dpsr_apex.processes.discovery import Whereabouts
from dpsr_apex.processes.link import Link, ask_terms_of, request_to_join
from dpsr_apex.processes.weights import WeightsClient
from dpsr_apex.replay.transitions import concatenate
from dpsr_apex.roles.actor import Actor, Recycling
from dpsr_apex.roles.build import ACTING, build_agent, build_env, one_thread, seeds
from dpsr_apex.run.interrupt import Interrupt
from dpsr_apex.wire.messages import Acknowledged, Chunk, Insert, Inserted, Message, Recycle, Welcome
from dpsr_apex.wire.sockets import wait

IDLE_SECONDS = 0.05
FLUSH_SECONDS = 1.0  # a slow environment must not keep its transitions for long
DRAIN_SECONDS = 3.0  # for the last acknowledgements of an actor that is told to go
WAIT_SECONDS = 10.0  # without weights, before it is said what is waited for; then twice as long, and so on
RECYCLE_LEAST = 64  # requests that wait; more than that are of rounds that have long ended

log = logging.getLogger(__name__)


class Sent(NamedTuple):
    """A chunk on its way."""

    chunk: Chunk
    rows: int


def run_actor(head: Whereabouts, name: str) -> int:
    """Join the run of this head and act for it until it ends; the exit code."""
    terms = ask_terms_of(head)
    config = one_thread(parse_config(terms.config, f"the config of {head.address.endpoint}"))
    with Interrupt() as interrupt:
        ActorProcess(config, head, terms.run_id, name).run(interrupt)
    return interrupt.exit_code


class Waiting:
    """Says what an actor waits for that has no weights yet, with longer and longer pauses."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._pause = WAIT_SECONDS

    def say(self, what: str) -> None:
        """If it is time to."""
        if time.monotonic() - self._since > self._pause:
            log.info("waiting for %s for %.0f s", what, time.monotonic() - self._since)
            self._pause *= 2


class ActorProcess:
    """One actor, its link to the replay and its weights."""

    def __init__(self, config: Config, head: Whereabouts, run_id: str, name: str) -> None:
        self._config = config
        request = request_to_join(run_id, "actor", name, "")
        agent_seed, actor_seed, recycler_seed, *env_seeds = seeds(
            config, ACTING, 3 + config.actor.environments, request.incarnation
        )
        envs = [build_env(config, seed, training=True) for seed in env_seeds]
        recycler = build_env(config, recycler_seed, training=True) if config.replay.recycles else None
        agent = build_agent(config, envs[0], agent_seed)
        self._actor = Actor(config, agent, envs, recycler, np.random.default_rng(actor_seed))
        self._link = Link(head, request._replace(environment=envs[0].description), config.system.lease)
        self._weights = WeightsClient(agent, head)
        self._asked_steps = -config.system.weights_period  # steps done when weights were last asked for
        self._actors = 1  # for whom the ladder was last climbed
        self._steps = 0
        self._waiting = Waiting()
        self._inserts: list[Insert] = []  # not yet enough for a chunk
        self._flushed = time.monotonic()
        self._on_their_way: deque[Sent] = deque()
        self._next_sequence = 0
        self._progress = time.monotonic()  # when a chunk was last acknowledged, or sent into silence
        self._to_recycle: deque[Recycle] = deque(maxlen=RECYCLE_LEAST)
        self._recycling: Recycling | None = None

    def run(self, interrupt: Interrupt) -> None:
        """Act until the run ends, or this process is told to."""
        log.info("acting in %s", self._link.request.environment)
        while self._link.goodbye is None and not interrupt.asked:
            self._listen(0.0 if self._may_step or self._recycling else IDLE_SECONDS)
            if self._may_step:
                self._step()
            self._recycle_one()
            self._flush_when_due()
            self._send_again_when_overdue()
        if interrupt.asked:
            self._drain()
        self._leave()

    @property
    def _may_step(self) -> bool:
        has_room = len(self._on_their_way) < self._config.system.window
        return has_room and self._link.welcome is not None and self._weights.t is not None

    def _listen(self, seconds: float) -> None:
        sockets = [self._link.client, *([self._weights.client] if self._weights.client else [])]
        wait(sockets, seconds)
        for message in self._link.receive():
            self._handle(message)
        self._link.keep()
        if self._link.welcome is not None and self._link.actors != self._actors:
            self._actors = self._link.actors
            self._actor.stand_on(self._link.welcome.place, self._actors)
        self._weights.follow(self._link.weights)
        self._weights.receive()
        if self._weights.t is None or self._steps - self._asked_steps >= self._config.system.weights_period:
            self._weights.ask()
            self._asked_steps = self._steps
        if self._weights.t is None and self._link.welcome is not None:
            self._waiting.say(self._weights.source)

    def _handle(self, message: Message) -> None:
        match message:
            case Welcome():
                log.info("joined as actor %d of %d at t = %d", message.place, message.actors, message.t)
                self._actors = message.actors
                self._actor.stand_on(message.place, message.actors)
                self._actor.inserted(Inserted(message.t))
                self._send_from(message.sequence)
            case Acknowledged():
                self._acknowledged(message)
            case Recycle():
                self._to_recycle.append(message)
            case _:
                log.warning("the replay sent a %s, which is not for an actor", type(message).__name__)

    def _step(self) -> None:
        insert = self._actor.step()
        self._steps += 1
        if insert is not None:
            self._inserts.append(insert)

    def _flush_when_due(self) -> None:
        rows = sum(len(insert.transitions) for insert in self._inserts)
        overdue = rows > 0 and time.monotonic() - self._flushed > FLUSH_SECONDS
        if rows >= self._config.system.chunk or overdue:
            self._flush()

    def _flush(self) -> None:
        """Send what there is as one chunk."""
        transitions = concatenate([insert.transitions for insert in self._inserts])
        td_errors = [insert.td_errors for insert in self._inserts if insert.td_errors is not None]
        games = self._actor.drain_games()
        chunk = Chunk(
            self._next_sequence,
            transitions,
            np.concatenate(td_errors) if td_errors else None,
            np.array([game.score for game in games], dtype=np.float64),
            np.array([game.steps for game in games], dtype=np.int64),
        )
        self._inserts.clear()
        self._flushed = time.monotonic()
        if not self._on_their_way:
            self._progress = self._flushed
        self._on_their_way.append(Sent(chunk, len(transitions)))
        self._next_sequence += 1
        self._link.sent += len(transitions)
        self._link.send(chunk)

    def _acknowledged(self, message: Acknowledged) -> None:
        self._actor.inserted(Inserted(message.t))
        while self._on_their_way and self._on_their_way[0].chunk.sequence < message.sequence:
            self._on_their_way.popleft()
            self._progress = time.monotonic()
        oldest = self._on_their_way[0].chunk.sequence if self._on_their_way else self._next_sequence
        self._link.request = self._link.request._replace(sequence=oldest)

    def _send_again_when_overdue(self) -> None:
        """What broke on the way is lost without a word; a repeat is harmless, since chunks are numbered."""
        overdue = time.monotonic() - self._progress > self._config.system.lease / 2
        if self._on_their_way and overdue and self._link.welcome is not None:
            self._send_from(0)

    def _send_from(self, sequence: int) -> None:
        for sent in self._on_their_way:
            if sent.chunk.sequence >= sequence:
                self._link.send(sent.chunk)
        self._progress = time.monotonic()

    def _recycle_one(self) -> None:
        """Re-enter one stored state: the actor's own play goes on between two of them."""
        if self._recycling is None and self._to_recycle:
            self._recycling = self._actor.begin_recycling(self._to_recycle.popleft())
        if self._recycling is not None and (answer := self._recycling.advance()) is not None:
            self._link.send(answer)
            self._recycling = None

    def _drain(self) -> None:
        """Wait a little for the acknowledgement of all that was done, so that nothing is lost."""
        if self._link.welcome is not None and self._inserts:
            self._flush()
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._on_their_way and self._link.goodbye is None and time.monotonic() < deadline:
            self._listen(IDLE_SECONDS)

    def _leave(self) -> None:
        goodbye = self._link.goodbye
        unsettled = sum(sent.rows for sent in self._on_their_way)
        log.info("%d transitions sent, %d of them not acknowledged", self._link.sent, unsettled)
        log.info("leaving: %s", goodbye.reason if goodbye else "asked to")
        self._link.leave()
        self._weights.close()
        self._actor.close()
