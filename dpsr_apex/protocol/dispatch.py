"""Assignment of candidates to the actors that recycle them. A state machine without sockets and clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, field
from itertools import product
from typing import Final

import numpy as np

from dpsr_apex.wire.messages import Recycle
from dpsr_apex.wire.statistics import Traffic

MOST_OVERDUE: Final = 1_000  # candidates of expired rounds that are remembered for each actor


@dataclass
class _Round:
    """An open round. A candidate is waiting, held by an actor, or settled (neither of the two)."""

    request: Recycle
    deadline: float
    waiting: list[int]  # identities
    held: dict[int, str] = field(default_factory=dict)  # identity -> name of the actor
    reissued: set[int] = field(default_factory=set)  # identities whose first actor ended or reconnected

    def part(self, identities: list[int]) -> Recycle:
        """Return the request for some of the candidates."""
        rows = np.flatnonzero(np.isin(self.request.identities, identities))
        return self.request._replace(identities=self.request.identities[rows], starts=self.request.starts.pick(rows))


class Dispatch:
    """Distributes the candidates of open rounds over the actors, and decides when a round can get no more results.

    A candidate is reassigned once if its actor ends, and never to a third actor: a snapshot that crashes an actor must
    not crash them all.
    """

    def __init__(self, deadline: float, traffic: Traffic) -> None:
        self._deadline = deadline  # seconds from the opening of a round
        self._traffic = traffic
        self._rounds: dict[int, _Round] = {}
        # By actor: candidates of rounds that have expired, which it still holds as far as is known.
        self._overdue: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self.must_try = False  # whether states are tried out first, because an actor has died with candidates

    @property
    def has_waiting(self) -> bool:
        """Whether there are candidates to assign."""
        return any(round_.waiting for round_ in self._rounds.values())

    def open(self, request: Recycle, now: float, answered: Container[int] = ()) -> None:
        """Add a round; its candidates wait until they are assigned, except those that were answered earlier."""
        waiting = [identity for identity in request.identities.tolist() if identity not in answered]
        self._rounds[request.round_number] = _Round(request, now + self._deadline, waiting)

    def assign(self, actors: Iterable[str]) -> list[tuple[str, Recycle]]:
        """Assign the waiting candidates, each to the actor that holds the fewest."""
        held = self.outstanding()
        load = {name: held[name] for name in actors}
        if not load:
            return []
        tasks = [task for round_ in self._rounds.values() for task in _share_out(round_, load)]
        return [(name, request._replace(must_try=self.must_try)) for name, request in tasks]

    def answered(self, number: int, identities: Iterable[int]) -> None:
        """Settle these candidates, regardless of which actor answered."""
        done = set(identities)
        self._settle_overdue(done)
        if round_ := self._rounds.get(number):
            round_.waiting = [identity for identity in round_.waiting if identity not in done]
            for identity in done & round_.held.keys():
                del round_.held[identity]

    def failed(self, number: int, identities: Iterable[int], actor: str) -> list[int]:
        """Settle candidates whose state this actor could not re-enter; they are not tried again in this round.

        Return those that the actor did hold.
        """
        round_, named = self._rounds.get(number), dict.fromkeys(identities)
        late = [identity for identity in named if identity in self._overdue[actor]]
        self._settle_overdue(late)
        if round_ is None:
            return late
        held = [identity for identity in named if round_.held.get(identity) == actor]
        for identity in held:
            del round_.held[identity]
        self._traffic.candidates_failed += len(held)
        return [*dict.fromkeys((*late, *held))]

    def overdue(self, actor: str) -> list[int]:
        """Return the candidates of expired rounds that an actor still holds, as far as is known."""
        return [*self._overdue.get(actor, ())]

    def withdraw(self, identities: Collection[int]) -> None:
        """Settle candidates whose transitions were quarantined."""
        self._settle_overdue(identities)
        for round_ in self._rounds.values():
            round_.waiting = [identity for identity in round_.waiting if identity not in identities]
            round_.held = {identity: name for identity, name in round_.held.items() if identity not in identities}

    def release(self, actor: str, has_died: bool = False) -> list[int]:
        """Release the candidates that an actor holds: they wait for another actor, or are given up the second time.

        Return those that it held, also of rounds that have expired. If it has died, one of them may be the cause: from
        now on, states are tried out before they are re-entered.
        """
        released = [*self._overdue.pop(actor, ())]
        for round_ in self._rounds.values():
            dropped = [identity for identity, holder in round_.held.items() if holder == actor]
            released += dropped
            again = [identity for identity in dropped if identity not in round_.reissued]
            for identity in dropped:
                del round_.held[identity]
            round_.waiting += again
            round_.reissued.update(again)
            self._traffic.candidates_reissued += len(again)
            self._traffic.candidates_given_up += len(dropped) - len(again)
        self.must_try |= has_died and bool(released)
        return released

    def over(self, now: float) -> list[int]:
        """Remove the rounds that can get no more results or have expired; return their numbers."""
        numbers = [
            number
            for number, round_ in self._rounds.items()
            if now >= round_.deadline or not (round_.waiting or round_.held)
        ]
        for number in numbers:
            for identity, holder in self._rounds.pop(number).held.items():
                overdue = self._overdue[holder]
                overdue[identity] = None
                if len(overdue) > MOST_OVERDUE:
                    del overdue[next(iter(overdue))]
        return numbers

    def outstanding(self) -> Counter[str]:
        """Return the number of candidates that each actor holds."""
        return Counter(holder for round_ in self._rounds.values() for holder in round_.held.values())

    def clear(self) -> None:
        """Remove all rounds."""
        self._rounds.clear()

    def _settle_overdue(self, identities: Iterable[int]) -> None:
        for overdue, identity in product(self._overdue.values(), identities):
            overdue.pop(identity, None)


def _share_out(round_: _Round, load: dict[str, int]) -> list[tuple[str, Recycle]]:
    """Assign all waiting candidates of a round; `load` is updated in place."""
    shares: dict[str, list[int]] = {}
    for identity in round_.waiting:
        name = min(load, key=load.__getitem__)
        load[name] += 1
        round_.held[identity] = name
        shares.setdefault(name, []).append(identity)
    round_.waiting = []
    return [(name, round_.part(share)) for name, share in shares.items()]
