"""A process that is looked after, in all its lives: when it is started, and whether it may be started again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from dpsr_apex.run.lives import Ended, Life, LifeHere, Task

LASTING_SECONDS = 60.0  # one that has lived for so long may die again as often as at first
MOST_DEATHS = {"replay": 3, "learner": 3, "evaluator": 3, "actor": 5, "run": 2}  # in a row
REFUSED = 2  # the exit code of one that was refused, however long it took
MOST_LOSSES = 10  # in a row
LONGEST_PAUSE = 30.0  # seconds before it is started again
LOST_PAUSE = 3.0  # the same after its place was lost: until that is known everywhere


@dataclass
class Child:
    """One process, in all its lives."""

    task: Task
    begin: Callable[[Task], Life] = LifeHere  # where it lives
    life: Life | None = None
    former: Life | None = None  # the one before, whose place may be kept for the next
    started: float = 0.0
    deaths: int = 0  # in a row
    losses: int = 0  # of the place where it was, in a row: these are not its own fault
    start_at: float | None = 0.0  # when to start it (again); None: it runs, or is given up

    @property
    def name(self) -> str:
        """How the run calls it."""
        return self.task.name

    @property
    def role(self) -> str:
        """What it does."""
        return self.task.role

    @property
    def ended(self) -> Ended | None:
        """How its present life ended; None while it lives, and after it was buried."""
        return self.life.poll() if self.life else None

    @property
    def runs(self) -> bool:
        """Whether it is alive, or waits for a place to live."""
        return self.life is not None and self.ended is None

    @property
    def has_place(self) -> bool:
        """Whether it is alive."""
        return self.life is not None and self.life.has_place and self.ended is None

    @property
    def waits_for_place(self) -> bool:
        """Whether it would live if there were room."""
        return self.life is not None and not self.life.has_place and self.ended is None

    @property
    def is_done(self) -> bool:
        """Whether it ended because the run did."""
        return (ended := self.ended) is not None and ended.code == 0

    @property
    def died(self) -> bool:
        """Whether it ended otherwise, and was not yet buried."""
        return (ended := self.ended) is not None and ended.code != 0

    @property
    def given_up(self) -> bool:
        """Whether it has died too often."""
        return self.life is None and self.start_at is None

    def start(self) -> None:
        """Begin its next life."""
        self.start_at = None
        self.started = time.monotonic()
        self.life, self.former = self.begin(self.task), None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is alive."""
        if self.life is not None:
            self.life.signal(number)

    def kill(self) -> None:
        """End it at once, if it is alive, and give its place away."""
        for life in (self.life, self.former):
            if life is not None:
                life.kill()

    def last_words(self) -> str:
        """What it said last in its present life, as long as it is not buried."""
        return self.life.last_words() if self.life else ""

    def stand_back(self, until: float) -> None:
        """End it, which is no death, and start it again later; one that was given up stays so."""
        if self.given_up:
            return
        self.kill()
        self.life, self.former, self.start_at = None, None, until

    def forgive(self, now: float) -> None:
        """Let one that was given up try again."""
        if self.given_up:
            self.deaths = self.losses = 0
            self.start_at = now

    def bury(self, now: float) -> Ended:
        """After its death: what it died of; its next life is planned, unless it has died too often."""
        life, ended = self.life, self.ended
        assert life is not None
        assert ended is not None
        self.life, self.former = None, life
        lasted = ended.seconds > LASTING_SECONDS and ended.code != REFUSED
        self.losses = (0 if lasted else self.losses) + ended.is_lost
        self.deaths = (0 if lasted else self.deaths) + (not ended.is_lost)
        if self.deaths < MOST_DEATHS[self.role] and self.losses < MOST_LOSSES:
            pause = LOST_PAUSE if ended.is_lost else min(0.5 * 2**self.deaths, LONGEST_PAUSE)
            self.start_at = now + pause
        else:
            self.kill()
        return ended
