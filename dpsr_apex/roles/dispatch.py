"""Which actor recycles what. It counts candidates and never looks into one; it sends nothing and has no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from dpsr_apex.replay.transitions import read_rows
from dpsr_apex.roles.traffic import Traffic
from dpsr_apex.wire.messages import Recycle


@dataclass
class _Round:
    """A candidate waits, or is held by an actor; one that is neither is done with."""

    request: Recycle
    deadline: float
    waiting: list[int]  # identities
    held: dict[int, str] = field(default_factory=dict)  # identity -> name of the actor
    reissued: set[int] = field(default_factory=set)  # identities that an actor went away with

    def part(self, identities: list[int]) -> Recycle:
        """The request for some of the candidates."""
        rows = np.flatnonzero(np.isin(self.request.identities, identities))
        return self.request._replace(
            identities=self.request.identities[rows], starts=read_rows(self.request.starts, rows)
        )


class Dispatch:
    """Spreads the candidates of open rounds over the actors, and knows when nothing more can come for a round.

    A candidate goes to a second actor when the first went away, and never to a third: a snapshot that kills who enters
    it must not kill them all.
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
        """A new round; its candidates wait until they are assigned."""
        self._rounds[request.round_number] = _Round(request, now + self._deadline, request.identities.tolist())

    def assign(self, actors: Iterable[str]) -> list[tuple[str, Recycle]]:
        """Share out what waits over these actors, always to the one that has the least to do."""
        held = self.outstanding()
        load = {name: held[name] for name in actors}
        if not load:
            return []
        return [task for round_ in self._rounds.values() for task in _share_out(round_, load)]

    def answered(self, number: int, identities: Iterable[int]) -> None:
        """These candidates are done with, whoever answered."""
        if round_ := self._rounds.get(number):
            done = set(identities)
            round_.waiting = [identity for identity in round_.waiting if identity not in done]
            for identity in done & round_.held.keys():
                del round_.held[identity]

    def failed(self, number: int, identities: Iterable[int], actor: str) -> None:
        """The actor could not re-enter these states; nobody is to try it again."""
        if round_ := self._rounds.get(number):
            for identity in identities:
                if round_.held.get(identity) == actor:
                    del round_.held[identity]
                    self._traffic.candidates_failed += 1

    def release(self, actor: str) -> None:
        """The actor went away: what it held waits for another one, or is given up if it did so before."""
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
        """The rounds for which nothing more can come, or whose time is up; they are forgotten."""
        numbers = [
            number
            for number, round_ in self._rounds.items()
            if now >= round_.deadline or not (round_.waiting or round_.held)
        ]
        for number in numbers:
            del self._rounds[number]
        return numbers

    def outstanding(self) -> Counter[str]:
        """How many candidates each actor holds."""
        return Counter(holder for round_ in self._rounds.values() for holder in round_.held.values())

    def clear(self) -> None:
        """Forget all rounds."""
        self._rounds.clear()


def _share_out(round_: _Round, load: dict[str, int]) -> list[tuple[str, Recycle]]:
    """Assign all that waits in a round; `load` is brought up to date in place."""
    shares: dict[str, list[int]] = {}
    for identity in round_.waiting:
        name = min(load, key=load.__getitem__)
        load[name] += 1
        round_.held[identity] = name
        shares.setdefault(name, []).append(identity)
    round_.waiting = []
    return [(name, round_.part(share)) for name, share in shares.items()]
