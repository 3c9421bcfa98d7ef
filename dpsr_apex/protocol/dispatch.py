"""Assignment of candidates to the actors that recycle them. A state machine without sockets and clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from dpsr_apex.wire.messages import Recycle
from dpsr_apex.wire.statistics import Traffic


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

    @property
    def has_waiting(self) -> bool:
        """Whether there are candidates to assign."""
        return any(round_.waiting for round_ in self._rounds.values())

    def open(self, request: Recycle, now: float) -> None:
        """Add a new round; its candidates wait until they are assigned."""
        self._rounds[request.round_number] = _Round(request, now + self._deadline, request.identities.tolist())

    def assign(self, actors: Iterable[str]) -> list[tuple[str, Recycle]]:
        """Assign the waiting candidates, each to the actor that holds the fewest."""
        held = self.outstanding()
        load = {name: held[name] for name in actors}
        if not load:
            return []
        return [task for round_ in self._rounds.values() for task in _share_out(round_, load)]

    def answered(self, number: int, identities: Iterable[int]) -> None:
        """Settle these candidates, regardless of which actor answered."""
        if round_ := self._rounds.get(number):
            done = set(identities)
            round_.waiting = [identity for identity in round_.waiting if identity not in done]
            for identity in done & round_.held.keys():
                del round_.held[identity]

    def failed(self, number: int, identities: Iterable[int], actor: str) -> None:
        """Settle candidates whose state this actor could not restore; they are not tried again."""
        if round_ := self._rounds.get(number):
            for identity in identities:
                if round_.held.get(identity) == actor:
                    del round_.held[identity]
                    self._traffic.candidates_failed += 1

    def release(self, actor: str) -> None:
        """Release the candidates that an actor holds: they wait for another actor, or are given up the second time."""
        for round_ in self._rounds.values():
            dropped = [identity for identity, holder in round_.held.items() if holder == actor]
            again = [identity for identity in dropped if identity not in round_.reissued]
            for identity in dropped:
                del round_.held[identity]
            round_.waiting += again
            round_.reissued.update(again)
            self._traffic.candidates_reissued += len(again)
            self._traffic.candidates_given_up += len(dropped) - len(again)

    def over(self, now: float) -> list[int]:
        """Remove the rounds that can get no more results or have expired; return their numbers."""
        numbers = [
            number
            for number, round_ in self._rounds.items()
            if now >= round_.deadline or not (round_.waiting or round_.held)
        ]
        for number in numbers:
            del self._rounds[number]
        return numbers

    def outstanding(self) -> Counter[str]:
        """Return the number of candidates that each actor holds."""
        return Counter(holder for round_ in self._rounds.values() for holder in round_.held.values())

    def clear(self) -> None:
        """Remove all rounds."""
        self._rounds.clear()


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
