"""The replay's process, the head of a run: it owns the clock, the run directory, the checkpoints and the record.

Checkpoints are written by a copy of the process, which the kernel makes in milliseconds: the service goes on meanwhile.
It loads neither torch nor an emulator.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import secrets
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np

from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.processes.discovery import FileBoard, Notice
from dpsr_apex.processes.limits import allow_many_connections
from dpsr_apex.processes.lock import FORMER_SECONDS, serving_alone
from dpsr_apex.processes.turns import Turns
from dpsr_apex.processes.weights import inflate_weights, squeeze_weights
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.roles.replay_server import ReplayServer
from dpsr_apex.roles.replay_service import Outgoing, ReplayService
from dpsr_apex.run.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint
from dpsr_apex.run.interrupt import Interrupt
from dpsr_apex.run.journal import Journal, passed
from dpsr_apex.run.metrics import read_metrics, truncate_after
from dpsr_apex.run.run_directory import RunDirectory, write_config
from dpsr_apex.state import State
from dpsr_apex.wire.addresses import is_loopback, seen_from_elsewhere
from dpsr_apex.wire.codec import PROTOCOL, BadMessage, WrongProtocol, decode, encode
from dpsr_apex.wire.keys import load_server_keys, make_keys
from dpsr_apex.wire.messages import LearnerState, Message
from dpsr_apex.wire.sockets import Received, Server, wait

TICK_SECONDS = 0.1
TOGETHER = 2  # answers sent in one go, which wakes ZeroMQ's thread once; more would keep an actor's window shut
AT_ONCE = 256  # messages taken before the clock is looked at
STATE_SECONDS = 6.0  # for the learner's last word before a run ends without it
FAREWELL_SECONDS = 2.0  # for everybody to leave

log = logging.getLogger(__name__)


def run_replay(run: RunDirectory, bind: str, former_seconds: float | None = None) -> int:
    """Serve the run in its directory, new or from its newest checkpoint, until it ends; the exit code.

    A former life of it is given so long to end, if not the usual time.
    """
    allow_many_connections()
    config = load_config(run.config)
    with Interrupt() as interrupt, serving_alone(run, former_seconds or FORMER_SECONDS):
        # Nobody keeps the checkpoint once it is loaded: it is as large as the replay itself.
        return ReplayProcess(config, run, bind, newest_checkpoint(run.checkpoints)).run(interrupt)


class ReplayProcess:
    """One life of the head of a run."""

    def __init__(self, config: Config, run: RunDirectory, bind: str, checkpoint: Checkpoint | None) -> None:
        self._config = config
        self._run = run
        replay = DpsrReplay(config.replay, config.run.total_steps, np.random.default_rng([config.run.seed, 1]))
        era = secrets.randbits(62)
        server = ReplayServer(replay, config, era)
        emulator = importlib.metadata.version("ale-py")
        self._service = ReplayService(config, server, _run_id(run), emulator)
        self._journal = Journal(config, run, self._service.note)
        self._saved_at = checkpoint.t if checkpoint else 0
        self._saving: int | None = None  # id of the process that writes a checkpoint
        self._save_began = 0.0
        self._ticked = 0.0
        self._states_used = 0  # of those that the learner has sent
        self._last_asked: int | None = None  # how many had come when the last one of the run was asked for
        if checkpoint:
            self._load(checkpoint)
        went_back = checkpoint is not None or run.metrics.exists()  # to 0 if it died before its first checkpoint
        if went_back:
            truncate_after(run.evaluations, self._saved_at)
        self._metrics = self._journal.open(self._saved_at if went_back else None, self._updates)
        self._board = FileBoard(run.connection)
        self._server, public_key = _listen(bind, run)
        self._turns = Turns(self._server.receive)
        self._board.publish(Notice(_published(self._server.endpoint), public_key, era))

    def run(self, interrupt: Interrupt) -> int:
        """Serve until the run is over or stopped; either way a checkpoint is left behind."""
        log.info("serving at %s from t = %d", self._server.endpoint, self._service.t)
        with self._metrics:
            while not self._is_over(interrupt):
                self._serve()
                self._do_what_is_due()
            finished = self._service.finished
            self._end("the run is finished" if finished else "the run was stopped", finished)
        self._server.close()
        self._board.withdraw()
        log.info("%s at t = %d", "finished" if finished else "stopped", self._service.t)
        return 0

    @property
    def _updates(self) -> int:
        return self._service.server.rate.batches

    def _is_over(self, interrupt: Interrupt) -> bool:
        if not self._service.finished:
            self._last_asked = None
        return interrupt.asked or (self._service.finished and self._has_last_state())

    def _has_last_state(self) -> bool:
        """Whether the learner has told what it is after its last update.

        One that dies before it could is waited for: it comes back with fewer updates, and the rest is owed again.
        """
        service = self._service
        if self._last_asked is not None and service.states_received > self._last_asked:
            return True
        if not service.awaiting_state:
            self._last_asked = service.states_received if service.sessions.learner else None
            self._send(service.request_save())
        return False

    def _serve(self) -> None:
        """Wait for messages, and answer those that are there.

        The learner's go first: it asks in a few bytes, and should not wait for a queue of chunks with it.
        """
        if not self._turns:
            wait([self._server], TICK_SECONDS)
        outgoing: list[Outgoing] = []
        for _ in range(AT_ONCE):
            learner = self._service.sessions.learner
            received = self._turns.next(learner.address if learner else None)
            if received is None:
                break
            outgoing += self._answers(received)
            self._keep_config()
            if len(outgoing) >= TOGETHER:
                self._send(outgoing)
                outgoing = []
        self._send(outgoing)
        now = time.monotonic()
        if now - self._ticked >= TICK_SECONDS:
            self._ticked = now
            self._send(self._service.tick(now))

    def _answers(self, received: Received) -> list[Outgoing]:
        sender, now = received.sender, time.monotonic()
        try:
            return self._service.handle(sender, _looked_through(decode(received.frames)), now, received.host)
        except WrongProtocol as error:
            reason = f"it speaks protocol {error.theirs}, this run {PROTOCOL}"
            return self._service.wrong_protocol(sender, reason, now)
        except BadMessage as error:
            return self._service.malformed(sender, str(error), now)

    def _keep_config(self) -> None:
        """Write it down when it was changed, before anybody is answered: what was answered outlives this process."""
        if self._service.config is self._config:
            return
        self._config = self._service.config
        try:
            write_config(self._config, self._run)
        except OSError as error:
            lost = "the new number of actors will be forgotten with this life of the replay"
            self._service.note(f"{self._run.config} could not be written ({error}); {lost}.")

    def _send(self, outgoing: list[Outgoing]) -> None:
        for address, message in outgoing:
            self._server.send(address, encode(message))

    def _do_what_is_due(self) -> None:
        t = self._service.t
        is_last = t >= self._config.run.total_steps  # that row and that checkpoint are to tell of the last updates too
        if self._journal.is_due(t) and not is_last:
            self._log()
        if self._saving is not None:
            self._look_after_saving()
        elif passed(self._config.run.checkpoint_period, self._saved_at, t) and not is_last:
            self._save_beside()

    def _log(self) -> None:
        service = self._service
        self._journal.games(service.drain_games())
        for report in service.drain_learning():
            self._journal.updates(report.recent, report.loss, report.mean_q, report.gradient_norm)
        evaluations = read_metrics(self._run.evaluations)
        self._journal.diary.evaluation_mean = evaluations[-1]["mean"] if evaluations else None
        more = {
            "actors": len(service.sessions.actors),
            "learner_waiting": service.learning.waiting if service.learning else None,
            **{f"traffic_{name}": count for name, count in asdict(service.traffic).items()},
        }
        service.row = self._journal.write(service.server.replay, self._updates, self._epsilon, more)

    @property
    def _epsilon(self) -> float | None:
        actor = self._config.actor
        return None if actor.ladder else actor.exploration.at(self._service.t, self._config.run.total_steps)

    def _save_beside(self) -> None:
        """First the learner's state is asked for; when it has come, a copy of this process writes everything."""
        service = self._service
        if not service.awaiting_state and service.states_received == self._states_used:
            if not service.sessions.learner:
                return
            self._send(service.request_save())
        elif service.states_received > self._states_used:
            self._states_used = service.states_received
            self._fork()

    def _fork(self) -> None:
        began = time.monotonic()
        with warnings.catch_warnings():
            # Newer Pythons warn of forks beside threads: the copy uses none of the sockets that those threads serve.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._saved_at = self._service.t
            try:
                self._saving = os.fork()
            except OSError as error:
                self._service.note(f"No checkpoint at t = {self._saved_at:,}: {error}. The last one is kept.")
                return
        if self._saving == 0:
            os._exit(self._write_checkpoint_in_copy())
        self._save_began = began
        log.info("saving at t = %d; the service stood still for %.3f s", self._saved_at, time.monotonic() - began)

    def _write_checkpoint_in_copy(self) -> int:
        try:
            # Above all the sockets: if this process dies, its next life must be able to listen there at once.
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.nice(5)
            parent = os.getppid()
            # A next life goes another way from the last checkpoint on, and must not find this one later.
            self._write_checkpoint(lambda: os.getppid() == parent)
        except BaseException:
            log.exception("the checkpoint at t = %d could not be written", self._service.t)
            return 1
        return 0

    def _look_after_saving(self) -> None:
        assert self._saving is not None
        done, status = os.waitpid(self._saving, os.WNOHANG)
        if not done:
            return
        self._saving = None
        if status:
            self._service.note(f"The checkpoint at t = {self._saved_at:,} could not be written; the last one is kept.")
        else:
            log.info("saved t = %d in %.1f s", self._saved_at, time.monotonic() - self._save_began)

    def _write_checkpoint(self, still_wanted: Callable[[], bool]) -> Path:
        service = self._service
        parts = {
            "replay": service.save(),
            "learner": _opened(service.learner_state),
            "journal": self._journal.save(),
        }
        kept = self._config.run.checkpoints_kept
        return save_checkpoint(self._run.checkpoints, service.t, parts, kept, still_wanted)

    def _end(self, reason: str, finished: bool) -> None:
        """The learner's last word, everybody's farewell, the last row and the last checkpoint."""
        if not finished:
            self._wait_for_learner()
        self._send(self._service.goodbye(finished, reason))
        self._serve_until(lambda: self._service.everybody_left, FAREWELL_SECONDS)
        while self._saving is not None:
            self._serve()
            self._look_after_saving()
        if self._journal.is_due(self._service.t):
            self._log()
        if not self._service.learner_state.arrays:
            self._service.note("No checkpoint can be written: the learner never gave its state.")
            return
        try:
            log.info("saved %s", self._write_checkpoint(lambda: True))
        except OSError as error:
            log.error("the last checkpoint could not be written: %s", error)
            raise

    def _wait_for_learner(self) -> None:
        """Its state after all batches that it was given; one that was asked for before is not that."""
        service = self._service
        deadline = time.monotonic() + STATE_SECONDS
        self._serve_until(lambda: not service.awaiting_state, STATE_SECONDS)
        self._send(service.request_save())
        self._serve_until(lambda: not service.awaiting_state, deadline - time.monotonic())
        if service.awaiting_state:
            service.note("The learner did not answer: its last saved state is kept.")

    def _serve_until(self, over: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not over() and time.monotonic() < deadline:
            self._serve()

    def _load(self, checkpoint: Checkpoint) -> None:
        self._service.load(checkpoint.parts["replay"])
        learner = checkpoint.parts["learner"]
        self._service.learner_state = LearnerState(json.dumps(learner.facts), squeeze_weights(learner.arrays))
        self._journal.load(checkpoint.parts["journal"])


def _looked_through(message: Message) -> Message:
    """The message itself; a state that no checkpoint could be written with is a `BadMessage`."""
    if isinstance(message, LearnerState):
        try:
            _opened(message)
        except (ValueError, RecursionError) as error:
            raise BadMessage(f"this is no learner's state: {error}") from None
    return message


def _opened(learner: LearnerState) -> State:
    facts = json.loads(learner.facts)
    if not isinstance(facts, dict):
        raise ValueError("its facts are no JSON object")
    updates = facts.get("updates")
    if type(updates) is not int or updates < 0:  # a bool would be an int
        raise ValueError("it does not say how many updates there were")
    return State(facts, inflate_weights(learner.arrays))


def _listen(bind: str, run: RunDirectory) -> tuple[Server, str]:
    """A socket there, and its public key; beyond this machine there are keys, made here where the run has none yet."""
    if is_loopback(bind):
        return Server(bind), ""
    make_keys(run.keys)
    keys = load_server_keys(run.keys)
    return Server(bind, keys), keys.public.decode()


def _published(endpoint: str) -> str:
    """Where others reach a head that listens there."""
    published = seen_from_elsewhere(endpoint)
    if is_loopback(published) and not is_loopback(endpoint):
        log.warning("no way out of this machine was found: name an address in --bind, if others are to find this head")
    return published


def _run_id(run: RunDirectory) -> str:
    """The run's name for itself: random, and the same in all its lives."""
    if not run.identity.exists():
        run.identity.write_text(secrets.token_hex(8), encoding="ascii")
    return run.identity.read_text(encoding="ascii")
