"""Runs one process of a run on the node where it was placed, and tells it where the head is. No Ray here.

A crash of the process leaves the keeper alive, which says how it ended; when the keeper is gone, its process notices
and ends too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
from pathlib import Path
from typing import NamedTuple

from dpsr_apex.cluster.fitness import NodeFacts, look_around, why_unfit
from dpsr_apex.processes.discovery import Board, FileBoard, Notice
from dpsr_apex.run.lives import Ended, LifeHere, Task
from dpsr_apex.run.run_directory import RunDirectory

HEAD_SECONDS = 0.2  # between two looks whether the replay has published itself
LOOK_SECONDS = 1.0  # between two looks where it is

log = logging.getLogger(__name__)


class MemoryBoard:
    """A board in one process: that of a Ray actor."""

    def __init__(self) -> None:
        self._notice: Notice | None = None

    def publish(self, notice: Notice) -> None:
        """From now on this is the head."""
        self._notice = notice

    def look_up(self) -> Notice | None:
        """The newest notice."""
        return self._notice

    def withdraw(self) -> None:
        """There is no head any more."""
        self._notice = None


class Place(NamedTuple):
    """A node."""

    node: str  # its id
    host: str  # its address


class Origin(NamedTuple):
    """What the run was started as, and where."""

    run: Path  # its directory
    word: str  # of the probe in there
    facts: NodeFacts  # of the machine that it was started on
    folder: Path  # in which it was started


class Unfit(NamedTuple):
    """A node on which nothing was started, and why."""

    place: Place
    why: str


class Outcome(NamedTuple):
    """How a process ended, and what it said last."""

    ended: Ended
    last_words: str


class Keeper:
    """Looks after one process on its node."""

    def __init__(self, place: Place, origin: Origin, board: Board) -> None:
        self._place = place
        self._origin = origin
        self._run = RunDirectory(origin.run)
        self._board = board
        self._life: LifeHere | None = None
        if origin.folder.is_dir():  # a user's own environment is there
            os.chdir(origin.folder)

    def place(self) -> Place:
        """Where it is."""
        return self._place

    def keep(self, task: Task) -> Outcome | Unfit:
        """Have a process do this, to its end."""
        origin = self._origin
        if why := why_unfit(origin.facts, look_around(origin.run, origin.word), origin.run):
            return Unfit(self._place, why)
        with tempfile.TemporaryDirectory(prefix="dpsr_apex-") as folder:
            return self._serve(task) if task.role == "replay" else self._join(task, RunDirectory(Path(folder)))

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self._life is not None:
            self._life.signal(signal.Signals(number))

    def kill(self) -> None:
        """End it at once."""
        if self._life is not None:
            self._life.kill()

    def _serve(self, task: Task) -> Outcome:
        """Keep the replay, which listens at this node's address, and publish for all nodes where that is."""
        life = self._begin(task, "--bind", f"{self._place.host}:0")
        own, published = FileBoard(self._run.connection), None
        while (ended := life.wait(HEAD_SECONDS)) is None:
            notice = own.look_up()
            if notice not in (None, published):
                assert notice is not None
                self._board.publish(notice)
                published = notice
        return Outcome(ended, life.last_words())

    def _join(self, task: Task, private: RunDirectory) -> Outcome:
        """Keep another one, which finds the head in a folder of its own, where this keeper says what is published."""
        known = self._pass_on(private, None)
        life = self._begin(task, "--find", str(private.path), "--key", str(self._run.client_key))
        while (ended := life.wait(LOOK_SECONDS)) is None:
            known = self._pass_on(private, known)
        return Outcome(ended, life.last_words())

    def _begin(self, task: Task, *where: str) -> LifeHere:
        self._life = LifeHere(task._replace(words=[*task.words, *where]))
        return self._life

    def _pass_on(self, private: RunDirectory, known: Notice | None) -> Notice | None:
        """What the process knows of the head from now on."""
        with contextlib.suppress(OSError):
            notice = self._board.look_up()
            if notice not in (None, known):
                assert notice is not None
                FileBoard(private.connection).publish(notice)
                return notice
        return known
