"""The replay process, the head of a run: it owns the clock, the run directory, the checkpoints and the metrics.

Checkpoints are written by a forked copy of the process while the service continues. It loads neither torch nor an
emulator.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from dpsr_apex import timeouts
from dpsr_apex.callbacks import Callbacks
from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.files import read_last_row
from dpsr_apex.interrupt import Interrupt
from dpsr_apex.machine import available_memory, release_memory, resident_memory
from dpsr_apex.processes.discovery import FileRegistry, HeadRecord
from dpsr_apex.processes.journaling import Journaling
from dpsr_apex.processes.notifier import Notifier, await_last_evaluation
from dpsr_apex.processes.receive_queue import ReceiveQueue
from dpsr_apex.processes.recovering import newest_intact, recover_service
from dpsr_apex.processes.saving import Saving, collect
from dpsr_apex.processes.startup import allow_many_connections, await_space
from dpsr_apex.processes.weights import opened_state
from dpsr_apex.protocol.events import Logged
from dpsr_apex.protocol.memory_watch import MemoryWatch
from dpsr_apex.protocol.replay_service import Outgoing
from dpsr_apex.protocol.run_end import Phase, RunEnd
from dpsr_apex.protocol.state_requests import StateRequests
from dpsr_apex.record.checkpoint import Checkpoint
from dpsr_apex.record.ending import Ending, remove_ending
from dpsr_apex.record.journal.recover import Recovered
from dpsr_apex.record.lock import serving_alone
from dpsr_apex.record.metrics import truncate_after
from dpsr_apex.record.moments import starts_of
from dpsr_apex.record.progress import is_trained, saved_at
from dpsr_apex.record.provenance import Session
from dpsr_apex.record.quarantine import QuarantineFolder
from dpsr_apex.record.recorder import Recorder
from dpsr_apex.record.run_directory import RunDirectory, write_config
from dpsr_apex.state import State
from dpsr_apex.wire.addresses import advertised_endpoint, is_loopback
from dpsr_apex.wire.codec import PROTOCOL, BadMessage, WrongProtocol, decode, encode
from dpsr_apex.wire.fragments import MOST_BYTES
from dpsr_apex.wire.keys import ROLES, load_keys, make_keys
from dpsr_apex.wire.messages import SERVER, LearnerState, Message, Starts, Terms
from dpsr_apex.wire.sockets import Received, ServerSocket, wait

TOGETHER = 2  # answers sent together, which wakes ZeroMQ's thread once; more would keep an actor's window closed
MEMORY_SHARE = 0.9  # of the memory that is available when this process starts, by default
AT_ONCE = 256  # messages handled before the clock is read again

log = logging.getLogger(__name__)


def run_replay(
    run: RunDirectory,
    bind: str,
    former_seconds: float,
    callbacks: Callbacks | None = None,
    command: str | None = None,
    on_interrupt: Callable[[], None] = lambda: None,
) -> int:
    """Serve the run in its directory, new or from its newest checkpoint, until it ends; return the exit code.

    The caller, or the supervisor that has started it, must hold the right to run the run. `former_seconds` is the time
    that a previous replay process is given to end and release its lock. `command` is recorded in the provenance; None
    if a supervisor has started this process, which records its own. `on_interrupt` is called at the first signal.
    """
    allow_many_connections()
    with Interrupt(on_interrupt) as interrupt, serving_alone(run, former_seconds):
        config = load_config(run.config)
        remove_ending(run)
        await_space(run, lambda: interrupt.asked)
        if interrupt.asked:
            return 0
        # No reference to the checkpoint is kept after loading: it is as large as the replay itself.
        process = ReplayProcess(config, run, bind, *newest_intact(config, run), callbacks or Callbacks())
        if command is None:
            return process.run(interrupt)
        return _recorded(process, run, command, interrupt)


def _recorded(process: ReplayProcess, run: RunDirectory, command: str, interrupt: Interrupt) -> int:
    """Run a process that has no supervisor, and record when it began and how it ended."""
    session = Session(run, command)
    session.begin(saved_at(run))
    try:
        code = process.run(interrupt)
    except Exception as error:
        session.end(Ending("failed", 1, saved_at(run), "replay", f"{type(error).__name__}: {error}"))
        raise
    session.end(Ending("finished" if is_trained(run) else "stopped", code, saved_at(run)))
    return code


class ReplayProcess:
    """One replay process, the head of a run."""

    def __init__(
        self,
        config: Config,
        run: RunDirectory,
        bind: str,
        checkpoint: Checkpoint | None,
        notes: Sequence[str],
        callbacks: Callbacks,
    ) -> None:
        self._callbacks = callbacks
        self._config = config
        self._run = run
        self._memory = MemoryWatch(_memory_limit(config), time.monotonic())
        recovered = recover_service(config, run, checkpoint)
        self._service = recovered.service
        self._service.starts = starts_of(config, run)
        for text in notes:
            self._service.notes.add(text)
        self._journaling = Journaling(self._service, run.journal, recovered.next)
        self._recorder = _recorder(config, run, recovered, checkpoint)
        self._saving = Saving(run, self._service, self._recorder, self._journaling, checkpoint.t if checkpoint else 0)
        self._ticked_at = 0.0
        self._states = StateRequests(self._service)
        self._end = RunEnd(self._service, self._states)
        self._quarantine = QuarantineFolder(run.quarantine)
        continues = self._service.t > 0 or run.metrics.exists()  # at 0 if it crashed without a journal
        if continues:
            truncate_after(run.evaluations, self._service.t)
        logged_at = self._recorder.totals.logged_at if continues else None
        self._metrics = self._recorder.open(logged_at, self._updates, self._service.t)
        # None without callbacks, which then cost nothing.
        self._notifier = Notifier(config, run, callbacks, self._service, self._recorder) if callbacks else None
        self._registry = FileRegistry(run.connection)
        make_keys(run.keys)
        keys = load_keys(run.key_of(SERVER), SERVER)
        accepted = [role for role in ROLES if role != SERVER]
        self._server = ServerSocket(bind, keys, accepted, self._most_bytes)
        self._queue = ReceiveQueue(self._server.receive)
        self._registry.publish(
            HeadRecord(_published(self._server.endpoint), keys.public[SERVER].decode(), self._service.flow.era)
        )

    def run(self, interrupt: Interrupt) -> int:
        """Serve until the run is finished or stopped; in both cases a checkpoint is written."""
        log.info("serving at %s from t = %d", self._server.endpoint, self._service.t)
        with self._metrics:
            while self._saving.is_busy or not self._end.may_save(time.monotonic()):
                self._serve(interrupt.asked or self._callbacks.wants_end)
                self._keep_quarantined()
                if self._notifier:
                    self._notifier.notify()
                self._log_and_save()
            self._save_last()
            self._server.close()
            self._registry.withdraw()
            finished = self._end.is_finished
            if finished and (self._notifier or self._config.run.track):
                await_last_evaluation(self._run, lambda: interrupt.asked)
                if evaluation := read_last_row(self._run.evaluations):
                    self._recorder.track_evaluation(evaluation["t"], evaluation["mean"])
        if self._notifier:
            self._notifier.end(finished)
        log.info("%s at t = %d", "finished" if finished else "stopped", self._service.t)
        return 0

    @property
    def _updates(self) -> int:
        return self._service.rate.batches

    @property
    def _is_checkpoint_due(self) -> bool:
        return self._saving.is_due(self._config.run.checkpoint_period)

    def _serve(self, is_asked_to_stop: bool) -> None:
        """Wait for messages, and answer those that have arrived.

        The learner's messages come first: they are short, and should not wait for a queue of chunks.
        """
        if not self._queue:
            wait([self._server, self._journaling], timeouts.REPLAY_TICK)
        self._transmit(self._journaling.poll())
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
            self._send([*self._service.tick(now), *self._end.tick(is_asked_to_stop, now)])
            self._watch_memory(now)

    def _watch_memory(self, now: float) -> None:
        """Drop the peer that takes the most memory, and evict what takes most, if this process takes too much."""
        resident, limit = resident_memory(), self._memory.limit
        relief = self._memory.check(resident, now)
        if relief is None or resident is None or limit is None:
            return
        reason = f"the replay takes {_mebibytes(resident)}, more than its limit of {_mebibytes(limit)}"
        if relief.size:
            self._service.shrink(relief.size, reason)
            self._keep_quarantined()  # which still holds what was evicted
            release_memory()
        if greedy := relief.greedy:
            why = f"{reason}, and {_mebibytes(greedy.size)} have come from it lately"
            self._server.disconnect(greedy.sender, why)
            self._service.drop(greedy.sender, why)

    def _answers(self, received: Received) -> list[Outgoing]:
        sender, now = received.sender, time.monotonic()
        self._memory.came(sender, received.size)
        if received.is_fragment:
            self._service.heard(sender, now)
            return []
        try:
            message = _decoded(received)
            self._journaling.received(message, received.frames)
            return self._service.handle(sender, message, now, received.role, received.host)
        except BadMessage as error:
            self._server.blame(received)
            if not isinstance(error, WrongProtocol):
                return self._service.malformed(sender, str(error), now)
            reason = f"it uses protocol {error.theirs}, this run uses {PROTOCOL}"
            return self._service.wrong_protocol(sender, reason, now)

    def _most_bytes(self, sender: bytes, role: str) -> int:
        """Return how large a message in fragments may be: only members send large ones."""
        return MOST_BYTES.get(role, 0) if self._service.sessions.at(sender) else 0

    def _keep_config(self) -> None:
        """Write the config if it was changed, before the answer is sent: the change must survive a restart."""
        if self._service.config is self._config:
            return
        self._config = self._service.config
        try:
            write_config(self._config, self._run)
        except OSError as error:
            lost = "the new number of actors will be lost when the replay restarts"
            self._service.notes.add(f"{self._run.config} could not be written ({error}); {lost}.")

    def _keep_quarantined(self) -> None:
        """Write what was quarantined; if the disk is full, it is only counted."""
        for quarantined in self._service.flow.quarantine.drain():
            self._recorder.guard(partial(self._quarantine.keep, quarantined))
        for refusal in self._service.flow.quarantine.drain_refusals():
            self._recorder.guard(partial(self._quarantine.keep_refusal, refusal))

    def _send(self, outgoing: list[Outgoing]) -> None:
        """Record what has changed, and send these messages as soon as that is as safe as promised."""
        self._transmit(self._journaling.commit(outgoing))

    def _transmit(self, outgoing: list[Outgoing]) -> None:
        for address, message in outgoing:
            send = self._server.answer if isinstance(message, Terms | Starts) else self._server.send
            send(address, encode(message))

    def _log_and_save(self) -> None:
        service = self._service
        is_last = service.replay.is_over  # the last row and checkpoint must include the last updates
        if self._recorder.is_due(service.replay) and not is_last:
            self._log()
        self._metrics.report_trackers()
        if self._saving.is_busy:
            self._reap_copy()
        elif self._end.phase is Phase.SERVING and not is_last and self._is_checkpoint_due:
            self._save_in_copy()

    def _log(self) -> None:
        service = self._service
        collect(service, self._recorder)
        if evaluation := read_last_row(self._run.evaluations):
            self._recorder.add_evaluation(evaluation["t"], evaluation["mean"])
        age = service.flow.policy_ages.drain()
        more = {
            "actors": len(service.sessions.actors),
            "policy_age_mean": age.mean,
            "policy_age_p95": age.p95,
            "learner_waiting": service.learner.report.waiting if service.learner.report else None,
            **{f"traffic_{name}": count for name, count in service.traffic.counts().items()},
        }
        service.row = self._recorder.write(service.replay, self._updates, self._epsilon, more)
        service.events.add(Logged(json.dumps(self._recorder.save().facts)))

    @property
    def _epsilon(self) -> float | None:
        actor = self._config.actor
        return None if actor.ladder else actor.exploration.at(self._service.t, self._config.run.total_steps)

    def _save_in_copy(self) -> None:
        """Ask for the learner's state, then let a copy of this process write the checkpoint.

        Without an answer the checkpoint is written with the newest state that there is. While the journal cannot be
        written, there is none.
        """
        service, now = self._service, time.monotonic()
        if not self._journaling.may_save:
            return
        answer = self._states.for_checkpoint(now)
        self._send(answer.outgoing)
        if not answer.may_proceed or not self._journaling.may_save:
            return
        if not answer.is_new:
            service.notes.add(
                f"The learner has not answered for {timeouts.CHECKPOINT_STATE:.0f} s: "
                f"the checkpoint at t = {service.t:,} has {service.learner.describe_state(now)}."
            )
        self._saving.fork()

    def _reap_copy(self) -> None:
        saved = self._saving.reap()
        if saved and self._notifier:
            self._notifier.saved(saved)

    def _save_last(self) -> None:
        """Write the last row and checkpoint; no message is handled any more."""
        service = self._service
        if self._recorder.is_due(service.replay):
            self._log()
        self._send([])
        self._transmit(self._journaling.close())
        if not service.t or (service.replay.is_over and not service.learner.state.arrays):
            service.notes.add("No checkpoint can be written: there are no transitions, or no weights to evaluate.")
            return
        try:
            path = self._saving.write_last(self._end.is_finished)
        except OSError as error:
            log.error("the last checkpoint could not be written: %s", error)
            raise
        log.info("saved %s", path)
        if self._notifier:
            self._notifier.saved(path)


def _recorder(config: Config, run: RunDirectory, recovered: Recovered, checkpoint: Checkpoint | None) -> Recorder:
    """Return a recorder that continues after the last row that is known to the checkpoint or the journal."""
    recorder = Recorder(config, run, recovered.service.notes.add)
    if recovered.recorder:
        recorder.load(State(json.loads(recovered.recorder), {}))
    elif checkpoint:
        recorder.load(checkpoint.parts["recorder"])
    return recorder


def _memory_limit(config: Config) -> int | None:
    """Return the bytes of memory that this process should not exceed; None if that is unknown."""
    if config.system.memory_limit is not None:
        return config.system.memory_limit * 2**20
    available, resident = available_memory(), resident_memory()
    return None if available is None or resident is None else resident + int(MEMORY_SHARE * available)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def _decoded(received: Received) -> Message:
    """Return the message; raise BadMessage if it is invalid, or a state that could not be saved in a checkpoint."""
    if received.problem:
        raise BadMessage(received.problem)
    message = decode(received.frames)
    if isinstance(message, LearnerState):
        try:
            opened_state(message)
        except (ValueError, RecursionError) as error:
            raise BadMessage(f"not a valid learner state: {error}") from None
    return message


def _published(endpoint: str) -> str:
    """Return the address under which clients reach a head that listens on this endpoint."""
    published = advertised_endpoint(endpoint)
    if is_loopback(published) and not is_loopback(endpoint):
        log.warning(
            "this machine has no address that others can reach: set one with --bind so that they can find this head"
        )
    return published
