"""The statistics of a run that the replay service returns: typed records, without text for people."""

from __future__ import annotations

import math
from dataclasses import replace

from dpsr_apex import timeouts
from dpsr_apex.config import Config
from dpsr_apex.exploration import epsilon_ranges
from dpsr_apex.protocol.flow import Flow
from dpsr_apex.protocol.sessions import Sessions
from dpsr_apex.wire.messages import LearnerStats, Learning, Stats
from dpsr_apex.wire.statistics import (
    ActorsMissing,
    ActorStats,
    Figure,
    JournalBlocked,
    LearnerMissing,
    Note,
    RateStats,
    RoundsOpen,
    UpdatesOwed,
    Wait,
)


def make_stats(
    config: Config,
    flow: Flow,
    sessions: Sessions,
    learning: Learning | None,
    actors: int,
    notes: list[Note],
    row: dict[str, Figure],
    now: float,
) -> Stats:
    """Return the statistics at time `now`.

    `learning` is the learner's newest report, and `actors` the number of positions on the exploration ladder.
    """
    replay = flow.replay
    return Stats(
        era=flow.era,
        t=flow.t,
        total_steps=config.run.total_steps,
        finished=flow.finished,
        ending=flow.closed,
        stored=replay.size,
        capacity=config.replay.capacity,
        replay=replace(replay.counters),  # a copy: the counters keep counting
        traffic=replace(flow.traffic),
        queued=flow.inbox.queued_transitions,
        rate=_rate(config, flow),
        planned_actors=config.system.actors or 1,
        actors=_actors(config, flow, sessions, actors, now),
        learner=_learner(sessions, learning, now),
        heard={session.name: now - session.heard for session in sessions},
        waiting=who_waits(flow, sessions, now),
        notes=notes,
        row=row,
    )


def who_waits(flow: Flow, sessions: Sessions, now: float) -> list[Wait]:
    """Return who waits for what; [] if nobody does, or the run is over."""
    if flow.closed or flow.finished:
        return []
    if flow.held:
        return [*_missing(flow, sessions, now), JournalBlocked(flow.held)]
    return [*_missing(flow, sessions, now), *_shortage(flow)]


def _missing(flow: Flow, sessions: Sessions, now: float) -> list[Wait]:
    """Return the roles without which the run cannot continue."""
    missing: list[Wait] = []
    if not _is_heard("learner", sessions, now):
        missing.append(LearnerMissing(_silence("learner", sessions, now)))
    if flow.remaining_steps and not _is_heard("actor", sessions, now):
        missing.append(ActorsMissing(_silence("actor", sessions, now)))
    return missing


def _is_heard(role: str, sessions: Sessions, now: float) -> bool:
    silence = _silence(role, sessions, now)
    return silence is not None and sessions.has(role) and silence <= timeouts.MEMBER_SILENCE


def _silence(role: str, sessions: Sessions, now: float) -> float | None:
    heard = sessions.last_heard(role)
    return None if heard is None else now - heard


def _shortage(flow: Flow) -> list[Wait]:
    """Return which side the rate limiter holds back."""
    rate, t = flow.rate, flow.t
    if not flow.remaining_steps:
        return _last_tasks(flow)
    if flow.inbox and not rate.may_insert(t):
        return [rate.actors_wait_for(t)]
    return [rate.learner_waits_for(t)] if flow.credits and not rate.may_sample(t) else []


def _last_tasks(flow: Flow) -> list[Wait]:
    """Return what remains to be done after the last step."""
    owed, rounds = _owed(flow) or 0, len(flow.replay.rounds)
    return [*([UpdatesOwed(owed)] if owed else []), *([RoundsOpen(rounds)] if rounds else [])]


def _rate(config: Config, flow: Flow) -> RateStats:
    rate, since = flow.rate, config.learner.learning_starts - 1
    achieved = (flow.t - since) / rate.batches if rate.batches else None
    return RateStats(rate.steps_per_update, achieved, rate.batches, _owed(flow))


def _owed(flow: Flow) -> int | None:
    """Return the number of due batches that were not sent; None in free running."""
    rate = flow.rate
    due = rate.batches_due(flow.t)
    return None if due == math.inf else int(due) - rate.batches


def _actors(config: Config, flow: Flow, sessions: Sessions, actors: int, now: float) -> list[ActorStats]:
    held = flow.dispatch.outstanding()
    ranges = epsilon_ranges(config, actors, flow.t)
    return [
        ActorStats(
            name=actor.name,
            place=actor.index,
            host=actor.host,
            epsilon_low=ranges[actor.index][0],
            epsilon_high=ranges[actor.index][1],
            heard_seconds_ago=now - actor.heard,
            sent=flow.inbox.stream(actor.key).sent,
            recycling=held[actor.name],
        )
        for actor in sessions.actors
    ]


def _learner(sessions: Sessions, learning: Learning | None, now: float) -> LearnerStats | None:
    silence = _silence("learner", sessions, now)
    return None if silence is None else LearnerStats(silence, learning)
