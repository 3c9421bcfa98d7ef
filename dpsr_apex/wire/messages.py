"""Every message between the processes of a run, as typed records. No sockets and no encoding here.

How they are encoded is defined in `dpsr_apex.wire.codec`, when they are sent and what follows in `dpsr_apex.protocol`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.records import Counters
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.wire.statistics import ActorStats, Figure, Note, RateStats, Traffic, Wait

# Transitions, batches and candidates. An `era` identifies one replay process: after a restart from a checkpoint the
# replay may reuse identities and round numbers, so answers carry the era of the request.


class Recycle(NamedTuple):
    """replay -> actor: re-enter these states, and take another action in each.

    Row i of `starts` is the stored transition `identities[i]` without its next state (an empty s_t): the state to
    re-enter, and the action that must not be repeated.
    """

    era: int
    round_number: int
    identities: NDArray[np.int64]
    starts: Transitions


class Recycled(NamedTuple):
    """actor -> replay: the transitions of the new actions and of the steps after them; chain i answers `identities[i]`.

    The transitions of all chains are concatenated.
    """

    era: int
    round_number: int
    identities: NDArray[np.int64]
    lengths: NDArray[np.int64]  # transitions of each chain
    rewards: NDArray[np.float64]  # of each chain: sum over its steps, without discount
    transitions: Transitions
    td_errors: NDArray[np.float64]  # |TD error| of each transition, by the newest networks
    failed: NDArray[np.int64]  # identities of candidates whose state could not be restored


class SampleRequest(NamedTuple):
    """learner -> replay: request for one more batch."""


class Batch(NamedTuple):
    """replay -> learner: transitions sampled by priority at clock t, without their snapshots."""

    era: int
    t: int
    identities: NDArray[np.int64]
    weights: NDArray[np.float32]
    transitions: Transitions


class Priorities(NamedTuple):
    """learner -> replay: |TD errors| of transitions, by identity, because they may have been replaced."""

    era: int
    identities: NDArray[np.int64]
    td_errors: NDArray[np.float64]


# Membership: how a process joins a run, stays a member and leaves.


class Hello(NamedTuple):
    """anyone -> replay: request for the run and its config."""


class Terms(NamedTuple):
    """replay -> anyone: the run and its whole config, as TOML."""

    run_id: str
    config: str


class Join(NamedTuple):
    """actor, learner or evaluator -> replay: request to join, or to rejoin after the link or the replay was lost."""

    run_id: str
    role: str  # "actor", "learner" or "evaluator"
    name: str
    incarnation: int  # random number, different for each process: a restarted one has another
    emulator: str  # version of ale-py
    environment: str  # description of the environment's behaviour; empty for a role without one
    sequence: int  # actors: the first chunk that can still be sent
    weights_endpoint: str  # learner: where it serves weights; empty for other roles
    weights_key: bytes  # learner: the public key of that endpoint; empty without keys


class Welcome(NamedTuple):
    """replay -> sender of a Join: you are a member, until you are silent for longer than the lease."""

    era: int
    t: int
    place: int  # index of an actor, from 0; -1 for other roles
    actors: int
    sequence: int  # actors: the next chunk that the replay expects
    weights_endpoint: str  # empty while there is no learner
    weights_key: bytes


class Refused(NamedTuple):
    """replay -> anyone: a rejection and its reason. Encoded identically in every version of the protocol."""

    reason: str


class Stranger(NamedTuple):
    """replay -> anyone: you are not, or no longer, a member; join first."""


class Heartbeat(NamedTuple):
    """member -> replay, about once a second: renews the lease."""

    sent: int  # actors: transitions sent so far, without repeats


class Alive(NamedTuple):
    """replay -> member, in answer to a Heartbeat."""

    t: int
    actors: int  # planned or joined, for the exploration ladder
    weights_endpoint: str
    weights_key: bytes


class Leave(NamedTuple):
    """member -> replay: the last message of a member."""

    sent: int


class Goodbye(NamedTuple):
    """replay -> member: the run is ending, leave."""

    finished: bool  # False: it was stopped, and may be resumed
    reason: str


class Gone(NamedTuple):
    """supervisor -> replay: this process has ended, do not wait for its lease to expire."""

    name: str


# Streams of transitions, weights and states.


class Chunk(NamedTuple):
    """actor -> replay: new transitions in chronological order, and the episodes that ended."""

    sequence: int  # of this chunk in the actor's stream
    transitions: Transitions
    td_errors: NDArray[np.float64] | None  # the actor's own |TD errors|, if they determine the initial priorities
    scores: NDArray[np.float64]  # of these episodes
    lengths: NDArray[np.int64]  # of these episodes, in steps
    policy: float  # updates made by the policy that chose the actions, mean over the chunk


class Acknowledged(NamedTuple):
    """replay -> actor: every chunk before `sequence` was inserted or rejected, and must not be resent."""

    sequence: int
    t: int
    updates: int  # made by the learner, or about to be made
    in_flight: int  # transitions that the actor may have unacknowledged from now on


class WeightsRequest(NamedTuple):
    """actor or evaluator -> learner: request for weights newer than these versions."""

    version: int
    target_version: int


class Weights(NamedTuple):
    """learner -> sender of a WeightsRequest: both networks as safetensors; None if the client's version is current."""

    version: int
    target_version: int
    t: int
    updates: int
    online: bytes | None
    target: bytes | None


