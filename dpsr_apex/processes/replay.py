"""The replay process, the head of a run: it owns the clock, the run directory, the checkpoints and the metrics.

Checkpoints are written by a forked copy of the process while the service continues. It loads neither torch nor an
emulator.
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
from pathlib import Path

import numpy as np

from dpsr_apex import timeouts
from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.files import read_last_row, write_atomically
from dpsr_apex.interrupt import Interrupt
from dpsr_apex.processes.discovery import FileRegistry, HeadRecord
from dpsr_apex.processes.receive_queue import ReceiveQueue
from dpsr_apex.processes.startup import allow_many_connections
from dpsr_apex.processes.weights import pack_weights, unpack_weights
from dpsr_apex.protocol.replay_service import Outgoing, ReplayService
from dpsr_apex.protocol.state_requests import StateRequests
from dpsr_apex.record.checkpoint import Checkpoint, newest_checkpoint, save_checkpoint
from dpsr_apex.record.ending import remove_ending
from dpsr_apex.record.lock import serving_alone
from dpsr_apex.record.metrics import truncate_after
from dpsr_apex.record.progress import passed
from dpsr_apex.record.recorder import Recorder
from dpsr_apex.record.run_directory import RunDirectory, write_config
from dpsr_apex.replay.replay import Replay
from dpsr_apex.state import State
from dpsr_apex.wire.addresses import advertised_endpoint, is_loopback
from dpsr_apex.wire.codec import PROTOCOL, BadMessage, WrongProtocol, decode, encode
from dpsr_apex.wire.keys import load_server_keys, make_keys
from dpsr_apex.wire.messages import LearnerState, Message
from dpsr_apex.wire.sockets import Received, ServerSocket, wait

TOGETHER = 2  # answers sent together, which wakes ZeroMQ's thread once; more would keep an actor's window closed
AT_ONCE = 256  # messages handled before the clock is read again

log = logging.getLogger(__name__)


def run_replay(run: RunDirectory, bind: str, former_seconds: float | None = None) -> int:
    """Serve the run in its directory, new or from its newest checkpoint, until it ends; return the exit code.

    `former_seconds` is the time that a previous replay process is given to end and release its lock.
    """
    allow_many_connections()
    config = load_config(run.config)
    with Interrupt() as interrupt, serving_alone(run, former_seconds or timeouts.LOCK_RELEASE):
        remove_ending(run)
        # No reference to the checkpoint is kept after loading: it is as large as the replay itself.
        return ReplayProcess(config, run, bind, newest_checkpoint(run.checkpoints)).run(interrupt)


class ReplayProcess:
    """One replay process, the head of a run."""

    def __init__(self, config: Config, run: RunDirectory, bind: str, checkpoint: Checkpoint | None) -> None:
        self._config = config
        self._run = run
        rng = np.random.default_rng([config.run.seed, 1])
        replay = Replay(config.replay, config.run.total_steps, rng, config.run.environment_steps)
        era = secrets.randbits(62)
        emulator = importlib.metadata.version("ale-py")
        self._service = ReplayService(config, replay, _run_id(run), emulator, era)
        self._recorder = Recorder(config, run, self._service.note)
        self._saved_at = checkpoint.t if checkpoint else 0
        self._saving: int | None = None  # process id of the forked copy that writes a checkpoint
        self._save_began = 0.0
        self._ticked_at = 0.0
        self._states = StateRequests(self._service)
        if checkpoint:
            self._load(checkpoint)
        went_back = checkpoint is not None or run.metrics.exists()  # to 0 if it crashed before its first checkpoint
        if went_back:
            truncate_after(run.evaluations, self._saved_at)
        self._metrics = self._recorder.open(self._saved_at if went_back else None, self._updates)
        self._registry = FileRegistry(run.connection)
        self._server, public_key = _listen(bind, run)
        self._queue = ReceiveQueue(self._server.receive)
        self._registry.publish(HeadRecord(_published(self._server.endpoint), public_key, era))

    def run(self, interrupt: Interrupt) -> int:
        """Serve until the run is finished or stopped; in both cases a checkpoint is written."""
        log.info("serving at %s from t = %d", self._server.endpoint, self._service.t)
        with self._metrics:
            while not self._is_over(interrupt):
                self._serve()
                self._log_and_save()
            finished = self._service.finished
            self._end("the run is finished" if finished else "the run was stopped", finished)
        self._server.close()
        self._registry.withdraw()
        log.info("%s at t = %d", "finished" if finished else "stopped", self._service.t)
        return 0

    @property
    def _updates(self) -> int:
        return self._service.rate.batches

    def _is_over(self, interrupt: Interrupt) -> bool:
        if interrupt.asked:
            return True
        is_over, outgoing = self._states.for_end()
        self._send(outgoing)
        return is_over

    def _serve(self) -> None:
        """Wait for messages, and answer those that have arrived.

        The learner's messages come first: they are short, and should not wait for a queue of chunks.
        """
        if not self._queue:
            wait([self._server], timeouts.REPLAY_TICK)
        outgoing: list[Outgoing] = []
        for _ in range(AT_ONCE):
            learner = self._service.sessions.learner
            received = self._queue.next(learner.address if learner else None)
            if received is None:
                break
            outgoing += self._answers(received)
            self._keep_config()
            if len(outgoing) >= TOGETHER:
                self._send(outgoing)
                outgoing = []
        self._send(outgoing)
        now = time.monotonic()
        if now - self._ticked_at >= timeouts.REPLAY_TICK:
            self._ticked_at = now
            self._send(self._service.tick(now))

    def _answers(self, received: Received) -> list[Outgoing]:
        sender, now = received.sender, time.monotonic()
        try:
            return self._service.handle(sender, _checked(decode(received.frames)), now, received.host)
        except WrongProtocol as error:
            reason = f"it uses protocol {error.theirs}, this run uses {PROTOCOL}"
            return self._service.wrong_protocol(sender, reason, now)
        except BadMessage as error:
            return self._service.malformed(sender, str(error), now)

    def _keep_config(self) -> None:
        """Write the config if it was changed, before the answer is sent: the change must survive a restart."""
        if self._service.config is self._config:
            return
        self._config = self._service.config
        try:
            write_config(self._config, self._run)
        except OSError as error:
            lost = "the new number of actors will be lost when the replay restarts"
            self._service.note(f"{self._run.config} could not be written ({error}); {lost}.")

    def _send(self, outgoing: list[Outgoing]) -> None:
        for address, message in outgoing:
            self._server.send(address, encode(message))

    def _log_and_save(self) -> None:
        t = self._service.t
        is_last = self._service.replay.is_over  # the last row and checkpoint must include the last updates
        if self._recorder.is_due(self._service.replay) and not is_last:
            self._log()
        if self._saving is not None:
            self._reap_copy()
        elif passed(self._config.run.checkpoint_period, self._saved_at, t) and not is_last:
            self._save_in_copy()

    def _log(self) -> None:
        service = self._service
        self._recorder.add_episodes(service.drain_episodes())
        for report in service.drain_learning():
            self._recorder.add_updates(report.recent, report.loss, report.mean_q, report.gradient_norm)
        if evaluation := read_last_row(self._run.evaluations):
            self._recorder.add_evaluation(evaluation["t"], evaluation["mean"])
        age = service.flow.policy_ages.drain()
        more = {
            "actors": len(service.sessions.actors),
            "policy_age_mean": age.mean,
            "policy_age_p95": age.p95,
            "learner_waiting": service.learning.waiting if service.learning else None,
            **{f"traffic_{name}": count for name, count in service.traffic.counts().items()},
        }
        service.row = self._recorder.write(service.replay, self._updates, self._epsilon, more)

    @property
    def _epsilon(self) -> float | None:
        actor = self._config.actor
        return None if actor.ladder else actor.exploration.at(self._service.t, self._config.run.total_steps)

    def _save_in_copy(self) -> None:
        """Ask for the learner's state; when it has arrived, fork a copy of this process that writes the checkpoint."""
        has_come, outgoing = self._states.for_checkpoint()
        self._send(outgoing)
        if has_come:
            self._fork()

    def _fork(self) -> None:
        began = time.monotonic()
        with warnings.catch_warnings():
            # Newer Python versions warn about forking with threads; the copy does not use the sockets of those threads.
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
        log.info("saving at t = %d; the service was paused for %.3f s", self._saved_at, time.monotonic() - began)

    def _write_checkpoint_in_copy(self) -> int:
        try:
            # Mainly the sockets: if the parent crashes, the next process must be able to listen there at once.
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            os.nice(5)
            parent = os.getppid()
            # A restarted replay continues from an earlier checkpoint, and must not find this one later.
            self._write_checkpoint(lambda: os.getppid() == parent)
        except BaseException:
            log.exception("the checkpoint at t = %d could not be written", self._service.t)
            return 1
        return 0

    def _reap_copy(self) -> None:
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
            "recorder": self._recorder.save(),
        }
        kept = self._config.run.checkpoints_kept
        return save_checkpoint(self._run.checkpoints, service.t, parts, kept, still_wanted)

    def _end(self, reason: str, finished: bool) -> None:
        """Wait for the learner's last state and for all members to leave; write the last row and checkpoint."""
        if not finished:
            self._wait_for_learner()
        self._send(self._service.goodbye(finished, reason))
        self._serve_until(lambda: self._service.everybody_left, timeouts.MEMBERS_LEAVE)
        while self._saving is not None:
            self._serve()
            self._reap_copy()
        if self._recorder.is_due(self._service.replay):
            self._log()
        if not self._service.learner_state.arrays:
            self._service.note("No checkpoint can be written: the learner never sent its state.")
            return
        try:
            log.info("saved %s", self._write_checkpoint(lambda: True))
        except OSError as error:
            log.error("the last checkpoint could not be written: %s", error)
            raise

    def _wait_for_learner(self) -> None:
        """Wait for the learner's state after all batches so far; a state requested earlier may be older."""
        service = self._service
        deadline = time.monotonic() + timeouts.LEARNER_STATE
        self._serve_until(lambda: not service.awaiting_state, timeouts.LEARNER_STATE)
        self._send(service.request_save())
        self._serve_until(lambda: not service.awaiting_state, deadline - time.monotonic())
        if service.awaiting_state:
            service.note("The learner did not answer; its last saved state is kept.")

    def _serve_until(self, over: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not over() and time.monotonic() < deadline:
            self._serve()

    def _load(self, checkpoint: Checkpoint) -> None:
        self._service.load(checkpoint.parts["replay"])
        learner = checkpoint.parts["learner"]
        self._service.learner_state = LearnerState(json.dumps(learner.facts), pack_weights(learner.arrays))
        self._recorder.load(checkpoint.parts["recorder"])


def _checked(message: Message) -> Message:
    """Return the message; raise BadMessage for a learner's state that could not be saved in a checkpoint."""
    if isinstance(message, LearnerState):
        try:
            _opened(message)
        except (ValueError, RecursionError) as error:
            raise BadMessage(f"not a valid learner state: {error}") from None
    return message


def _opened(learner: LearnerState) -> State:
    facts = json.loads(learner.facts)
    if not isinstance(facts, dict):
        raise ValueError("its facts are not a JSON object")
    updates = facts.get("updates")
    if type(updates) is not int or updates < 0:  # a bool would be an int
        raise ValueError("it lacks the number of updates")
    return State(facts, unpack_weights(learner.arrays))


def _listen(bind: str, run: RunDirectory) -> tuple[ServerSocket, str]:
    """Return a listening socket and its public key; create keys if other machines can reach it."""
    if is_loopback(bind):
        return ServerSocket(bind), ""
    make_keys(run.keys)
    keys = load_server_keys(run.keys)
    return ServerSocket(bind, keys), keys.public.decode()


def _published(endpoint: str) -> str:
    """Return the address under which clients reach a head that listens on this endpoint."""
    published = advertised_endpoint(endpoint)
    if is_loopback(published) and not is_loopback(endpoint):
        log.warning(
            "this machine has no address that others can reach: set one with --bind so that they can find this head"
        )
    return published


def _run_id(run: RunDirectory) -> str:
    """Return the random id of a run, which is the same for all of its processes."""
    if not run.identity.exists():
        write_atomically(run.identity, secrets.token_hex(8))
    return run.identity.read_text(encoding="ascii")
