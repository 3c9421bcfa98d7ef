"""Every message between the processes of a run, as typed records. No sockets and no encoding here.

In one process those between actor, replay and learner pass by direct call; between processes all travel as frames. A
role cannot tell the difference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.transitions import Transitions

# What the roles say to each other. An `era` is one life of the replay: after a restart from a checkpoint it may give
# identities and round numbers again that it had given before, so answers say which life they belong to.


class Insert(NamedTuple):
    """actor -> replay: new transitions, in the order in which they happened."""

    transitions: Transitions
    td_errors: NDArray[np.float64] | None  # the actor's own |TD errors|, where they are to be the first priorities


class Inserted(NamedTuple):
    """replay -> actor: the transitions are the replay's now; its clock stands at t."""

    t: int


class Recycle(NamedTuple):
    """replay -> actor: re-enter these states, act anew in each, and tell what happened.

    Row i of `starts` is the stored transition `identities[i]` without its end (an empty s_t): where it started from,
    and the action that is not to be repeated.
    """

    era: int
    round_number: int
    identities: NDArray[np.int64]
    starts: Transitions


class Recycled(NamedTuple):
    """actor -> replay: what the new actions led to; row i answers `identities[i]`."""

    era: int
    round_number: int
    identities: NDArray[np.int64]
    transitions: Transitions
    td_errors: NDArray[np.float64]  # |TD error| of each, by the newest networks
    failed: NDArray[np.int64]  # identities of those whose state could not be re-entered


class SampleRequest(NamedTuple):
    """learner -> replay: one more batch is wanted."""

    batch_size: int


class Batch(NamedTuple):
    """replay -> learner: transitions drawn by priority, drawn at clock t, without their snapshots."""

    era: int
    t: int
    identities: NDArray[np.int64]
    weights: NDArray[np.float32]
    transitions: Transitions


class Priorities(NamedTuple):
    """learner -> replay: |TD errors| of transitions, named by identity since their slots may have new tenants."""

    era: int
    identities: NDArray[np.int64]
    td_errors: NDArray[np.float64]


# How a process comes into a run, stays in it and leaves it.


class Hello(NamedTuple):
    """anyone -> replay: tell me what is run here."""


class Terms(NamedTuple):
    """replay -> anyone: the run and its whole config, as TOML."""

    run_id: str
    config: str


class Join(NamedTuple):
    """actor, learner or evaluator -> replay: let me in, or in again after the link or the replay was lost."""

    run_id: str
    role: str  # "actor", "learner" or "evaluator"
    name: str
    incarnation: int  # random, one for each process: a restarted one is another
    emulator: str  # version of ale-py
    environment: str  # digest of what the environment does; empty for a role that has none
    sequence: int  # of an actor: the first chunk that it can still send
    weights_endpoint: str  # of the learner: where it serves weights; empty for others
    weights_key: bytes  # of the learner: the public key there; empty where there are no keys


class Welcome(NamedTuple):
    """replay -> who asked to join: you are in, until you are silent for longer than the lease."""

    era: int
    t: int
    place: int  # of an actor among the actors, from 0; -1 for others
    actors: int
    sequence: int  # of an actor: the next chunk that the replay expects
    weights_endpoint: str  # empty while there is no learner
    weights_key: bytes


class Refused(NamedTuple):
    """replay -> anyone: no, and why. The same in every version of the protocol."""

    reason: str


class Stranger(NamedTuple):
    """replay -> anyone: you are not in this run (any more): join first."""


class Heartbeat(NamedTuple):
    """member -> replay, at least once a second: I am here."""

    sent: int  # of an actor: transitions sent so far, repeats not counted


class Alive(NamedTuple):
    """replay -> member, in answer: so am I."""

    t: int
    actors: int  # so many are planned or have come, for the ladder of exploration
    weights_endpoint: str
    weights_key: bytes


class Leave(NamedTuple):
    """member -> replay: the last message of one that goes."""

    sent: int


class Goodbye(NamedTuple):
    """replay -> member: the run ends here, leave."""

    finished: bool  # False: it was stopped, and may be resumed
    reason: str


class Gone(NamedTuple):
    """supervisor -> replay: this process has died, do not wait for its lease to run out."""

    name: str


# What actors and learner say over the wire besides.


class Chunk(NamedTuple):
    """actor -> replay: an `Insert` with its number in the actor's stream, and the games that ended meanwhile."""

    sequence: int
    transitions: Transitions
    td_errors: NDArray[np.float64] | None
    scores: NDArray[np.float64]
    lengths: NDArray[np.int64]  # steps of each of these games


class Acknowledged(NamedTuple):
    """replay -> actor: every chunk before `sequence` is settled, for good."""

    sequence: int
    t: int


class WeightsRequest(NamedTuple):
    """actor or evaluator -> learner: give me what is newer than these."""

    version: int
    target_version: int


class Weights(NamedTuple):
    """learner -> who asked: both networks as safetensors, None where nothing newer is there."""

    version: int
    target_version: int
    t: int
    online: bytes | None
    target: bytes | None


class Learning(NamedTuple):
    """learner -> replay, about once a second: how it goes. Means over the updates since the last report."""

    updates: int  # in all
    recent: int  # since the last report; with 0 the means below are 0
    loss: float
    mean_q: float
    gradient_norm: float
    waiting: float  # share of the time in which it waited for a batch


class SaveRequest(NamedTuple):
    """replay -> learner: give me what you must remember, after the batches that I sent before."""


class LearnerState(NamedTuple):
    """learner -> replay: its state; replay -> learner, after its Welcome: the state to go on from.

    `facts` is JSON and `arrays` safetensors; both are empty when there is none yet.
    """

    facts: str
    arrays: bytes


# What the supervisor and other onlookers say.


class StatsRequest(NamedTuple):
    """anyone -> replay: tell me how things are."""


class Stats(NamedTuple):
    """replay -> who asked."""

    facts: str  # JSON


class SetRate(NamedTuple):
    """anyone -> replay: from now on this many transitions per update; 0 = free running. Answered by Stats."""

    steps_per_update: int


class SetActors(NamedTuple):
    """anyone -> replay: from now on so many actors are planned. Answered by Stats."""

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
"""All that may travel, in the order of the numbers by which frames name them: new ones go to the end."""
