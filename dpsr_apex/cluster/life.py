"""One life of a process on a Ray cluster, as the supervisor sees it: its keeper is a Ray actor on some node."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Protocol

import ray
from ray.exceptions import RayError, RayTaskError

from dpsr_apex.cluster.keeper import Keeper, Origin, Outcome, Place, Unfit
from dpsr_apex.processes.discovery import Board
from dpsr_apex.run.lives import Ended, Task

LOST = -signal.SIGKILL  # as an exit code, of a process whose keeper is gone


class Keepers(Protocol):
    """Who has keepers for processes."""

    places: dict[str, Place]

    def keeper(self, task: Task) -> Any:
        """The one that this process had, or a new one, which waits for room."""

    def dismiss(self, task: Task, is_placed: bool) -> None:
        """Give the place of this process away, and end it if it is alive; nobody is waited for."""

    def refuse(self, unfit: Unfit) -> None:
        """Use a node no more, and say so once."""


class PlacedKeeper(Keeper):
    """A keeper as a Ray actor: Ray tells it where it is."""

    def __init__(self, origin: Origin, board: Board) -> None:
        place = Place(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())
        super().__init__(place, origin, board)

    def end(self) -> None:
        """End its process and itself, at once."""
        self.kill()
        os._exit(0)


class RayLife:
    """A process that a keeper runs on some node."""

    def __init__(self, cluster: Keepers, task: Task) -> None:
        self._cluster = cluster
        self._task = task
        self._last_words = ""
        self._ended: Ended | None = None
        self._is_placed = False
        self._place: Any = None
        self._find_place()

    @property
    def has_place(self) -> bool:
        """Whether its keeper has."""
        if not self._is_placed and ray.wait([self._place], timeout=0)[0]:
            self._is_placed = True
            with contextlib.suppress(RayError):
                place: Place = ray.get(self._place)
                self._cluster.places[self._task.name] = place
        return self._is_placed

    def poll(self) -> Ended | None:
        """How it ended; None while it lives or waits for a place."""
        if self._ended is None and ray.wait([self._outcome], timeout=0)[0]:
            self._take_outcome()
        return self._ended

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is alive; one that waits for a place does not wait any longer."""
        if self.poll() is not None:
            return
        if self.has_place:
            self._keeper.signal.remote(int(number))
        else:
            self._cluster.dismiss(self._task, is_placed=False)
            self._ended = Ended(0, "had not begun", 0.0)

    def kill(self) -> None:
        """End it at once, if it is alive, and give its place away."""
        self._cluster.dismiss(self._task, self.has_place)

    def last_words(self) -> str:
        """What its keeper says that they were."""
        return self._last_words

    def _find_place(self) -> None:
        self._began = time.monotonic()
        self._is_placed = False
        self._keeper = self._cluster.keeper(self._task)
        self._place = self._keeper.place.remote()
        self._outcome = self._keeper.keep.remote(self._task)

    def _take_outcome(self) -> None:
        try:
            outcome: Outcome | Unfit = ray.get(self._outcome)
        except RayTaskError as error:  # the keeper is there, and could not do it
            self._last_words = str(error)
            self._ended = Ended(1, "could not be kept", time.monotonic() - self._began)
            return
        except RayError:
            self._cluster.dismiss(self._task, is_placed=False)
            place = self._cluster.places.get(self._task.name) if self.has_place else None
            cause = f"was lost with its place at {place.host}" if place else "was lost"
            self._ended = Ended(LOST, cause, time.monotonic() - self._began, is_lost=True)
            return
        if isinstance(outcome, Unfit):
            self._cluster.refuse(outcome)
            self._cluster.dismiss(self._task, is_placed=True)
            self._find_place()
            return
        self._ended, self._last_words = outcome
        if self._ended.code == 0:
            self._cluster.dismiss(self._task, is_placed=True)
