"""Every message between the processes of a run, as typed records. No sockets and no encoding here.

How they are encoded is defined in `dpsr_apex.wire.codec`, when they are sent and what follows in `dpsr_apex.protocol`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.layout import UNKNOWN, Layout
from dpsr_apex.replay.records import Counters
from dpsr_apex.replay.transitions import PackedTransitions, Transitions
from dpsr_apex.wire.statistics import ActorStats, Figure, Note, RateStats, Traffic, Wait

# Roles. A server derives the role of a sender from its key.
SERVER: Final = "server"  # the replay
ACTOR: Final = "actor"
LEARNER: Final = "learner"
EVALUATOR: Final = "evaluator"
OWNER: Final = "owner"  # whoever started the run: its supervisor, and commands such as `dpsr-apex rate`

# Transitions, batches and candidates. An `era` identifies one replay process: after a restart from a checkpoint the
# replay may reuse identities and round numbers, so answers carry the era of the request.


class Recycle(NamedTuple):
    """replay -> actor: re-enter these states, and take another action in each.

    Row i of `starts` is the stored transition `identities[i]` without its next state (an empty s_t): the state to
    re-enter, and the action that must not be repeated. With `must_try`, each state is first tried out in a child
    process, because an actor has died while it re-entered one.
    """

    era: int
    round_number: int
    identities: NDArray[np.int64]
    starts: Transitions
    must_try: bool = False


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
    failed: NDArray[np.int64]  # identities of candidates whose state could not be re-entered
    reasons: list[str]  # why, for each of those


class SampleRequest(NamedTuple):
    """learner -> replay: request for one more batch."""


class Batch(NamedTuple):
    """replay -> learner: transitions sampled by priority at clock t, without their snapshots."""

    era: int
    t: int
    identities: NDArray[np.int64]
    weights: NDArray[np.float32]
    transitions: Transitions | PackedTransitions  # packed when received, which spares the learner most objects


class Priorities(NamedTuple):
    """learner -> replay: |TD errors| of transitions, by identity, because they may have been replaced."""

    era: int
    identities: NDArray[np.int64]
    td_errors: NDArray[np.float64]


class Unusable(NamedTuple):
    """learner -> replay: transitions that cannot be trained on, which are to be quarantined."""

    era: int
    identities: NDArray[np.int64]
    reason: str


# Membership: how a process joins a run, stays a member and leaves.


class Hello(NamedTuple):
    """actor, learner, evaluator or owner -> replay: request for the run and its config."""


class Terms(NamedTuple):
    """replay -> sender of a Hello: the run and its whole config, as TOML."""

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
    acknowledged: int  # actors: transitions in the chunks before that one
    weights_endpoint: str  # learner: where it serves weights; empty for other roles
    layout: Layout = UNKNOWN  # of the environment's transitions


class Welcome(NamedTuple):
    """replay -> sender of a Join: you are a member, until you are silent for longer than the lease."""

    era: int
    t: int
    place: int  # index of an actor, from 0; -1 for other roles
    actors: int
    sequence: int  # actors: the next chunk that the replay expects
    weights_endpoint: str  # empty while there is no learner


class Refused(NamedTuple):
    """replay -> any sender: a rejection and its reason. Encoded identically in every version of the protocol."""

    reason: str


class Stranger(NamedTuple):
    """replay -> any sender: you are not, or no longer, a member; join first."""


class Heartbeat(NamedTuple):
    """actor, learner or evaluator -> replay, about once a second: renews the lease."""

    sent: int  # actors: transitions sent so far, without repeats


class Alive(NamedTuple):
    """replay -> sender of a Heartbeat."""

    t: int
    actors: int  # planned or joined, for the exploration ladder
    weights_endpoint: str


class Leave(NamedTuple):
    """actor, learner or evaluator -> replay: the last message of a member."""

    sent: int


class Goodbye(NamedTuple):
    """replay -> member: the run is ending, leave."""

    finished: bool  # False: it was stopped, and may be resumed
    reason: str


class Gone(NamedTuple):
    """owner -> replay: this process has ended, do not wait for its lease to expire."""

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
    refused: int  # transitions of the actor in those chunks that were found to be bad, and are not stored


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
    """replay -> learner: request for its state after all batches sent before; repeated while it is not answered."""

    era: int
    number: int  # from 1


class LearnerState(NamedTuple):
    """learner -> replay: its state; replay -> learner, after its Welcome: the state to start from.

    `facts` is JSON and `arrays` safetensors; both are empty when there is none yet. `era` and `request` are those of
    the SaveRequest that is answered; a learner that ends sends its last state without one.
    """

    facts: str
    arrays: bytes
    era: int = 0
    request: int = 0


# Messages to and from the owner of the run: its supervisor, and the commands that watch and change it.


class StatsRequest(NamedTuple):
    """owner -> replay: request for the statistics of the run."""


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
    heard: dict[str, float]  # by name of each member: seconds since its last message
    waiting: list[Wait]
    notes: list[Note]  # the newest, in the order of their numbers
    row: dict[str, Figure]  # the newest row of metrics; empty before the first


class SurveyRequest(NamedTuple):
    """owner -> replay: request for a survey of the replay; answered by SurveyParts, or Refused if it is too soon."""


class SurveyPart(NamedTuple):
    """replay -> sender of a SurveyRequest: rows of a survey at one clock t, from row `first` of `rows` on."""

    era: int
    t: int
    capacity: int
    stored: int
    first: int
    rows: int
    identities: NDArray[np.int64]
    births: NDArray[np.int64]
    priorities: NDArray[np.float32]
    gains: NDArray[np.float32]  # 0 where there is none
    has_gain: NDArray[np.uint8]
    depths: NDArray[np.int32]
    recycles: NDArray[np.int32]
    actions: NDArray[np.int32]
    rewards: NDArray[np.float32]
    terminals: NDArray[np.uint8]
    positions: NDArray[np.uint32]


class StoredRequest(NamedTuple):
    """owner -> replay: request for stored transitions by their identities."""

    identities: NDArray[np.int64]


class Stored(NamedTuple):
    """replay -> sender of a StoredRequest: those of the transitions that are still stored, with all that is known."""

    era: int
    t: int
    identities: NDArray[np.int64]
    births: NDArray[np.int64]
    priorities: NDArray[np.float64]
    gains: NDArray[np.float32]  # 0 where there is none
    has_gain: NDArray[np.uint8]
    depths: NDArray[np.int32]
    recycles: NDArray[np.int32]
    origins: NDArray[np.int64]
    transitions: Transitions


class StartsRequest(NamedTuple):
    """actor -> replay: request for the moments at which some episodes begin."""


class Starts(NamedTuple):
    """replay -> sender of a StartsRequest: the content of the file of moments; empty if there is none."""

    content: bytes


class Fragment(NamedTuple):
    """either way: a part of a message whose frames are too large (`dpsr_apex.wire.fragments`)."""

    message: int  # number of the message, counted by its sender
    sizes: NDArray[np.int64]  # bytes of each of its frames
    offset: int  # of these bytes in the concatenated frames
    data: bytes


class SetRate(NamedTuple):
    """owner -> replay: set the number of transitions per update; 0 = free running. Answered by Stats."""

    steps_per_update: int


class SetActors(NamedTuple):
    """owner -> replay: set the planned number of actors. Answered by Stats."""

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
    | SurveyRequest
    | SurveyPart
    | StoredRequest
    | Stored
    | StartsRequest
    | Starts
    | Fragment
    | Unusable
)
"""All messages, in the order of their numbers on the wire; new ones are appended."""

_MEMBERS: Final = frozenset({ACTOR, LEARNER, EVALUATOR})

SENDERS: Final[dict[type, frozenset[str]]] = {
    Hello: _MEMBERS | {OWNER},
    **dict.fromkeys((Join, Heartbeat, Leave), _MEMBERS),
    **dict.fromkeys((Chunk, Recycled, StartsRequest), frozenset({ACTOR})),
    **dict.fromkeys((SampleRequest, Priorities, Unusable, Learning, LearnerState), frozenset({LEARNER})),
    **dict.fromkeys((StatsRequest, SurveyRequest, StoredRequest, SetRate, SetActors, Gone), frozenset({OWNER})),
    WeightsRequest: frozenset({ACTOR, EVALUATOR}),
}
"""The roles that may send each message to a server; the other messages are sent by servers only."""
