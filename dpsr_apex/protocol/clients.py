"""The clients of a replay, one state machine per role: what a process of that role sends, receives and waits for.

They own no sockets, clocks, threads, environments or agents: they return instructions, and `now` is passed in. So the
same client can be driven by a process, a test or a simulation.
"""

from __future__ import annotations

import logging
from collections import deque

import numpy as np
from numpy.typing import NDArray

from dpsr_apex import timeouts
from dpsr_apex.config import SystemConfig
from dpsr_apex.protocol.client_instructions import (
    ActorInstruction,
    LearnerInstruction,
    LinkInstruction,
    Send,
    SetClock,
    SetPosition,
    WeightsInstruction,
    Work,
)
from dpsr_apex.protocol.membership import Membership, MembershipMessage
from dpsr_apex.protocol.outbox import Outbox
from dpsr_apex.protocol.prefetch import Prefetch, merge_priorities
from dpsr_apex.protocol.weights import WeightsPublisher, WeightsSubscription
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.wire.messages import (
    Acknowledged,
    Batch,
    Join,
    LearnerState,
    Learning,
    Message,
    Priorities,
    Recycle,
    Recycled,
    SampleRequest,
    SaveRequest,
    Unusable,
    Weights,
    WeightsRequest,
    Welcome,
)

RECYCLE_REQUESTS = 64  # maximum number pending; beyond it, the oldest belong to rounds that ended long ago

log = logging.getLogger(__name__)


class ActorClient:
    """An actor: it may step while its outbox is not full, and recycles on request."""

    def __init__(self, request: Join, system: SystemConfig, now: float) -> None:
        self.membership = Membership(request, system.lease, now)
        self.outbox = Outbox(system.chunk, system.in_flight, system.lease / 2, now)
        self.weights = WeightsSubscription(now)
        self._weights_period = system.weights_period
        self._weights_age = system.weights_age
        self._updates = 0  # made by the learner, as last heard
        self._refused = 0  # transitions, as last heard
        self._steps_since_request = 0
        self._position: tuple[int, int] | None = None
        self._to_recycle: deque[Recycle] = deque(maxlen=RECYCLE_REQUESTS)
        self._stop_by: float | None = None

    @property
    def may_step(self) -> bool:
        """Whether the actor may step its environments now."""
        is_ready = self.membership.welcome is not None and self.weights.t is not None
        is_ending = self.is_stopping or self.membership.goodbye is not None
        return is_ready and not is_ending and not self.outbox.is_full

    @property
    def is_stopping(self) -> bool:
        """Whether the actor was told to stop: it no longer steps or recycles."""
        return self._stop_by is not None

    def is_over(self, now: float) -> bool:
        """Whether the run has ended, or after a stop everything is acknowledged or the time for that is up."""
        if self.membership.goodbye is not None:
            return True
        return self._stop_by is not None and (not self.outbox.unacknowledged or now >= self._stop_by)

    def handle(self, message: Message, now: float) -> list[ActorInstruction]:
        """Handle a message from the replay."""
        instructions: list[ActorInstruction] = [*self.membership.handle(message, now)]
        match message:
            case Welcome():
                log.info("joined as actor %d of %d at t = %d", message.place, message.actors, message.t)
                instructions += [SetClock(message.t), *self.outbox.resume(message.sequence, now)]
            case Acknowledged():
                self.outbox.acknowledge(message.sequence, message.in_flight, now)
                self._updates = message.updates
                self._note_refused(message.refused)
                instructions.append(SetClock(message.t))
            case Recycle():
                self._to_recycle.append(message)
            case _:
                _warn_unless_membership(message, "an actor")
        return instructions + self._reposition()

    def tick(self, now: float) -> list[ActorInstruction]:
        """Do everything that is due; must be called after each step, and at least a few times a second."""
        instructions: list[ActorInstruction] = [*self.weights.follow(self.membership.learner)]
        if self._wants_weights:
            self.weights.want()
            self._steps_since_request = 0
        instructions += self.weights.tick(now)
        if self.membership.welcome is not None:
            self.weights.log_waiting(now)
            instructions += self.outbox.tick(self.membership.actors, now)
        membership, outbox = self.membership, self.outbox
        membership.sent, membership.sequence, membership.acknowledged = outbox.sent, outbox.oldest, outbox.acknowledged
        return [*instructions, *membership.tick(now)]

    def stepped(
        self,
        transitions: Transitions | None,
        td_errors: NDArray[np.float64] | None,
        episodes: list[tuple[float, int]],
    ) -> None:
        """Handle the result of one step of all environments; `episodes`: score and length of each that ended."""
        self._steps_since_request += 1
        if transitions is not None:
            self.outbox.add(transitions, td_errors, self.weights.updates)
        for score, steps in episodes:
            self.outbox.add_episode(score, steps)

    def next_to_recycle(self) -> Recycle | None:
        """Return the next request to recycle; None if there is none."""
        return self._to_recycle.popleft() if self._to_recycle and not self.is_stopping else None

    def recycled(self, answer: Recycled) -> list[ActorInstruction]:
        """Answer a request to recycle."""
        return [Send(answer)]

    def undelivered(self, message: Message) -> None:
        """Note that the socket to the replay did not accept this message."""
        self.membership.undelivered(message)  # a chunk is resent when its acknowledgement is overdue

    def stop(self, now: float) -> list[ActorInstruction]:
        """Stop stepping, and wait a limited time until everything is acknowledged."""
        if self._stop_by is not None:
            return []
        self._stop_by = now + timeouts.ACTOR_DRAIN
        return [] if self.membership.welcome is None else [*self.outbox.flush(now)]

    def _note_refused(self, refused: int) -> None:
        """Log that the replay has refused transitions of this actor; a replay that restarts counts from 0."""
        if refused > self._refused:
            log.warning("the replay refused %d transitions of this actor: see its log for the reasons", refused)
        self._refused = refused

    @property
    def _wants_weights(self) -> bool:
        """Whether there are no weights yet, or they are old by the actor's own steps or by the learner's updates."""
        age = self._updates - self.weights.updates
        is_old = age >= self._weights_age * max(self.membership.actors, 1) and not self.weights.is_requested
        return self.weights.t is None or is_old or self._steps_since_request >= self._weights_period

    def _reposition(self) -> list[ActorInstruction]:
        welcome = self.membership.welcome
        if welcome is None or (welcome.place, self.membership.actors) == self._position:
            return []
        self._position = welcome.place, self.membership.actors
        return [SetPosition(*self._position)]


