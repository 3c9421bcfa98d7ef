"""Files of moments: stored transitions that someone has chosen, each with its snapshot, and notes about them.

A moment outlives the replay that it was taken from. It can be looked at, and an episode can begin there: `eval --from`
and `train --start-from`. A file is one safetensors file; it does not need torch, and nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dpsr_apex.config import Config
from dpsr_apex.errors import UserError
from dpsr_apex.files import write_atomically
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.replay.transitions import (
    PACKED,
    STACKS_PER_ROW,
    Transitions,
    concatenate,
    from_lists,
    pack,
    unpack,
)
from dpsr_apex.wire.fields import BadMessage, check_packed

FORMAT = 1
MOST_BYTES = 16 * 2**20  # of a file: it is sent to every actor, and thousands of moments fit
_FACTS = "facts"  # an array of bytes: JSON

Arrays = dict[str, NDArray[Any]]


class BadMoments(UserError):
    """Raised for a file that does not contain usable moments: the reason, and what to do."""


class Fact(NamedTuple):
    """What is known about one moment, besides its transition."""

    identity: int  # in the replay that it was taken from
    t: int  # clock of that replay
    priority: float
    gain: float | None  # of a recycled transition; None for all others
    depth: int
    recycles: int
    note: str


class Moments(NamedTuple):
    """Chosen moments of one environment."""

    environment: str  # the description of the environment, which must be equal where they are used
    facts: Sequence[Fact]
    transitions: Transitions

    def with_one(self, fact: Fact, transition: Transitions) -> Moments:
        """Return the moments with one more at the end; it replaces one of the same identity."""
        others = self.without(fact.identity)
        rows = [other for other in (others.transitions, transition) if len(other)]
        return Moments(self.environment, [*others.facts, fact], concatenate(rows))

    def without(self, identity: int) -> Moments:
        """Return the moments except the one of this identity."""
        return self.only([fact.identity for fact in self.facts if fact.identity != identity])

    def only(self, identities: Sequence[int]) -> Moments:
        """Return the moments with these identities, in their order here."""
        wanted = set(identities)
        rows = [row for row, fact in enumerate(self.facts) if fact.identity in wanted]
        return Moments(
            self.environment, [self.facts[row] for row in rows], self.transitions.pick(np.array(rows, np.int64))
        )


def no_moments(environment: str) -> Moments:
    """Return an empty choice of moments of this environment."""
    return Moments(environment, [], from_lists(s_tm1=[]))


def write_moments(path: Path, moments: Moments) -> None:
    """Write a file of moments atomically; raise BadMoments if it would be too large."""
    content = encode_moments(moments)
    if len(content) > MOST_BYTES:
        raise BadMoments(f"{path}: {len(moments.facts):,} moments are too many for one file of {MOST_BYTES:,} bytes")
    write_atomically(path, content)


def read_moments(path: Path) -> Moments:
    """Return the moments in a file; raise BadMoments if it cannot be used."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadMoments(f"{path} has more than {MOST_BYTES:,} bytes, so it is not a file of moments")
        return decode_moments(path.read_bytes(), str(path))
    except OSError as error:
        raise BadMoments(f"{path} cannot be read: {error.strerror or error}") from error


def starts_of(config: Config, run: RunDirectory) -> bytes:
    """Return the file of the moments at which some episodes of a run begin; empty if there are none."""
    if not config.actor.start_from:
        return b""
    try:
        return run.starts.read_bytes()
    except OSError as error:
        raise BadMoments(f"{run.starts}, the copy of actor.start_from, cannot be read: {error.strerror}") from error


def encode_moments(moments: Moments) -> bytes:
    """Return the content of a file of moments."""
    arrays = pack(moments.transitions)
    about = [fact._asdict() for fact in moments.facts]
    facts = {"format": FORMAT, "environment": moments.environment, "moments": about, "checksum": _checksum(arrays)}
    return save(arrays | {_FACTS: np.frombuffer(json.dumps(facts, allow_nan=False).encode(), np.uint8)})


def decode_moments(content: bytes, origin: str) -> Moments:
    """Return the moments in the content of a file; raise BadMoments, naming its origin, if it cannot be used."""
    try:
        arrays = load(content)
        facts = json.loads(arrays.pop(_FACTS).tobytes())
        if facts["format"] != FORMAT:
            raise BadMoments(f"{origin} has format {facts['format']}, and this version reads format {FORMAT}")
        if facts["checksum"] != _checksum(arrays):
            raise BadMoments(f"{origin} is damaged: its checksum does not match. Export the moments again")
        transitions = unpack(_checked(arrays))
        about = [_fact(one) for one in facts["moments"]]
        environment = facts["environment"]
    except (SafetensorError, BadMessage, KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadMoments(f"{origin} is not a file of moments ({type(error).__name__}: {error})") from error
    if len(about) != len(transitions) or not isinstance(environment, str):
        raise BadMoments(f"{origin} is not a file of moments: {len(about)} notes for {len(transitions)} moments")
    return Moments(environment, about, transitions)


def _fact(table: Mapping[str, Any]) -> Fact:
    fact = Fact(**table)
    for name, kind in get_type_hints(Fact).items():
        if not isinstance(getattr(fact, name), kind):
            raise TypeError(f"{name} is {getattr(fact, name)!r}")
    return fact


def _checked(arrays: Arrays) -> Arrays:
    """Return the arrays in packed form; raise TypeError or BadMessage if they are not, or do not fit together."""
    for part in PACKED:
        array = arrays[part.name]
        kinds = part.dtype.kind, "b"  # a column of bools is packed as such here, and as bytes on the wire
        if array.ndim != 1 or array.dtype.itemsize != part.dtype.itemsize or array.dtype.kind not in kinds:
            raise TypeError(f"{part.name} is {array.dtype}{array.shape}")
    rows = len(arrays["stack_sizes"]) // STACKS_PER_ROW
    if any(len(arrays[part.name]) != rows for part in PACKED if part.per == "rows"):
        raise TypeError("its columns have different lengths")
    check_packed("the file", arrays, rows, arrays["pieces"].tobytes())
    return arrays


def _checksum(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()
