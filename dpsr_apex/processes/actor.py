"""The actor process: environments, agent, sockets and clock.

`ActorClient` decides what is sent and when. While it does not allow the actor to step, the actor still recycles and
receives messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import numpy as np

from dpsr_apex import timeouts
from dpsr_apex.config import Config
from dpsr_apex.config_files import parse_config
from dpsr_apex.interrupt import Interrupt
from dpsr_apex.processes.discovery import HeadLocator
from dpsr_apex.processes.link import RefusedByReplay, ReplayLink, ask, ask_terms_of, request_to_join
from dpsr_apex.processes.weights import LearnerLink
from dpsr_apex.protocol.client_instructions import (
    ActorInstruction,
    ConnectToLearner,
    LoadWeights,
    RequestWeights,
    SetClock,
    SetPosition,
)
from dpsr_apex.protocol.clients import ActorClient
from dpsr_apex.record.moments import decode_moments
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.roles.actor import Actor
from dpsr_apex.roles.authentication import SnapshotKey
from dpsr_apex.roles.build import ACTING, build_agent, build_env, one_thread, seeds
from dpsr_apex.roles.recycling import Recycling
from dpsr_apex.roles.starts import NO_STARTS
from dpsr_apex.wire.messages import Starts, StartsRequest
from dpsr_apex.wire.sockets import wait

log = logging.getLogger(__name__)


def run_actor(head: HeadLocator, name: str) -> int:
    """Join the run of this head and act until it ends; return the exit code."""
    terms = ask_terms_of(head)
    config = one_thread(parse_config(terms.config, f"the config of {head.address.endpoint}"))
    starts = _starts(config, head)
    with Interrupt() as interrupt:
        ActorProcess(config, head, terms.run_id, name, starts).run(interrupt)
    return interrupt.exit_code


def _starts(config: Config, head: HeadLocator) -> Transitions:
    """Return the transitions at whose states some episodes begin, from the head."""
    if not config.actor.start_from:
        return NO_STARTS
    answer = ask(head.address, StartsRequest(), timeouts.HEAD_ANSWER)
    if not isinstance(answer, Starts):
        raise RefusedByReplay(f"{head.address.endpoint} has no moments to begin episodes at")
    return decode_moments(answer.content, f"the moments of {head.address.endpoint}").transitions


class ActorProcess:
    """One actor, and its sockets to the replay and to the learner."""

    def __init__(self, config: Config, head: HeadLocator, run_id: str, name: str, starts: Transitions) -> None:
        request = request_to_join(run_id, "actor", name, "")
        agent_seed, actor_seed, recycler_seed, *env_seeds = seeds(
            config, ACTING, 3 + config.actor.environments, request.incarnation
        )
        envs = [build_env(config, seed, training=True) for seed in env_seeds]
        recycler = build_env(config, recycler_seed, training=True) if config.replay.recycles else None
        agent = build_agent(config, envs[0], agent_seed)
        self._environment = envs[0].description
        self._actor = Actor(config, agent, envs, recycler, np.random.default_rng(actor_seed), starts)
        request = request._replace(environment=self._environment, layout=envs[0].layout)
        self._client = ActorClient(request, config.system, time.monotonic())
        self._replay = ReplayLink(head, self._client)
        self._learner = LearnerLink(agent, head, self._client.weights)
        self._recycling: Recycling | None = None
        self._snapshot_key = SnapshotKey(head.address.keys.snapshot_key)

    def run(self, interrupt: Interrupt) -> None:
        """Act until the run ends, or this process is asked to stop."""
        log.info("acting in %s", self._environment)
        while not self._client.is_over(time.monotonic()):
            if interrupt.asked:
                self._execute(self._client.stop(time.monotonic()))
            self._listen(0.0 if self._client.may_step or self._recycling else timeouts.ACTOR_POLL)
            if self._client.may_step:
                self._step()
            self._recycle_one()
            self._execute(self._client.tick(time.monotonic()))
        self._leave()

    def _listen(self, seconds: float) -> None:
        wait([self._replay.socket, *([self._learner.socket] if self._learner.socket else [])], seconds)
        for message in self._replay.receive():
            self._execute(self._client.handle(message, time.monotonic()))
        for answer in self._learner.receive():
            self._execute(self._client.weights.handle(answer))

    def _step(self) -> None:
        collected = self._actor.step()
        transitions, td_errors = (self._snapshot_key.sign(collected[0]), collected[1]) if collected else (None, None)
        self._client.stepped(transitions, td_errors, [*self._actor.drain_episodes()])

    def _recycle_one(self) -> None:
        """Take one step of recycling, and answer when a chain ends; the actor's own episodes continue in between."""
        if self._recycling is None and (request := self._client.next_to_recycle()) is not None:
            self._recycling = self._actor.begin_recycling(request, self._snapshot_key.faults(request.starts))
        if self._recycling is None:
            return
        last = self._recycling.advance()
        answer = last or self._recycling.ended_chains()
        if last is not None:
            self._recycling = None
        if answer is not None:
            signed = self._snapshot_key.sign(answer.transitions)
            self._execute(self._client.recycled(answer._replace(transitions=signed)))

    def _execute(self, instructions: Iterable[ActorInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case SetClock(t):
                    self._actor.set_clock(t)
                case SetPosition(place, actors):
                    self._actor.set_position(place, actors)
                case ConnectToLearner() | RequestWeights() | LoadWeights():
                    self._learner.execute(instruction)
                case _:
                    self._execute(self._replay.execute(instruction))

    def _leave(self) -> None:
        goodbye, outbox = self._client.membership.goodbye, self._client.outbox
        log.info("%d transitions sent, %d of them not acknowledged", outbox.sent, outbox.unacknowledged)
        log.info("leaving: %s", goodbye.reason if goodbye else "asked to")
        self._replay.leave()
        self._learner.close()
        self._actor.close()
