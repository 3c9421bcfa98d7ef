from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from dpsr_apex.processes.discovery import Address, Whereabouts
from dpsr_apex.run.children import Child
from dpsr_apex.run.lives import Ended, Life, Task
from dpsr_apex.run.rooms import ROOM_SECONDS, Rooms


class Place:
    """A life that has a place or not, as a test says."""

    def __init__(self, task: Task, has_place: bool) -> None:
        self.task = task
        self.has_place = has_place
        self.killed = False

    def poll(self) -> Ended | None:
        return Ended(-9, "killed", 1.0) if self.killed else None

    def signal(self, number: signal.Signals) -> None:
        raise AssertionError(f"nobody is signalled: {number}")

    def kill(self) -> None:
        self.killed = True

    def last_words(self) -> str:
        return ""


class OnPaper:
    """An engine with one node of so many places, one for each process."""

    named: tuple[str, ...] = ()
    former_seconds = 1.0

    def __init__(self, places: int) -> None:
        self.free = places
        self.stuck: set[str] = set()  # roles that lack something which no actor has
        self.heard: list[str] = []

    def options(self, role: str, actors: int) -> list[str]:
        raise AssertionError(f"not asked for: {role} of {actors}")

    def begin(self, task: Task) -> Life:
        has_place = self.free > 0 and task.role not in self.stuck
        self.free -= has_place
        return Place(task, has_place)

    def find_head(self) -> Whereabouts | None:
        return None

    def invitation(self, head: Address) -> str:
        return str(head)

    def has_room(self, role: str) -> bool:
        return self.free > 0 and role not in self.stuck

    def in_the_way(self, role: str, actors: Sequence[str]) -> list[str]:
        return list(actors[-1:]) if role not in self.stuck else []

    def room(self) -> str:
        return f"{self.free} places"

    def news(self) -> list[str]:
        news, self.heard = self.heard, []
        return news

    def withdraw(self) -> None: ...

    def close(self) -> None: ...


class Household:
    """Children on paper, all started at time 0, and what was said of them."""

    def __init__(self, places: int, *names: str, stuck: str = "") -> None:
        self.engine = OnPaper(places)
        self.engine.stuck = {stuck}
        self.children = [Child(Task(name, name.split("-")[0], [], Path(name)), self.engine.begin) for name in names]
        self.said: list[str] = []
        self.rooms = Rooms(self.engine, self.said.append)
        for child in self.children:
            child.start()
            child.started = 0.0

    def look(self, now: float) -> list[str]:
        return [child.name for child in self.rooms.look(self.children, now)]


LATER = 10 * ROOM_SECONDS


def test_who_waits_for_room_is_told_of_once() -> None:
    house = Household(3, "replay", "learner", "actor-0", "actor-1", "actor-2")
    assert house.look(ROOM_SECONDS) == []
    assert house.said == [], "they may be about to start"
    assert house.look(LATER) == house.look(2 * LATER) == []
    assert house.said == ["Waiting for room: actor-1 and 1 more. The cluster has 0 places"]


def test_who_has_room_and_no_place_yet_is_about_to_start() -> None:
    house = Household(2, "replay", "learner", "actor-0")
    house.engine.free = 1
    assert house.look(LATER) == []
    assert house.said == []


def test_an_actor_makes_room_for_the_learner_and_no_other_starts_meanwhile() -> None:
    house = Household(3, "replay", "actor-0", "actor-1", "learner", "actor-2")
    assert house.look(LATER) == ["actor-1"]
    assert house.said[-1] == "actor-1 makes room for the learner"
    by_name = {child.name: child for child in house.children}
    assert by_name["actor-0"].runs
    for name in ("actor-1", "actor-2"):
        assert not by_name[name].runs
        assert (by_name[name].start_at or 0.0) > LATER
        assert by_name[name].deaths == 0
    assert house.look(LATER + ROOM_SECONDS / 2) == [], "it is given the time to take its place"


def test_nobody_makes_room_for_what_an_actor_does_not_have() -> None:
    house = Household(9, "replay", "learner", "actor-0", stuck="learner")
    assert house.look(LATER) == []
    assert house.said == ["Waiting for room: learner. The cluster has 7 places"]
    assert all(child.runs for child in house.children)


def test_an_actor_makes_no_room_for_another_one() -> None:
    house = Household(3, "replay", "learner", "actor-0", "actor-1", "evaluator")
    assert house.look(LATER) == []
    assert all(child.runs for child in house.children)


def test_news_of_places_are_passed_on() -> None:
    house = Household(1, "replay")
    house.engine.heard = ["Node 10.0.0.1 has left the cluster"]
    house.look(0.0)
    assert house.said == ["Node 10.0.0.1 has left the cluster"]
