"""Room for the processes of a run: it is said who waits for some, and actors make some for those that are needed.

It only decides: starting and ending is done by children, and what room there is the engine knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dpsr_apex.run.children import Child
from dpsr_apex.run.engines import Engine

ROOM_SECONDS = 5.0  # of waiting for a place, before that is said and room is made
NEEDED = ("replay", "learner")

log = logging.getLogger(__name__)


class Rooms:
    """Looks at who waits for room, again and again."""

    def __init__(self, engine: Engine, note: Callable[[str], None]) -> None:
        self._engine = engine
        self._note = note
        self._told: set[str] = set()  # who waited for room at the last look
        self._made_at = 0.0  # when room was last made

    def look(self, children: Sequence[Child], now: float) -> list[Child]:
        """Say what has become of places; the actors that were ended to make room."""
        for news in self._engine.news():
            self._say(news)
        waiting = self._waiting(children, now)
        self._tell_of(waiting)
        needed = [child for child in waiting if child.role in NEEDED]
        return self._make_room(needed[0], children, now) if needed else []

    def _waiting(self, children: Sequence[Child], now: float) -> list[Child]:
        """Those that wait because there is no room; where there is some, they are about to start."""
        long = [child for child in children if child.waits_for_place and now - child.started > ROOM_SECONDS]
        roles = {role for role in {child.role for child in long} if not self._engine.has_room(role)}
        return [child for child in long if child.role in roles]

    def _tell_of(self, waiting: list[Child]) -> None:
        names = [child.name for child in waiting]
        if set(names) - self._told:
            who = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
            self._say(f"Waiting for room: {who}. The cluster has {self._engine.room()}")
        self._told = set(names)

    def _make_room(self, needed: Child, children: Sequence[Child], now: float) -> list[Child]:
        """End those actors whose places are one for `needed`; until it has it, no actor is started."""
        actors = {child.name: child for child in children if child.role == "actor"}
        living = [name for name, actor in actors.items() if actor.has_place]
        in_the_way = self._engine.in_the_way(needed.role, living)
        if not in_the_way or now - self._made_at < ROOM_SECONDS:
            return []
        self._made_at = now
        for actor in actors.values():
            if actor.name in in_the_way or not actor.has_place:
                actor.stand_back(now + 2 * ROOM_SECONDS)
        self._say(f"{', '.join(in_the_way)} makes room for the {needed.name}")
        return [actors[name] for name in in_the_way]

    def _say(self, text: str) -> None:
        self._note(text)
        log.warning(text)
