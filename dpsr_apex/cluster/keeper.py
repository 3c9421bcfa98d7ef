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
        self._signal: signal.Signals | None = None  # one that came before its process had begun
        if origin.folder.is_dir():  # a user's own environment is there
            os.chdir(origin.folder)

    def place(self) -> Place:
        """Where it is."""
        return self._place

    def keep(self, task: Task) -> Outcome | Unfit:
        """Have a process do this, to its end."""
        origin, self._life = self._origin, None
        if why := why_unfit(origin.facts, look_around(origin.run, origin.word), origin.run):
            return Unfit(self._place, why)
        with tempfile.TemporaryDirectory(prefix="dpsr_apex-") as folder:
            return self._serve(task) if task.role == "replay" else self._join(task, RunDirectory(Path(folder)))

    def signal(self, number: int) -> None:
        """Send it a signal, or as soon as it has begun."""
        if self._life is None:
            self._signal = signal.Signals(number)
        else:
            self._life.signal(signal.Signals(number))

    def kill(self) -> None:
        """End it at once."""
        if self._life is not None:
            self._life.kill()

    def _serve(self, task: Task) -> Outcome:
        """Keep the replay, which listens at this node's address, and publish for all nodes where that is."""
        host = f"[{self._place.host}]" if ":" in self._place.host else self._place.host
        life = self._begin(task, "--bind", f"{host}:0")
        own = FileBoard(self._run.connection)
        while (ended := life.wait(HEAD_SECONDS)) is None:
            # Again and again: a board that was lost comes back empty.
            if (notice := own.look_up()) is not None:
                with contextlib.suppress(OSError):
                    self._board.publish(notice)
        return Outcome(ended, life.last_words())

    def _join(self, task: Task, private: RunDirectory) -> Outcome:
        """Keep another one, which finds the head in a folder of its own, where this keeper says what is published."""
        known = self._pass_on(private, None)
        life = self._begin(task, "--find", str(private.path), "--key", str(self._run.client_key))
        while (ended := life.wait(LOOK_SECONDS)) is None:
            known = self._pass_on(private, known)
        return Outcome(ended, life.last_words())

    def _begin(self, task: Task, *where: str) -> LifeHere:
        life = LifeHere(task._replace(words=[*task.words, *where]))
        self._life = life
        if self._signal is not None:
            life.signal(self._signal)
            self._signal = None
        return life

    def _pass_on(self, private: RunDirectory, known: Notice | None) -> Notice | None:
        """What the process knows of the head from now on."""
        with contextlib.suppress(OSError):
            notice = self._board.look_up()
            if notice is not None and notice != known:
                FileBoard(private.connection).publish(notice)
                return notice
        return known
