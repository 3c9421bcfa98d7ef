"""The starred moments of a run, with notes: one file of moments in the run directory."""

from __future__ import annotations

import math
from typing import Any, Final

from dpsr_apex.inspection.stored import StoredTransition
from dpsr_apex.record.moments import (
    BadMoments,
    Fact,
    Moments,
    encode_moments,
    no_moments,
    read_moments,
    write_moments,
)
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.replay.transitions import to_lists
from dpsr_apex.web import Refusal
from dpsr_apex.web.sources import Found

LONGEST_NOTE: Final = 2_000  # characters


def read_stars(run: RunDirectory) -> Moments | None:
    """Return the starred moments of a run; None if there are none. Raise Refusal if the file is damaged."""
    if not run.moments.is_file():
        return None
    try:
        return read_moments(run.moments)
    except BadMoments as error:
        raise Refusal(409, str(error)) from error


def add_star(run: RunDirectory, environment: str, t: int, found: Found, note: str) -> None:
    """Star a moment, or change its note."""
    if len(note) > LONGEST_NOTE:
        raise Refusal(413, f"A note may have at most {LONGEST_NOTE:,} characters.")
    plain = found.plain
    gain = None if math.isnan(plain.gain) else plain.gain
    fact = Fact(plain.identity, t, plain.priority, gain, plain.depth, plain.recycles, note)
    chosen = read_stars(run) or no_moments(environment)
    if chosen.environment != environment:
        raise Refusal(409, f"The starred moments are of {chosen.environment}, not of {environment}.")
    _write(run, chosen.with_one(fact, found.row))


def change_note(run: RunDirectory, identity: int, note: str) -> None:
    """Change the note of a starred moment."""
    if len(note) > LONGEST_NOTE:
        raise Refusal(413, f"A note may have at most {LONGEST_NOTE:,} characters.")
    chosen = read_stars(run)
    if chosen is None or identity not in [fact.identity for fact in chosen.facts]:
        raise Refusal(404, f"Moment {identity} is not starred.")
    facts = [fact._replace(note=note) if fact.identity == identity else fact for fact in chosen.facts]
    _write(run, chosen._replace(facts=facts))


def remove_star(run: RunDirectory, identity: int) -> None:
    """Remove a star; nothing happens if there is none."""
    chosen = read_stars(run)
    if chosen is not None:
        _write(run, chosen.without(identity))


def find_star(run: RunDirectory, identity: int) -> Found | None:
    """Return a starred moment, which may have been replaced in the replay since."""
    chosen = read_stars(run)
    one = chosen.only([identity]) if chosen else None
    if one is None or not one.facts:
        return None
    return Found(plain_star(one.facts[0], one), one.transitions)


def plain_star(fact: Fact, one: Moments) -> StoredTransition:
    """Return a starred moment as the transition that it was, given the moments with it alone."""
    row: dict[str, Any] = {name: column[0] for name, column in to_lists(one.transitions).items()}
    return StoredTransition(
        identity=fact.identity,
        priority=fact.priority,
        birth=fact.t,
        age=0,
        gain=math.nan if fact.gain is None else fact.gain,
        depth=fact.depth,
        recycles=fact.recycles,
        origin=-1,
        episode_step=row["episode_steps"],
        s_tm1=row["s_tm1"],
        action=row["a_tm1"],
        reward=row["r_t"],
        s_t=row["s_t"],
        terminal=row["terminal"],
        n_steps=row["n_steps"],
        snapshot=row["snapshots"],
    )


def list_stars(run: RunDirectory) -> list[dict[str, Any]]:
    """Return the starred moments for JSON, the newest first."""
    chosen = read_stars(run)
    if chosen is None:
        return []
    rows = chosen.transitions
    listed = [
        fact._asdict() | {"identity": str(fact.identity), "action": action, "reward": reward, "terminal": terminal}
        for fact, action, reward, terminal in zip(
            chosen.facts, rows.a_tm1.tolist(), rows.r_t.tolist(), rows.terminal.tolist(), strict=True
        )
    ]
    return listed[::-1]


def export_stars(run: RunDirectory, identities: list[int] | None) -> bytes:
    """Return a file of moments with these starred ones, or with all of them."""
    chosen = read_stars(run)
    if chosen is not None and identities is not None:
        chosen = chosen.only(identities)
    if chosen is None or not chosen.facts:
        raise Refusal(404, "No moment is starred.")
    return encode_moments(chosen)


def _write(run: RunDirectory, moments: Moments) -> None:
    try:
        if moments.facts:
            write_moments(run.moments, moments)
        else:
            run.moments.unlink(missing_ok=True)
    except (BadMoments, OSError) as error:
        raise Refusal(507, f"The stars could not be saved: {error}") from error
