"""The state of a run as facts for JSON, and in words: who waits for whom, and how much is missing."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from dpsr_apex.config import Config
from dpsr_apex.roles.exploration import epsilon_ranges
from dpsr_apex.roles.flow import Flow
from dpsr_apex.roles.sessions import SILENCE, Sessions
from dpsr_apex.wire.messages import Learning


def describe_flow(config: Config, flow: Flow) -> dict[str, Any]:
    """The replay, and what went in and out."""
    replay = flow.server.replay
    return {
        "era": flow.server.era,
        "t": flow.t,
        "total_steps": config.run.total_steps,
        "finished": flow.finished,
        "stored": replay.size,
        "capacity": config.replay.capacity,
        "replay": asdict(replay.counters),
        "traffic": flow.traffic.counts() | {"queued": flow.inbox.queued_transitions},
        "rate": _rate(config, flow),
    }


def describe_members(
    config: Config, flow: Flow, sessions: Sessions, learning: Learning | None, actors_in_all: int, now: float
) -> dict[str, Any]:
    """The actors, and the learner with its newest report; None if there has been no learner.

    An actor's `host` is empty for the replay's own machine, and `epsilon` is the least and the greatest of its
    environments.
    """
    held = flow.dispatch.outstanding()
    ranges = epsilon_ranges(config, actors_in_all, flow.t)
    actors = [
        {
            "name": actor.name,
            "index": actor.index,
            "host": actor.host,
            "epsilon": ranges[actor.index],
            "heard_seconds_ago": now - actor.heard,
            "sent": flow.inbox.stream(actor.key).sent,
            "recycling": held[actor.name],
        }
        for actor in sessions.actors
    ]
    return {"actors": actors, "learner": _learner(sessions, learning, now)}


def who_waits(flow: Flow, sessions: Sessions, now: float) -> str | None:
    """Who waits for whom, and how much is missing; None if nobody does."""
    if flow.closed or flow.finished:
        return None
    reasons = [*_missing(flow, sessions, now), *_shortage(flow)]
    return ". ".join(reasons) or None


def _missing(flow: Flow, sessions: Sessions, now: float) -> list[str]:
    """The roles without which the run cannot go on."""
    needed = ["learner", "actor"] if flow.room else ["learner"]
    texts = [_absence(role, sessions, now) for role in needed]
    return [text for text in texts if text]


def _absence(role: str, sessions: Sessions, now: float) -> str:
    heard = sessions.last_heard(role)
    if heard is None:
        return f"No {role} has joined"
    if sessions.has(role) and now - heard <= SILENCE:
        return ""
    who = "The learner was" if role == "learner" else "The actors were"
    return f"{who} last heard from {now - heard:.0f} s ago"


def _shortage(flow: Flow) -> list[str]:
    """What the ratio of transitions to updates holds back."""
    rate, t = flow.server.rate, flow.t
    if not flow.room:
        return _last_things(flow)
    if flow.inbox and not rate.may_insert(t):
        return [rate.actors_wait_for(t)]
    return [rate.learner_waits_for(t)] if flow.credits and not rate.may_sample(t) else []


def _last_things(flow: Flow) -> list[str]:
    """What is still to be done after the last step."""
    rate, rounds = flow.server.rate, len(flow.server.replay.rounds)
    owed = rate.batches_due(flow.t) - rate.batches if rate.steps_per_update else 0
    counts = {"Updates still owed": owed, "Recycling rounds still open": rounds}
    return [f"{what}: {count:,}" for what, count in counts.items() if count]


def _rate(config: Config, flow: Flow) -> dict[str, Any]:
    """`achieved` is None before the first batch, `owed` when nothing is: in free running."""
    rate, since = flow.server.rate, config.learner.learning_starts - 1
    owed = rate.batches_due(flow.t) - rate.batches
    return {
        "steps_per_update": rate.steps_per_update,
        "achieved": (flow.t - since) / rate.batches if rate.batches else None,
        "batches": rate.batches,
        "owed": owed if owed < math.inf else None,
    }


def _learner(sessions: Sessions, learning: Learning | None, now: float) -> dict[str, Any] | None:
    heard = sessions.last_heard("learner")
    if heard is None:
        return None
    report = learning._asdict() if learning else dict.fromkeys(Learning._fields)
    if not report.pop("recent"):
        report |= dict.fromkeys(("loss", "mean_q", "gradient_norm"))
    return report | {"heard_seconds_ago": now - heard}
