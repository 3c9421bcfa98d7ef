"""Instructions that the state machine of a client returns to the process that runs it, as plain records.

The process owns the sockets, the clock, the environment and the agent. It executes instructions in order, and reports
the events that an instruction's docstring names.
"""

from __future__ import annotations

from typing import NamedTuple

from dpsr_apex.wire.messages import Batch, LearnerState, Message, SaveRequest, Weights, WeightsRequest

# The connection to the replay.


class Send(NamedTuple):
    """Send to the replay without waiting; report `undelivered` if the socket does not accept it."""

    message: Message


class LookUpHead(NamedTuple):
    """Look up the address of the run's head; report `head_looked_up`."""


class Reconnect(NamedTuple):
    """Replace the socket to the replay with a new one, connected to the head's current address."""

    silence: float  # seconds since the last message from the replay


class HeadLost(NamedTuple):
    """End this process: the replay has been silent for too long."""

    silence: float  # seconds


class Rejected(NamedTuple):
    """End this process: the replay rejected it."""

    reason: str


LinkInstruction = Send | LookUpHead | Reconnect | HeadLost | Rejected


# The connection to the learner, of a client that requests weights.


class ConnectToLearner(NamedTuple):
    """Replace the socket to the learner with a new one to `endpoint`, or with none if that is empty.

    Report `unreachable` if it cannot be connected to.
    """

    endpoint: str


class RequestWeights(NamedTuple):
    """Send to the learner without waiting; report `undelivered` if the socket does not accept it."""

    request: WeightsRequest


class LoadWeights(NamedTuple):
    """Load these weights into the agent; report `loaded` if that succeeds."""

    weights: Weights


WeightsInstruction = ConnectToLearner | RequestWeights | LoadWeights


# An actor.


class SetClock(NamedTuple):
    """Set the clock t that exploration depends on."""

    t: int


class SetPosition(NamedTuple):
    """Use the exploration rates of actor number `place` of `actors`."""

    place: int
    actors: int


ActorInstruction = LinkInstruction | WeightsInstruction | SetClock | SetPosition


# The learner.


class Work(NamedTuple):
    """Train on the batch, send the state, or start from the state; work items are processed in order."""

    item: Batch | SaveRequest | LearnerState


class PublishWeights(NamedTuple):
    """Report `published` with the newest weights soon: a client is waiting for them."""


class SendWeights(NamedTuple):
    """Send weights to a client of the learner, without waiting."""

    address: bytes
    weights: Weights


LearnerInstruction = LinkInstruction | Work | PublishWeights | SendWeights