class LearnerClient:
    """The learner: it prefetches batches, returns priorities, and serves weights."""

    def __init__(self, request: Join, system: SystemConfig, now: float) -> None:
        self.membership = Membership(request, system.lease, now)
        self.prefetch = Prefetch(system.prefetch, system.lease / 2)
        self.publisher = WeightsPublisher()
        self._patience = system.lease / 2
        self._joined_at = now
        self._has_state = False  # whether the state to start from has arrived
        self._outgoing: list[Message] = []

    def handle(self, message: Message, now: float) -> list[LearnerInstruction]:
        """Handle a message from the replay."""
        instructions: list[LearnerInstruction] = [*self.membership.handle(message, now)]
        match message:
            case Welcome():
                log.info("joined at t = %d", message.t)
                self._joined_at = now
                self.prefetch.joined()
            case Batch():
                self.prefetch.arrived(now)
                instructions.append(Work(message))
            case LearnerState():  # a later one would undo updates
                instructions += [] if self._has_state else [Work(message)]
                self._has_state = True
            case SaveRequest():  # before it has started, a learner has no state worth saving
                instructions += [Work(message)] if self._has_state else []
            case _:
                _warn_unless_membership(message, "a learner")
        return instructions

    def handle_request(self, sender: bytes, request: WeightsRequest) -> list[LearnerInstruction]:
        """Handle a request for weights."""
        return [*self.publisher.handle(sender, request)]

    def send(self, message: Priorities | Unusable | Learning | LearnerState) -> None:
        """Queue a message that is sent to the replay at the next tick."""
        self._outgoing.append(message)

    def updated(self, priorities: Priorities, version: int) -> None:
        """Handle the result of one update, after which the weights have this version."""
        self.send(priorities)
        self.publisher.updated(version)

    def published(self, weights: Weights) -> list[LearnerInstruction]:
        """Serve these weights from now on."""
        return [*self.publisher.published(weights)]

    def tick(self, ready: int, now: float) -> list[LearnerInstruction]:
        """Do everything that is due; `ready` batches are waiting to be trained on."""
        instructions = self.flush()
        if self.membership.welcome is not None and self._has_state:
            instructions += self.prefetch.tick(ready, now)
        elif self.membership.welcome is not None and now - self._joined_at > self._patience:
            self.membership.rejoin()  # the state was lost in transit; it is sent again after the next Welcome
        return [*instructions, *self.membership.tick(now)]

    def flush(self) -> list[LearnerInstruction]:
        """Send all queued messages."""
        messages, self._outgoing = self._outgoing, []
        return [Send(message) for message in merge_priorities(messages)]

    def undelivered(self, message: Message) -> None:
        """Note that the socket to the replay did not accept this message."""
        match message:
            case SampleRequest():
                self.prefetch.undelivered()
            case LearnerState():
                self._outgoing.append(message)  # a checkpoint waits for it
            case _:
                self.membership.undelivered(message)


class EvaluatorClient:
    """An evaluator: it follows the clock, and requests weights when an evaluation is due."""

    def __init__(self, request: Join, system: SystemConfig, now: float) -> None:
        self.membership = Membership(request, system.lease, now)
        self.weights = WeightsSubscription(now)

    def handle(self, message: Message, now: float) -> list[LinkInstruction | WeightsInstruction]:
        """Handle a message from the replay."""
        _warn_unless_membership(message, "an evaluator")
        return [*self.membership.handle(message, now)]

    def tick(self, now: float) -> list[LinkInstruction | WeightsInstruction]:
        """Do everything that is due; must be called a few times a second."""
        instructions: list[LinkInstruction | WeightsInstruction] = [*self.membership.tick(now)]
        return [*instructions, *self.weights.follow(self.membership.learner), *self.weights.tick(now)]

    def undelivered(self, message: Message) -> None:
        """Note that the socket to the replay did not accept this message."""
        self.membership.undelivered(message)


def _warn_unless_membership(message: Message, role: str) -> None:
    if not isinstance(message, MembershipMessage):
        log.warning("the replay sent a %s, which is not for %s", type(message).__name__, role)
