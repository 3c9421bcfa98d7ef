"""Quarantine: transitions that cannot be used are taken out of the replay for good, and kept aside.

What is refused on arrival is noted. What the learner cannot train on is quarantined at once. A state that could not be
re-entered gets a strike, because the actor may be at fault; with the second one, perhaps in another round, its
transition is quarantined as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from dpsr_apex.protocol.validation import Faults
from dpsr_apex.replay.records import StoredRows
from dpsr_apex.replay.replay import Replay

MOST_STRIKES: Final = 2  # of a transition, until it is quarantined
REMEMBERED: Final = 10_000  # transitions with strikes; beyond it, those that have been replaced are forgotten
LONGEST_REASON: Final = 200  # characters


class Quarantined(NamedTuple):
    """Transitions that were taken out of the replay, with everything that was stored about them."""

    t: int
    reason: str
    rows: StoredRows


class Refusal(NamedTuple):
    """Transitions of one chunk that were not stored, for the same kind of reason."""

    t: int
    sender: str
    kind: str  # one of `validation.KINDS`
    reason: str  # of the first one
    transitions: int


class Quarantine:
    """Evicts transitions from a replay, and remembers the strikes of those that are still stored."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._strikes: dict[int, int] = {}  # by identity
        self._pending: list[Quarantined] = []
        self._refusals: list[Refusal] = []

    def refuse(self, sender: str, faults: Faults) -> None:
        """Note transitions of this sender that were not stored, one refusal for each kind of fault."""
        kinds = [fault.kind for fault in faults.values()]
        for kind in sorted(set(kinds)):
            reason = next(fault.reason for fault in faults.values() if fault.kind == kind)
            self._refusals.append(Refusal(self._replay.t, readable(sender), kind, readable(reason), kinds.count(kind)))

    def evict(self, identities: Iterable[int], reason: str) -> list[int]:
        """Quarantine those of these transitions that are stored; return their identities."""
        rows = self._replay.evict(np.array([*identities], dtype=np.int64))
        evicted: list[int] = rows.slots.identities.tolist()
        for identity in evicted:
            self._strikes.pop(identity, None)
        if evicted:
            self._pending.append(Quarantined(self._replay.t, readable(reason), rows))
        return evicted

    def strike(self, identities: Iterable[int], reason: str) -> list[int]:
        """Note that these states could not be re-entered; return the transitions that are quarantined for it."""
        stored = self._stored(sorted(set(identities)))
        for identity in stored:
            self._strikes[identity] = self._strikes.get(identity, 0) + 1
        if len(self._strikes) > REMEMBERED:
            self._strikes = {identity: self._strikes[identity] for identity in self._stored([*self._strikes])}
        out = [identity for identity in stored if self._strikes[identity] >= MOST_STRIKES]
        return self.evict(out, f"{reason} ({MOST_STRIKES} times)")

    def drain(self) -> list[Quarantined]:
        """Return what was quarantined since the last call."""
        pending, self._pending = self._pending, []
        return pending

    def drain_refusals(self) -> list[Refusal]:
        """Return what was refused since the last call."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def take_over(self, former: Quarantine) -> None:
        """Take from another quarantine what was not drained."""
        self._pending, self._refusals = former._pending, former._refusals

    @property
    def has_strikes(self) -> bool:
        """Whether a transition has a strike."""
        return bool(self._strikes)

    def save(self) -> list[list[int]]:
        """Return the strikes of stored transitions, as JSON."""
        return [[identity, self._strikes[identity]] for identity in sorted(self._stored([*self._strikes]))]

    def load(self, strikes: Iterable[Sequence[int]]) -> None:
        """Restore the strikes that `save` returned."""
        self._strikes = {identity: count for identity, count in strikes}  # noqa: C416 -- typed

    def _stored(self, identities: Sequence[int]) -> list[int]:
        """Return those that are stored, in this order."""
        stored: list[int] = self._replay.stored(np.array(identities, dtype=np.int64)).tolist()
        return stored


def readable(reason: str) -> str:
    """Return a reason from another process as one printable line of limited length."""
    line = " ".join(reason.split())
    return "".join(character if character.isprintable() else "?" for character in line[:LONGEST_REASON])
