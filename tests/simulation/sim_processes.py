"""The processes of a simulated run: real state machines, driven by the events of a simulated world."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dpsr_apex.config import Config, LearnerConfig, ReplayConfig, RunConfig, SystemConfig
from dpsr_apex.protocol.learner_record import updates_in
from dpsr_apex.protocol.replay_service import Outgoing, ReplayService
from dpsr_apex.protocol.restarts import REFUSED
from dpsr_apex.protocol.run_end import Phase, RunEnd
from dpsr_apex.record.journal.learner import write_learner
from dpsr_apex.record.progress import passed
from dpsr_apex.wire.messages import ACTOR, LEARNER, Batch, Join, LearnerState, Message, Weights, WeightsRequest, Welcome
from tests.simulation.disk import Killed
from tests.simulation.hosts import ActorHost, Ended, LearnerHost, ReplayHost, Saved
from tests.simulation.network import SLOWEST, Server, Socket
from tests.simulation.storage import JOURNAL

if TYPE_CHECKING:
    from tests.simulation.world import World

CONFIG = Config(
    replay=ReplayConfig(capacity=40, replace_candidates=4, recycle_candidates=4, recycle_period=12),
    learner=LearnerConfig(batch_size=4, learning_starts=20, steps_per_update=2),
    run=RunConfig(total_steps=180, checkpoint_period=30, learner_state_period=5),
    system=SystemConfig(
        actors=2,
        chunk=4,
        in_flight=12,
        in_flight_ahead=8,
        in_flight_behind=4,
        weights_period=10,
        prefetch=3,
        rate_tolerance=20,
        recycle_deadline=3.0,
        lease=4.0,
    ),
)
DEEP = replace(  # as above, with recycling that continues for a few steps from states that were rarely visited
    CONFIG, replay=replace(CONFIG.replay, recycle_steps=3, recycle_share=0.25, recycle_choice="novel")
)
UNUSABLE, FAILING = 61, 23  # every such identity is one of a transition that cannot be trained on, or re-entered
POLL = 0.25  # seconds between two turns of a process
REQUESTED = 1.0  # seconds after which a learner that has joined must have requested batches
SLOWEST_SYNC = 0.03  # seconds
LATEST_WRITE = 1.0  # seconds after which a state of the learner that has arrived is written
TERMINATED = 128 + 15  # exit code of a process that was asked to stop
RESENT = CONFIG.system.lease / 2 + 1.0  # seconds after which what was lost must have been sent again


class Process:
    """One process, which takes its turn every POLL seconds and whenever a message comes."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        self.started_at = world.events.now
        self.exit_code = 0  # once it has nothing left to do
        self.paused_until = 0.0
        self.seconds_paused = 0.0  # in all
        self.unreachable_until = 0.0  # because its links are cut
        self._waiting: list[Callable[[], None]] = []  # what came while it was suspended

    @property
    def now(self) -> float:
        return self.world.events.now

    def take_turns(self) -> None:
        if not self.is_alive:
            return
        if self.now >= self.paused_until:
            self.attend(self.turn)
        self.world.events.after(POLL * self.world.rng.uniform(0.8, 1.2), self.take_turns)

    def attend(self, work: Callable[[], None]) -> None:
        """Do something now, or when the process is not suspended any more."""
        if not self.is_alive:
            return
        if self.now < self.paused_until:
            self._waiting.append(work)
            return
        waiting, self._waiting = self._waiting, []
        for each in [*waiting, work]:
            self._do(each)

    def _do(self, work: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        try:
            work()
        except Ended as end:
            self.world.end(self.name, REFUSED, str(end))
        except Killed:
            self.world.end(self.name, -9, "killed in a disk operation", is_whole=False)

    def pause(self, seconds: float) -> None:
        """Suspend it for this time."""
        self.paused_until = max(self.paused_until, self.now + seconds)
        self.seconds_paused += seconds

    def is_or_was_paused_since(self, time: float) -> bool:
        return self.paused_until > time

    def terminate(self) -> None:
        """Ask it to stop, as SIGTERM does."""

        def stop() -> None:
            self.exit_code = TERMINATED
            self.stop()

        self.attend(stop)

    def stop(self) -> None:
        raise NotImplementedError

    def turn(self) -> None:
        raise NotImplementedError

    def cut(self, seconds: float) -> None:
        raise NotImplementedError

    def close(self, lingers: bool) -> None:
        raise NotImplementedError


class ClientProcess(Process):
    """A process with a socket to the replay, and the port of its host."""

    key: tuple[str, int]  # name and incarnation
    role: str  # of its key

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.joined_at = 0.0
        self.has_left = False
        self._known_head = world.head
        self._replay = self._connect()
        self._learner: Socket | None = None

    def _connect(self) -> Socket:
        return self.world.network.connect(
            self._known_head[0], self.name, self.role, lambda message: self.attend(lambda: self.receive(message))
        )

    def receive(self, message: Message) -> None:
        """Take a message of the replay."""
        if isinstance(message, Welcome):
            self.joined_at = self.now

    def is_settled(self, key: tuple[str, int], seconds: float) -> ReplayService | None:
        """The replay of which this process has been a member for so long without any fault; None otherwise."""
        if self.replay_process is None or max(self.world.disturbed_until, self.joined_at) > self.now - seconds:
            return None
        service, commit = self.replay_process.host.service, self.replay_process.host.commit
        if commit and commit.is_waiting:
            return None
        return service if service.sessions.of(key) and not service.ending and not self._replay.in_flight else None

    @property
    def replay_process(self) -> ReplayProcess | None:
        process = self.world.processes.get("replay")
        assert process is None or isinstance(process, ReplayProcess)
        return process

    def receive_weights(self, message: Message) -> None:
        raise NotImplementedError

    def cut(self, seconds: float) -> None:
        for socket in (self._replay, self._learner):
            if socket is not None:
                socket.cut(seconds)

    def close(self, lingers: bool) -> None:
        """What was sent has a moment to get away, if the process ends in order."""
        for socket in (self._replay, self._learner):
            if socket is not None:
                self.world.events.after(2 * SLOWEST if lingers else 0.0, socket.close)

    # The port.

    def send(self, message: Message, /) -> bool:
        return self._replay.send(message)

    def look_up(self) -> bool:
        has_moved = self._known_head != self.world.head
        self._known_head = self.world.head
        return has_moved

    def reconnect(self) -> None:
        self.world.note(f"{self.name} connects again")
        self._replay.close()
        self._replay = self._connect()

    def connect_to_learner(self, endpoint: str, /) -> None:
        if self._learner is not None:
            self._learner.close()
            self._learner = None
        if endpoint:
            self._learner = self.world.network.connect(
                endpoint, self.name, self.role, lambda message: self.attend(lambda: self.receive_weights(message))
            )

    def request_weights(self, request: WeightsRequest, /) -> bool:
        return self._learner is not None and self._learner.send(request)

    def send_weights(self, address: bytes, weights: Weights, /) -> None:
        raise NotImplementedError


class ActorProcess(ClientProcess):
    """An actor with its environment."""

    role = ACTOR

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        super().__init__(world, name)
        self.key = (name, incarnation)
        self.host = ActorHost(name, incarnation, incarnation, world.config, self, self.now, FAILING)
        world.accounts.actors.append(self.host)
        self._oldest, self._progress_at = 0, world.events.now

    def turn(self) -> None:
        self._check_acknowledgements()
        for _ in range(self.world.steps_per_turn()):
            self.host.step()
        self.host.recycle(self.now)
        self.host.tick(self.now)
        if self.host.client.is_over(self.now):
            self.host.leave(self.now)
            self.world.end(self.name, self.exit_code, "asked to stop" if self.exit_code else "told to leave")

    def stop(self) -> None:
        self.host.execute(self.host.client.stop(self.now), self.now)

    def receive(self, message: Message) -> None:
        super().receive(message)
        self.host.receive(message, self.now)

    def receive_weights(self, message: Message) -> None:
        assert isinstance(message, Weights)
        self.host.receive_weights(message, self.now)

    def _check_acknowledgements(self) -> None:
        """What was lost on its way is sent again: an actor does not wait for chunks that the replay does not have."""
        outbox = self.host.client.outbox
        if outbox.oldest != self._oldest:
            self._oldest, self._progress_at = outbox.oldest, self.now
        service = self.is_settled(self.host.key, RESENT)
        if service is not None and not service.flow.inbox and self.now - self._progress_at > RESENT:
            assert not outbox.unacknowledged, f"{self.name} waits for chunks that it does not send"


class LearnerProcess(ClientProcess):
    """A learner with its agent."""

    role = LEARNER

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        super().__init__(world, name)
        self.key = (name, incarnation)
        self.host = world.learner = LearnerHost(name, incarnation, CONFIG.system, self, self.now, UNUSABLE)
        self._server = world.network.listen(f"{name} {incarnation}", self._receive_request)

    def turn(self) -> None:
        self._check_requests()
        for _ in range(self.world.rng.randrange(4)):
            self.host.train(self.now)
        self.host.tick(self.now)
        if self.host.client.membership.goodbye is not None:
            self.host.leave(self.now)
            self.world.end(self.name, self.exit_code, "asked to stop" if self.exit_code else "told to leave")

    def stop(self) -> None:
        self.host.stop(self.now)
        self.world.end(self.name, self.exit_code, "asked to stop")

    def receive(self, message: Message) -> None:
        super().receive(message)
        self.host.receive(message, self.now)

    def _receive_request(self, sender: bytes, message: Message) -> None:
        assert isinstance(message, WeightsRequest)
        self.attend(lambda: self.host.receive_request(sender, message, self.now))

    def send_weights(self, address: bytes, weights: Weights, /) -> None:
        self._server.send(address, weights)

    def close(self, lingers: bool) -> None:
        self._server.close()
        super().close(lingers)

    def _check_requests(self) -> None:
        """A learner that has joined asks for batches soon; only those that were lost it asks for later."""
        has_joined_since = self.joined_at > self.world.disturbed_until
        service = self.is_settled(self.host.key, REQUESTED if has_joined_since else RESENT)
        if service is not None and self.host.updates is not None:
            assert service.flow.credits or self.host.ready, "a learner that has joined requests no batches"


class ReplayProcess(Process):
    """The replay with its checkpoints; it may listen somewhere else than the one before it."""

    def __init__(self, world: World, era: int) -> None:
        super().__init__(world, "replay")
        self.host = ReplayHost(world.config, era, world.saved, world.storage)
        world.promise.recovered(self.host)
        endpoint = f"replay {world.rng.randrange(2)}"
        self.server: Server = world.network.listen(endpoint, self._receive)
        world.head = (endpoint, era)
        self._t = self.host.service.t
        assert self._t >= (world.saved.t if world.saved else 0), "an earlier clock than that of the checkpoint"
        saved = max(updates_in(world.saved.learner) if world.saved else 0, world.updates_written)
        assert self.host.service.learner.updates >= saved, "an earlier state of the learner than was saved"
        self._trained_by = self.host.service.learner.trained_by
        self._saved_at = world.saved.t if world.saved else 0
        self._is_saving = self._is_syncing = False
        self._committed_at = self.now  # when the commit was ticked
        self._end = RunEnd(self.host.service, self.host.states)
        self._is_asked_to_stop = False
        self._last: Saved | None = None  # the last checkpoint, which is being written
        self._check()

    def turn(self) -> None:
        if self._last is not None:
            self._saved(self._last)
            if self.has_saved:
                self.world.end("replay", 0, "the run is finished" if self._end.is_finished else "the run was stopped")
            return
        self._tick_commit()
        outgoing = self.host.service.tick(self.now)
        self._send([*outgoing, *self._end.tick(self._is_asked_to_stop, self.now)])
        if self._end.may_save(self.now) and not self._is_saving:
            self._write_last()
        elif self._end.phase is Phase.SERVING:
            self._save_when_due()

    def stop(self) -> None:
        self._is_asked_to_stop = True

    @property
    def has_saved(self) -> bool:
        """Whether the last checkpoint is complete."""
        return self._last is not None and self.world.saved is self._last

    def cut(self, seconds: float) -> None:
        for socket in list(self.world.network.sockets.values()):
            if socket.server is self.server:
                socket.cut(seconds)

    def close(self, lingers: bool) -> None:  # noqa: ARG002 -- it has waited for its members
        self._check()
        self.server.close()

    def _receive(self, sender: bytes, message: Message) -> None:
        role = self.world.network.sockets[sender].role
        self.attend(lambda: self._handle(sender, message, role))

    def _handle(self, sender: bytes, message: Message, role: str) -> None:
        service = self.host.service
        if self._last is not None:
            return
        before = service.rate.batches
        outgoing = service.handle(sender, message, self.now, role)
        self._check_updates(message, outgoing, before)
        if isinstance(message, LearnerState) and self.host.commit:
            self.world.events.after(self.world.rng.uniform(0.01, LATEST_WRITE), lambda: self._do(self._write_learner))
        if service.config is not self.world.config:
            self.world.set_config(service.config)
        self._send(outgoing)

    def _send(self, outgoing: list[Outgoing]) -> None:
        self._transmit(self.host.commit.commit(outgoing) if self.host.commit else outgoing)
        self._sync_later()
        assert self.host.service.t >= self._t, "the clock went back"
        self._t = self.host.service.t

    def _transmit(self, outgoing: list[Outgoing]) -> None:
        for address, message in outgoing:
            self.world.promise.sent(message)
            self.server.send(address, message)

    # The journal, as in the real process.

    def _tick_commit(self) -> None:
        if self.host.commit and self.now - self._committed_at >= 1.0:
            self._committed_at = self.now
            self._transmit(self.host.commit.tick())

    def _sync_later(self) -> None:
        """Let another thread sync the journal, which takes a while."""
        commit = self.host.commit
        if commit and commit.journal.promised < commit.journal.next and not self._is_syncing:
            self._is_syncing = True
            self.world.events.after(self.world.rng.uniform(0.001, SLOWEST_SYNC), lambda: self.attend(self._sync))

    def _close_journal(self) -> None:
        self._send([])
        if self.host.commit:
            self._transmit(self.host.commit.close())

    def _write_learner(self) -> None:
        if self._last is not None:
            return  # the last checkpoint has it
        try:
            write_learner(self.world.disk, JOURNAL, self.host.service.learner.state)
        except OSError as error:
            self.world.note(f"the learner's state cannot be written: {error}")
        else:
            self.world.updates_written = self.host.service.learner.updates

    def _sync(self) -> None:
        assert self.host.commit is not None
        self._is_syncing = False
        if self._last is not None:
            return
        try:
            self.host.commit.journal.sync()
        except OSError as error:
            self.world.end("replay", 1, f"the journal cannot be synced: {error}", is_whole=False)
            return
        self._transmit(self.host.commit.released())
        self._sync_later()

    # Checkpoints, as in the real process.

    def _write_last(self) -> None:
        """Write the last checkpoint, and handle nothing else meanwhile."""
        if self._end.is_finished:
            self._check_end()
        if not self.host.service.t:
            self.world.end("replay", 0, "there is nothing to save")
            return
        if not self.world.trouble.may_write_last():
            self.world.end("replay", 1, "the last checkpoint cannot be written")
            return
        try:
            self._close_journal()
        except OSError as error:
            self.world.end("replay", 1, f"the journal cannot be closed: {error}", is_whole=False)
            return
        self._last = self.host.save(self._end.is_finished)
        self.paused_until = max(self.paused_until, self.now + self.world.rng.uniform(0.1, 1.0))

    def _save_when_due(self) -> None:
        t = self.host.service.t
        run = self.world.config.run
        is_due = passed(run.checkpoint_period, self._saved_at, t) and t < run.total_steps
        if self._is_saving or not is_due or (self.host.commit and not self.host.commit.may_save):
            return
        may_save, outgoing, _ = self.host.states.for_checkpoint(self.now)
        self._send(outgoing)
        if may_save:
            self._is_saving = True
            self._saved_at = t
            saved = self.host.save()
            self.world.events.after(self.world.rng.uniform(0.1, 1.0), lambda: self._do(lambda: self._saved(saved)))
            self._check()

    def _saved(self, saved: Saved) -> None:
        """Complete a checkpoint, and remove what it covers of the journal; called only while the process runs."""
        self._is_saving = False
        try:
            self.world.storage.write(saved)
        except OSError as error:
            self.world.note(f"no checkpoint at t = {saved.t}: {error}")
            if saved is self._last:
                self.world.end("replay", 1, "the last checkpoint cannot be written")
            return
        self.world.saved = saved
        self.world.note(f"checkpoint at t = {saved.t}")
        self.world.count("checkpoint")
        if self.host.commit:
            covered = min(checkpoint.next for checkpoint in self.world.storage.checkpoints())
            self.host.commit.journal.remove_before(covered)

    # What is checked.

    def _check(self) -> None:
        self.world.accounts.check(self.host)

    def _check_updates(self, message: Message, outgoing: list[Outgoing], before: int) -> None:
        """Every batch counts as an update, and what a new learner has not made is owed again."""
        service = self.host.service
        batches = sum(isinstance(out.message, Batch) for out in outgoing)
        has_joined = isinstance(message, Join) and outgoing != [] and isinstance(outgoing[0].message, Welcome)
        if isinstance(message, Join) and has_joined and message.role == "learner":
            if message.incarnation != self._trained_by:
                before = json.loads(service.learner.state.facts)["updates"] if service.learner.state.facts else 0
            self._trained_by = message.incarnation
        assert service.rate.batches == before + batches, "updates that are owed were forgotten"
        assert not batches or service.rate.batches <= service.rate.batches_due(service.t), "a batch too many"

    def _check_end(self) -> None:
        service = self.host.service
        self._check()
        assert service.t == self.world.config.run.total_steps
        is_free = service.rate.steps_per_update == 0
        assert is_free or service.rate.batches >= service.rate.batches_due(service.t), "updates are owed"
        made = self.world.learner.updates_to_come if self.world.learner else None
        may_have_more = is_free or self.world.may_reorder  # batches after the request for the last state
        assert made is None or made <= service.learner.updates or may_have_more, "the last updates are not saved"
        assert not self.host.replay.rounds
        assert len(service.flow.inbox) == 0 or service.held
