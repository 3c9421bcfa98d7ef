"""The records that make up the statistics of a run. They contain no text for people, except notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

Number = int | float
Figure = int | float | None | list[Number] | dict[str, list[Number]]
"""A value in a row of metrics: a number, deciles, or a histogram with its `edges` and `counts`."""


@dataclass
class Traffic:
    """Counters since the start of the run.

    Invariants: received = inserted + refused + queued, and sent = inserted + refused + lost + in flight, where a
    transition is in flight from when a member has sent it until it is inserted or refused.
    """

    sent: int = 0  # transitions, without repeats: as counted by the actors, or because they have arrived
    received: int = 0  # transitions of queued chunks, without repeats
    inserted: int = 0  # transitions
    refused: int = 0  # transitions: after the last step, or invalid
    # Of the refused ones and of recycled ones: those that were found to be bad, by what is wrong with them.
    bad_actions: int = 0  # an action that the environment does not have
    bad_frames: int = 0  # another number of frames, or a frame of another size or with another checksum
    bad_observations: int = 0  # a number that is not finite
    bad_rewards: int = 0  # not finite, or beyond `env.reward_limit`
    bad_steps: int = 0  # more steps than `actor.n_steps`
    bad_priorities: int = 0  # a TD error that cannot become a priority
    bad_snapshots: int = 0  # too large
    lost: int = 0  # transitions that their actor cannot send again: it has ended, or a replay that crashed had them

    duplicate_chunks: int = 0
    gaps: int = 0  # chunks received before their predecessor
    overruns: int = 0  # chunks beyond `system.in_flight` of their actor
    dropped_requests: int = 0  # for batches, beyond system.prefetch
    unusable: int = 0  # transitions in batches that the learner could not train on; a transition may be in several

    candidates_reissued: int = 0  # assigned to a second actor, because the first ended or reconnected
    candidates_failed: int = 0  # their state could not be restored
    candidates_given_up: int = 0  # the second actor ended or reconnected as well

    malformed: int = 0  # messages that could not be decoded
    refused_messages: int = 0  # decoded, but invalid
    stale_eras: int = 0  # answers to an earlier replay process
    strangers: int = 0  # messages from processes that were not members

    joins: int = 0  # repeated ones included
    refused_joins: int = 0
    expired_leases: int = 0

    def counts(self) -> dict[str, int]:
        """Return all counters by name."""
        return asdict(self)

    def others(self) -> dict[str, int]:
        """Return the counters that do not follow from the chunks that arrived and the actors' own counts."""
        return {name: count for name, count in self.counts().items() if name not in FROM_STREAMS}

    def at_rest(self) -> dict[str, int]:
        """Return all counters as they are without members: what has arrived and was not stored will be sent again."""
        settled = self.inserted + self.refused
        return self.counts() | {"received": settled, "lost": self.sent - settled}

    def load(self, counts: Mapping[str, int]) -> None:
        """Set the counters to these values."""
        for name, count in counts.items():
            setattr(self, name, count)


FROM_STREAMS: Final = ("sent", "received", "inserted", "refused", "lost")
"""Counters of transitions; the others count events."""


class ActorStats(NamedTuple):
    """One actor."""

    name: str
    place: int  # among the actors, from 0
    host: str  # of the machine that it joined from; empty for the replay's own
    epsilon_low: float  # minimum exploration rate of its environments
    epsilon_high: float  # maximum exploration rate of its environments
    heard_seconds_ago: float
    sent: int  # transitions so far
    recycling: int  # candidates that it is re-entering


class RateStats(NamedTuple):
    """Transitions against updates."""

    steps_per_update: int  # 0: free running
    achieved: float | None  # transitions per update so far; None before the first update
    batches: int  # sent to the learner so far
    owed: int | None  # batches that are due but were not sent; None in free running


class Note(NamedTuple):
    """A message for the user; numbered from 1 in every era."""

    number: int
    text: str


# Who waits, and for what.


class LearnerMissing(NamedTuple):
    """The run waits for a learner."""

    silent_seconds: float | None  # since the last message of a learner; None if none has joined yet


class ActorsMissing(NamedTuple):
    """The run waits for an actor."""

    silent_seconds: float | None


class ActorsPaused(NamedTuple):
    """The actors wait for updates."""

    updates_behind: int
    limit: int  # updates by which the learner may be behind


class LearnerPaused(NamedTuple):
    """The learner waits for transitions."""

    transitions_missing: int  # until the next update


class JournalBlocked(NamedTuple):
    """Nothing may change, because it cannot be written to the journal."""

    reason: str


class UpdatesOwed(NamedTuple):
    """All transitions are inserted, and updates are still due."""

    updates: int


class RoundsOpen(NamedTuple):
    """All transitions are inserted, and recycling rounds are open."""

    rounds: int


Wait = LearnerMissing | ActorsMissing | ActorsPaused | LearnerPaused | UpdatesOwed | RoundsOpen | JournalBlocked
