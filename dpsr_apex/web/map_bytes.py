"""The survey of a replay as bytes, from which a browser draws the map."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.survey import Survey, spread_over

PLAYED, RECYCLED, REWARDED, TERMINAL = range(4)  # kinds of transitions; each is drawn over those before it
DIAMOND: Final = 4  # added to the kind of a recycled transition, which is drawn as a diamond in any colour
SAMPLED = 20_000  # rewards that are counted to find the usual ones


class Usual(NamedTuple):
    """The reward of most played and of most recycled transitions, such as 0; None if there is no such reward.

    They differ with n-step returns: a played transition has the rewards of n steps, a recycled one those of one step.
    """

    played: float | None
    recycled: float | None


def looks_of(survey: Survey, usual: Usual) -> NDArray[np.uint8]:
    """Return what each transition is, given the usual rewards: its kind, plus DIAMOND if it is recycled."""
    is_recycled = survey.depths > 0
    kinds = np.where(is_recycled, RECYCLED, PLAYED).astype(np.uint8)
    for kind, reward in ((PLAYED, usual.played), (RECYCLED, usual.recycled)):
        if reward is not None:
            kinds[(kinds == kind) & (survey.rewards != np.float32(reward))] = REWARDED
    kinds[survey.terminals] = TERMINAL
    return kinds + np.uint8(DIAMOND) * is_recycled


def usual_rewards(survey: Survey) -> Usual:
    """Return the usual rewards in a survey."""
    chosen = spread_over(survey.rows, SAMPLED)
    rewards, is_recycled = survey.rewards[chosen], survey.depths[chosen] > 0
    return Usual(_usual(rewards[~is_recycled]), _usual(rewards[is_recycled]))


def _usual(rewards: NDArray[np.float32]) -> float | None:
    """Return the reward that more than half of the transitions have; None if there is none."""
    found, counts = np.unique(rewards, return_counts=True)
    return float(found[counts.argmax()]) if 2 * counts.max(initial=0) > rewards.size else None


def pack_survey(survey: Survey, most: int | None = None) -> bytes:
    """Return a survey, or `most` transitions spread over it, as a header (JSON, after its length) and typed arrays.

    Rows are in the order in which they are drawn, by kind, and each array is aligned to eight bytes. Identities are
    64-bit integers; ages and positions are whole numbers; gains are NaN where there is none. Whatever `most` is, the
    header has the kinds and the ranges of all transitions of the survey.
    """
    usual = usual_rewards(survey)
    columns = _columns(survey, looks_of(survey, usual))
    chosen = spread_over(survey.rows, survey.rows if most is None else most)
    chosen = chosen[np.argsort(columns["look"][chosen] % DIAMOND, kind="stable")]
    sent = {name: column[chosen] for name, column in columns.items()}
    head = {
        "t": survey.t,
        "capacity": survey.capacity,
        "stored": survey.stored,
        "surveyed": survey.rows,
        "rows": len(chosen),
        "usual": usual,
        "kinds": np.bincount(columns["look"] % DIAMOND, minlength=DIAMOND).tolist(),
        "ranges": {name: _range_of(column) for name, column in columns.items() if name != "identity"},
        "columns": {name: column.dtype.str.lstrip("<|") for name, column in sent.items()},
    }
    header = json.dumps(head, allow_nan=False).encode()
    header += b" " * (-(len(header) + 4) % 8)
    padded = [column.tobytes() + b"\0" * (-column.nbytes % 8) for column in sent.values()]
    return b"".join((len(header).to_bytes(4, "little"), header, *padded))


def _columns(survey: Survey, looks: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    return {
        "identity": survey.identities.astype("<i8", copy=False),
        "age": (survey.t - survey.births).clip(0, 2**32 - 1).astype("<u4"),
        "priority": survey.priorities.astype("<f4", copy=False),
        "reward": survey.rewards.astype("<f4", copy=False),
        "gain": survey.gains.astype("<f4", copy=False),
        "position": survey.positions.astype("<u4", copy=False),
        "depth": survey.depths.clip(0, 2**16 - 1).astype("<u2"),
        "recycles": survey.recycles.clip(0, 2**16 - 1).astype("<u2"),
        "action": survey.actions.clip(0, 2**16 - 1).astype("<u2"),
        "look": looks,
    }


def _range_of(column: NDArray[Any]) -> list[float] | None:
    """Return the least and the greatest finite value; None if there is none."""
    finite = column[np.isfinite(column)] if column.dtype.kind == "f" else column
    return [finite.min().item(), finite.max().item()] if finite.size else None
