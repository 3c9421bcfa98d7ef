from __future__ import annotations

import signal
from pathlib import Path

from dpsr_apex.run.children import LASTING_SECONDS, LOST_PAUSE, MOST_DEATHS, MOST_LOSSES, Child
from dpsr_apex.run.lives import Ended, LifeHere, Task

PATIENCE = 60.0
TASK = Task("actor-0", "actor", ["actor"], Path("log"))


class LifeOnPaper:
    """A life that goes as a test says."""

    def __init__(self) -> None:
        self.has_place = True
        self.ended: Ended | None = None
        self.killed = False

    def poll(self) -> Ended | None:
        return self.ended

    def signal(self, number: signal.Signals) -> None:
        self.ended = Ended(-number, "signalled", 1.0)

    def kill(self) -> None:
        self.killed = True

    def last_words(self) -> str:
        return "farewell"


class Played:
    """A child, and its present life."""

    def __init__(self) -> None:
        self.lives: list[LifeOnPaper] = []
        self.child = Child(TASK, self._begin)

    @property
    def life(self) -> LifeOnPaper:
        return self.lives[-1]

    def live_and_end(self, ended: Ended) -> None:
        self.child.start()
        self.life.ended = ended
        assert self.child.bury(100.0) is ended

    def _begin(self, task: Task) -> LifeOnPaper:
        assert task is TASK
        self.lives.append(LifeOnPaper())
        return self.life


def death(seconds: float = 1.0) -> Ended:
    return Ended(1, "ended with exit code 1", seconds)


def loss(seconds: float = 1.0) -> Ended:
    return Ended(-9, "was lost", seconds, is_lost=True)


def test_a_child_lives_dies_and_is_started_again_later_and_later() -> None:
    played = Played()
    child = played.child
    assert (child.runs, child.is_done, child.died, child.given_up) == (False, False, False, False)
    child.start()
    assert (child.runs, child.has_place, child.waits_for_place) == (True, True, False)
    pauses = []
    for _ in range(MOST_DEATHS["actor"] - 1):
        played.live_and_end(death())
        assert child.start_at is not None
        pauses.append(child.start_at - 100.0)
        assert not played.life.killed, "its place is kept for its next life"
    assert pauses == [1, 2, 4, 8]
    played.live_and_end(death())
    assert child.given_up
    assert played.life.killed, "its place is given away"


def test_one_that_has_lasted_may_die_as_often_as_at_first() -> None:
    played = Played()
    for _ in range(20):
        played.live_and_end(death(LASTING_SECONDS + 1))
        assert played.child.deaths == 1


def test_the_loss_of_its_place_is_no_death_but_not_borne_for_ever() -> None:
    played = Played()
    for number in range(1, MOST_LOSSES):
        played.live_and_end(loss())
        assert (played.child.deaths, played.child.losses) == (0, number)
        assert played.child.start_at == 100.0 + LOST_PAUSE
    played.live_and_end(loss())
    assert played.child.given_up


def test_one_that_waits_for_a_place_is_not_dead() -> None:
    played = Played()
    played.child.start()
    played.life.has_place = False
    assert (played.child.waits_for_place, played.child.has_place, played.child.runs) == (True, False, True)
    played.life.ended = Ended(0, "had not begun", 0.0)
    assert not played.child.waits_for_place, "it was told not to wait any longer"


def test_one_that_stands_back_has_not_died() -> None:
    played = Played()
    played.child.start()
    played.child.stand_back(110.0)
    assert played.life.killed
    assert (played.child.deaths, played.child.start_at, played.child.given_up) == (0, 110.0, False)


def test_last_words_are_those_of_the_present_life() -> None:
    played = Played()
    assert played.child.last_words() == ""
    played.child.start()
    assert played.child.last_words() == "farewell"


def test_a_life_here_says_how_it_ended_and_what_it_said(tmp_path: Path) -> None:
    life = LifeHere(Task("odd", "actor", ["nonsense"], tmp_path / "log"))
    ended = life.wait(PATIENCE)
    assert ended is not None
    assert (ended.code, ended.cause) == (2, "ended with exit code 2")
    assert "invalid choice: 'nonsense'" in life.last_words()
    assert life.poll() is ended
    life.signal(signal.SIGTERM)
    life.kill()


def test_a_life_here_can_be_ended(tmp_path: Path) -> None:
    waiting = LifeHere(Task("lonely", "actor", ["actor", "--find", str(tmp_path)], tmp_path / "log"))
    assert waiting.poll() is None
    waiting.kill()
    ended = waiting.poll()
    assert ended is not None
    assert (ended.code, ended.cause) == (-signal.SIGKILL, "was killed by SIGKILL")
