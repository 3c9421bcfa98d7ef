"""The processes of a run: started, looked after, started again when they die, and ended together.

Where they live is the engine's business: on this machine, or on the nodes of a cluster.

It only supervises and shows. What the processes say to each other it never sees, and all that a run must remember is
with the replay's process; so it can be killed at any moment, and those that it started notice and end.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from dpsr_apex.config import Config
from dpsr_apex.live.view import LiveView
from dpsr_apex.processes.discovery import Whereabouts
from dpsr_apex.processes.lock import wait_until_free
from dpsr_apex.run.checkpoint import has_checkpoint
from dpsr_apex.run.children import Child
from dpsr_apex.run.engines import Engine
from dpsr_apex.run.interrupt import Interrupt
from dpsr_apex.run.lives import Task
from dpsr_apex.run.metrics import read_metrics
from dpsr_apex.run.rooms import Rooms
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.wire.codec import BadMessage, decode, encode
from dpsr_apex.wire.messages import Gone, Message, Stats, StatsRequest
from dpsr_apex.wire.sockets import Client, wait

LOOK_SECONDS = 0.25
END_SECONDS = 9.0  # for everybody to leave when the run is stopped
LEAVE_SECONDS = 1.0  # for those whom the replay has told to leave
WRITE_SECONDS = 300.0  # for the replay, whose last checkpoint may be large
ANSWER_SECONDS = 1.0  # after which an answer of the replay is to a later question
SILENCE_SECONDS = 3.0  # of the replay, before it is looked for anew
STILL_SECONDS = 30.0  # without a transition and an update, before that is said

log = logging.getLogger(__name__)


class RunFailed(Exception):
    """The run cannot go on: why."""


@dataclass
class Watch:
    """Says when nothing moves."""

    progress: tuple[int, int] = (-1, -1)
    since: float = field(default_factory=time.monotonic)
    told: float = 0.0  # seconds of standing still at which it was last said

    def look(self, progress: tuple[int, int], now: float) -> float | None:
        """Seconds without progress, when it is time to say so: after 30, 60, 120, ..."""
        if progress != self.progress:
            self.progress, self.since, self.told = progress, now, 0.0
            return None
        still = now - self.since
        if still < max(STILL_SECONDS, 2 * self.told):
            return None
        self.told = still
        return still


class Supervisor:
    """Runs one run: a replay, a learner, an evaluator and actors."""

    def __init__(self, config: Config, run: RunDirectory, view: LiveView, engine: Engine) -> None:
        self._config = config
        self._run = run
        self._view = view
        self._engine = engine
        self._children: list[Child] = []
        self._retired: list[tuple[Child, float]] = []  # actors that were told to leave, and when that time is over
        self._head: Whereabouts | None = None
        self._client: Client | None = None
        self._stats: dict[str, Any] = {}
        self._told_at = time.monotonic()
        self._era: int | None = None  # which life of the replay `_noted` counts the notes of
        self._noted = 0
        self._evaluations = len(read_metrics(run.evaluations))
        self._watch = Watch()
        self._rooms = Rooms(engine, view.note)
        self._sent_home: dict[str, float] = {}  # when it was first seen that a child has left in order

    def run(self, interrupt: Interrupt) -> bool:
        """Go on until the run ends or is interrupted; whether it is finished and evaluated.

        RunFailed when it cannot go on.
        """
        try:
            if not wait_until_free(self._run, self._engine.former_seconds, lambda: interrupt.asked):
                return False
            self._engine.withdraw()
            self._start_all(interrupt)
            while not self._replay.is_done:
                if interrupt.asked:
                    self._view.note("Stopping: everything is saved first. Once more to end at once.")
                    break
                self._look_after(self._children)
                self._look_for_room()
                self._look_at_the_run()
            else:
                self._show_last_row()
                self._wait_for_evaluation(interrupt)
        finally:
            if self._children:
                self._end_all()
            if self._client:
                self._client.close()
            self._engine.close()
        self._show_last_row()
        return self._is_evaluated()

    def _start_all(self, interrupt: Interrupt) -> None:
        """First the replay; then those without whom nothing is learnt, and then all others."""
        self._add("replay", "replay", "--run-dir", str(self._run.path))
        self._replay.start()
        self._head = self._wait_for_replay(interrupt)
        if self._head is None:
            return
        self._replay.task = self._task("replay", "replay", "--run-dir", str(self._run.path))
        self._client = Client(*self._head.address)
        self._view.note(self._engine.invitation(self._head.address))
        self._add("learner", "learner")
        self._add_actor(0)
        self._add("evaluator", "evaluator", str(self._run.path))
        for index in range(1, self._actors):
            self._add_actor(index)

    @property
    def _actors(self) -> int:
        return self._config.system.actors or 1

    def _add_actor(self, index: int) -> None:
        self._add(f"actor-{index}", "actor", "--name", f"actor-{index}")

    def _add(self, name: str, role: str, *words: str) -> None:
        self._children.append(Child(self._task(name, role, *words), self._engine.begin))

    def _task(self, name: str, role: str, *words: str) -> Task:
        options = self._engine.options(role, self._actors)
        return Task(name, role, [role, *words, *options], self._run.logs / f"{name}.log")

    @property
    def _replay(self) -> Child:
        return self._children[0]

    def _of(self, role: str) -> list[Child]:
        return [child for child in self._children if child.role == role]

    def _wait_for_replay(self, interrupt: Interrupt) -> Whereabouts | None:
        """Where it is; None when the run was interrupted before it had published itself."""
        while (head := self._engine.find_head()) is None:
            if interrupt.asked:
                return None
            self._look_for_room()
            if (still := self._watch.look((0, 0), time.monotonic())) and self._replay.has_place:
                self._view.note(f"Waiting for the replay to load its checkpoint, for {still:.0f} s now")
            if (ended := self._replay.ended) is not None and not ended.is_lost:
                raise RunFailed(f"The replay's process did not start:\n{self._replay.last_words()}")
            self._look_after([self._replay])
            time.sleep(0.02)
        return head

    def _look_after(self, children: list[Child]) -> None:
        """Start what is to be started, and see who has died."""
        for child in children:
            now = time.monotonic()
            if child.start_at is not None and now >= child.start_at:
                child.start()
            elif child.died:
                self._mourn(child, now)
            elif child.is_done and child is not self._replay:
                self._call_back(child, now)

    def _mourn(self, child: Child, now: float) -> None:
        last = child.last_words() if child.deaths == 0 else ""
        words = f"{child.name} {child.bury(now).cause}"
        self._tell(Gone(child.name))
        if last:
            words += f"; its last words ({child.task.log}):\n{last}"
        if child.given_up:
            words += f"\n{child.name} died {child.deaths + child.losses} times in a row and is given up"
        self._view.note(words)
        log.warning(words)
        if child.given_up and child.role in ("replay", "learner"):
            raise RunFailed(f"The {child.role} died {child.deaths + child.losses} times in a row; see {child.task.log}")
        self._ensure_actors()

    def _ensure_actors(self) -> None:
        actors = self._of("actor")
        if actors and all(actor.given_up for actor in actors):
            raise RunFailed(f"Every actor died too often; see {actors[-1].task.log}")

    def _call_back(self, child: Child, now: float) -> None:
        """One that was sent home is needed again if there is a replay that goes on: it was another life that ended."""
        since = self._sent_home.setdefault(child.name, now)
        if self._told_at > since + ANSWER_SECONDS and not self._stats["ending"]:
            del self._sent_home[child.name]
            child.start_at = now

    def _look_for_room(self) -> None:
        for child in self._rooms.look(self._children, time.monotonic()):
            self._tell(Gone(child.name))

    def _look_at_the_run(self) -> None:
        """Ask the replay how things are, and show it."""
        self._follow_head()
        self._tell(StatsRequest())
        if self._client is None:
            time.sleep(LOOK_SECONDS)
            return
        deadline = time.monotonic() + LOOK_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            wait([self._client], left)
            while (frames := self._client.receive()) is not None:
                with contextlib.suppress(BadMessage):
                    self._take(decode(frames))
        self._follow_plan()
        self._show_evaluations()
        t, batches = (self._stats["t"], self._stats["rate"]["batches"]) if self._stats else (0, 0)
        if still := self._watch.look((t, batches), time.monotonic()):
            silent = time.monotonic() - self._told_at
            why = self._stats.get("waiting") or "Nobody says that they wait."
            if silent > STILL_SECONDS / 2:
                why = f"The replay has not answered for {silent:.0f} s."
            self._view.note(f"Nothing has moved for {still:.0f} s at t = {t:,}. {why}")

    def _follow_head(self) -> None:
        """A replay that does not answer may be elsewhere by now."""
        silent = time.monotonic() - self._told_at > SILENCE_SECONDS
        if silent and self._head is not None and self._client is not None and self._head.look_again():
            self._client.close()
            self._client = Client(*self._head.address)

    def _take(self, message: Message) -> None:
        if not isinstance(message, Stats):
            return
        self._stats = json.loads(message.facts)
        self._told_at = time.monotonic()
        if self._stats["era"] != self._era:  # another life of the replay numbers its notes anew
            self._era, self._noted = self._stats["era"], 0
        for number, text in self._stats["notes"]:
            if number > self._noted:
                self._noted = number
                self._view.note(text)
        self._view.show(self._stats)

    def _follow_plan(self) -> None:
        """Have as many actors as the replay says are planned: the last ones are told to leave, or more are added.

        Those are not started before the former ones are gone, whose names they get.
        """
        now = time.monotonic()
        self._see_off(now)
        if not self._stats or self._stats["ending"]:
            return
        actors, planned = self._of("actor"), self._stats["planned_actors"]
        for child in actors if planned != len(actors) else []:
            child.forgive(now)
        for child in actors[planned:]:
            self._children.remove(child)
            self._sent_home.pop(child.name, None)
            child.signal(signal.SIGTERM)
            self._retired.append((child, now + END_SECONDS))
        if not self._retired:
            for index in range(len(actors), planned):
                self._add_actor(index)

    def _see_off(self, now: float) -> None:
        """Forget those that have left; who does not leave in time is killed."""
        staying = []
        for child, until in self._retired:
            if now >= until:
                child.kill()
            if child.runs:
                staying.append((child, until))
            else:
                child.kill()  # gives its place away
                self._tell(Gone(child.name))  # where it could not say so itself
        self._retired = staying

    def _show_last_row(self) -> None:
        """The replay writes it when it has sent everybody home, and answers no more."""
        if rows := read_metrics(self._run.metrics):
            self._view.update(rows[-1])

    def _show_evaluations(self) -> None:
        rows = read_metrics(self._run.evaluations)
        for row in rows[self._evaluations :]:
            self._view.evaluated(row)
            self._view.note(f"evaluation at t = {row['t']:,}: mean {row['mean']:.1f} over {row['games']} games")
        self._evaluations = len(rows)

    def _tell(self, message: Message) -> None:
        if self._client is not None:
            self._client.send(encode(message))

    def _is_evaluated(self) -> bool:
        rows = read_metrics(self._run.evaluations)
        return bool(rows) and rows[-1]["t"] >= self._config.run.total_steps

    def _wait_for_evaluation(self, interrupt: Interrupt) -> None:
        """The replay has ended in order; where that was the end of the run, the last weights are still played with."""
        evaluators = self._of("evaluator")
        self._send_home([child for child in self._children if child.role != "evaluator"], END_SECONDS)
        if has_checkpoint(self._run.checkpoints, self._config.run.total_steps) and not self._is_evaluated():
            self._view.note("The run has ended; the last evaluation is being played")
            while not interrupt.asked:
                is_over = all(child.given_up or child.is_done for child in evaluators)
                if self._is_evaluated():
                    break
                if is_over:
                    raise RunFailed(f"The last evaluation could not be played; see {evaluators[0].task.log}")
                self._look_after(evaluators)
                self._look_for_room()
                time.sleep(LOOK_SECONDS)
        self._show_evaluations()

    def _end_all(self) -> None:
        """The replay saves, sends everybody home and ends; who does not leave is told again, and killed at last."""
        others = [*self._children[1:], *(child for child, _ in self._retired)]
        for child in others if not self._replay.runs else [self._replay, *self._of("evaluator")]:
            child.signal(signal.SIGTERM)
        began = time.monotonic()
        self._wait_until_ended([self._replay], END_SECONDS)
        self._send_home(others, END_SECONDS - (time.monotonic() - began))
        self._wait_until_ended([self._replay], WRITE_SECONDS)
        last = self._replay.last_words()
        self._replay.kill()
        if self._replay.died:  # its last checkpoint may not be there
            cause = self._replay.bury(time.monotonic()).cause
            self._view.note(f"replay {cause}; its last words ({self._replay.task.log}):\n{last}")

    def _send_home(self, children: list[Child], seconds: float) -> None:
        """They were told to leave by the replay; who has not is told again, and killed after so many seconds."""
        began = time.monotonic()
        self._wait_until_ended(children, LEAVE_SECONDS)
        for child in children:
            child.signal(signal.SIGTERM)
        self._wait_until_ended(children, seconds - (time.monotonic() - began))
        for child in children:
            child.kill()

    def _wait_until_ended(self, children: list[Child], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while any(child.runs for child in children) and time.monotonic() < deadline:
            time.sleep(0.05)
