"""Conversions between results of the replay and messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.records import Chains, Integers, Round, Sample, SlotColumns, StoredRows
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.survey import Survey
from dpsr_apex.wire.messages import Batch, Recycle, Recycled, Stored, SurveyPart

MOST_SURVEYED = 1_000_000  # transitions in a survey; those of a larger replay are subsampled
ROWS_PER_PART = 50_000  # of a survey: messages of about 2 MB

Gains = NDArray[np.float32]

_SURVEYED = tuple(name for name in Survey._fields if name in SurveyPart._fields)[3:]  # the columns of a survey


def recycle_request(round_: Round, era: int) -> Recycle:
    """Return the request to recycle all candidates of a round, without the next states of the stored transitions."""
    stored = round_.stored
    return Recycle(era, round_.number, round_.candidates, replace(stored, s_t=[()] * len(stored)))


def chains_of(message: Recycled) -> Chains:
    """Return the chains in an answer."""
    return Chains(message.identities, message.lengths, message.rewards, message.transitions, message.td_errors)


def batch_message(sample: Sample, t: int, era: int) -> Batch:
    """Return the message with a batch sampled at clock t."""
    return Batch(era, t, sample.identities, sample.weights, sample.transitions)


def survey_parts(replay: Replay, era: int) -> list[SurveyPart]:
    """Return a survey of the replay in messages of limited size, at least one."""
    survey = replay.survey(MOST_SURVEYED)
    has_gain, gains = _finite(survey.gains)
    columns = {name: getattr(survey, name) for name in _SURVEYED} | {"has_gain": has_gain, "gains": gains}
    parts = []
    for first in range(0, max(survey.rows, 1), ROWS_PER_PART):
        rows: dict[str, Any] = {name: column[first : first + ROWS_PER_PART] for name, column in columns.items()}
        parts.append(SurveyPart(era, survey.t, survey.capacity, survey.stored, first, survey.rows, **rows))
    return parts


def joined_survey(parts: Sequence[SurveyPart]) -> Survey | None:
    """Return the survey of which these are all parts, in order; None if they are not."""
    first, counts = parts[0], [len(part.identities) for part in parts]
    if [part.first for part in parts] != [sum(counts[:place]) for place in range(len(parts))]:
        return None
    if sum(counts) != first.rows or any((part.era, part.t) != (first.era, first.t) for part in parts):
        return None
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in (*_SURVEYED, "has_gain")}
    columns["gains"] = _with_nan(columns["gains"], columns.pop("has_gain"))
    columns["terminals"] = columns["terminals"].astype(np.bool_)
    return Survey(first.t, first.capacity, first.stored, **columns)


def stored_message(replay: Replay, identities: Integers, era: int) -> Stored:
    """Return the message with those of these transitions that are stored."""
    slots, priorities, transitions = replay.rows_of(identities)
    has_gain, gains = _finite(slots.gains)
    return Stored(
        era=era,
        t=replay.t,
        identities=slots.identities,
        births=slots.births,
        priorities=priorities,
        gains=gains,
        has_gain=has_gain,
        depths=slots.depths,
        recycles=slots.recycles,
        origins=slots.origins,
        transitions=transitions,
    )


def stored_rows(message: Stored) -> StoredRows:
    """Return the rows in this message."""
    gains = _with_nan(message.gains, message.has_gain)
    known = {name: getattr(message, name) for name in ("identities", "births", "depths", "recycles", "origins")}
    return StoredRows(SlotColumns(gains=gains, **known), message.priorities, message.transitions)


# A message may contain only finite numbers.


def _finite(gains: Gains) -> tuple[NDArray[np.uint8], Gains]:
    """Return which gains are numbers, and the gains with 0 for all others."""
    has_gain = np.isfinite(gains)
    return has_gain.astype(np.uint8), np.where(has_gain, gains, np.float32(0))


def _with_nan(gains: Gains, has_gain: NDArray[np.uint8]) -> Gains:
    return np.where(has_gain != 0, gains, np.float32(np.nan))