class Learning(NamedTuple):
    """learner -> replay, about once a second: a report, with means over the updates since the last one."""

    updates: int  # total
    recent: int  # since the last report; with 0 the means below are 0
    loss: float
    mean_q: float
    gradient_norm: float
    waiting: float  # fraction of the time spent waiting for a batch


class SaveRequest(NamedTuple):
    """replay -> learner: request for its state after all batches sent before."""


class LearnerState(NamedTuple):
    """learner -> replay: its state; replay -> learner, after its Welcome: the state to start from.

    `facts` is JSON and `arrays` safetensors; both are empty when there is none yet.
    """

    facts: str
    arrays: bytes


# Messages to and from the supervisor and other observers.


class StatsRequest(NamedTuple):
    """anyone -> replay: request for the statistics of the run."""


class LearnerStats(NamedTuple):
    """The learner, in statistics."""

    heard_seconds_ago: float
    report: Learning | None  # the newest; None before the first


class Stats(NamedTuple):
    """replay -> sender of a StatsRequest, SetRate or SetActors: the statistics of the run."""

    era: int
    t: int
    total_steps: int
    finished: bool  # all transitions are inserted, and no update is due and no recycling round is open
    ending: bool  # all members were told to leave
    stored: int  # transitions in the replay
    capacity: int
    replay: Counters
    traffic: Traffic
    queued: int  # transitions that were received but not inserted yet
    rate: RateStats
    planned_actors: int
    actors: list[ActorStats]  # current members, in the order in which they joined
    learner: LearnerStats | None  # None if none has joined yet
    waiting: list[Wait]
    notes: list[Note]  # the newest, in the order of their numbers
    row: dict[str, Figure]  # the newest row of metrics; empty before the first


class SetRate(NamedTuple):
    """anyone -> replay: set the number of transitions per update; 0 = free running. Answered by Stats."""

    steps_per_update: int


class SetActors(NamedTuple):
    """anyone -> replay: set the planned number of actors. Answered by Stats."""

    actors: int


Message = (
    Recycle
    | Recycled
    | SampleRequest
    | Batch
    | Priorities
    | Hello
    | Terms
    | Join
    | Welcome
    | Refused
    | Stranger
    | Heartbeat
    | Alive
    | Leave
    | Goodbye
    | Gone
    | Chunk
    | Acknowledged
    | WeightsRequest
    | Weights
    | Learning
    | SaveRequest
    | LearnerState
    | StatsRequest
    | Stats
    | SetRate
    | SetActors
)
"""All messages, in the order of their numbers on the wire; new ones are appended."""
