"""A simulated supervisor: the real `Supervision`, with simulated processes, resources, clock and network."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from dpsr_apex import timeouts
from dpsr_apex.protocol.instructions import (
    FindResources,
    Instruction,
    Kill,
    Release,
    Report,
    Resources,
    Start,
    Tell,
    Terminate,
)
from dpsr_apex.protocol.restarts import Exit
from dpsr_apex.protocol.supervision import Phase, Supervision, head_status
from dpsr_apex.wire.messages import OWNER, Gone, Message, Stats, StatsRequest
from tests.simulation.network import Socket

if TYPE_CHECKING:
    from tests.simulation.world import World

SLOTS = 9  # more than all processes of a run need
GONE_LOST = 0.3  # share of all reports of a crash that do not reach the replay


class Cluster:
    """Slots for processes; a slot stays reserved for the next start of its process until it is released."""

    def __init__(self) -> None:
        self.slots = SLOTS
        self.held: set[str] = set()  # names of processes that have a slot
        self.waiting: list[str] = []  # names of processes that wait for one

    @property
    def is_full(self) -> bool:
        return len(self.held) >= self.slots

    def claim(self, name: str) -> bool:
        """Reserve a slot for this process; return False if there is none."""
        if name not in self.held and self.is_full:
            return False
        self.held.add(name)
        return True

    def lose(self, names: list[str]) -> int:
        """Lose the slots of these processes, and all that are free; return their number."""
        self.held -= set(names)
        lost = self.slots - len(self.held)
        self.slots -= lost
        return lost


class SimSupervisor:
    """Executes what the supervision of a run decides, as `dpsr_apex.supervise.supervisor` does."""

    def __init__(self, world: World, start_seconds: float | None) -> None:
        """Processes take `start_seconds` to start; None: a short random time."""
        self.cluster = Cluster()
        lease = world.config.system.lease
        self.supervision = Supervision(world.planned_actors, PurePath("logs"), lease, world.events.now)
        self.stopping_since: float | None = None
        self.finishing_since: float | None = None
        self.started: set[str] = set()  # names of processes whose exit was not reported yet
        self.exits: list[tuple[str, Exit]] = []  # that were not reported yet
        self.is_interrupted = False
        self.is_dead = False  # it was killed, and another one will continue the run
        self.suspended_until = 0.0
        self.socket: Socket | None = None  # to the head
        self._world = world
        self._start_seconds = start_seconds
        self._starting: dict[str, int] = {}  # by name: number of a start that is not complete
        self._starts = 0
        self._answer: Stats | None = None
        self._known_head = world.head
        self._answered_at = self._looked_at = world.events.now

    @property
    def phase(self) -> Phase:
        return self.supervision.phase

    @property
    def is_idle(self) -> bool:
        """Whether no process is starting or waiting for resources, and no exit is unreported."""
        return not (self._starting or self.cluster.waiting or self.exits)

    def turn(self) -> None:
        """Take one turn of the supervisor's loop, and schedule the next."""
        if self.is_dead:
            return
        world = self._world
        if world.events.now < self.suspended_until:
            world.events.at(self.suspended_until, self.turn)
            return
        self._report_exits()
        if self.is_interrupted:
            self._execute(self.supervision.stop(world.events.now))
        self._execute(self.supervision.tick(world.events.now))
        self._place_waiting()
        match self.phase:
            case Phase.STARTING:
                self._find_head()
            case Phase.RUNNING:
                self._poll_head()
            case Phase.FINISHING:
                self.finishing_since = self.finishing_since or world.events.now
                self._execute(self.supervision.recorded(world.is_trained, world.is_evaluated, world.events.now))
        if self.phase in (Phase.STOPPING, Phase.OVER):
            self.stopping_since = self.stopping_since or world.events.now
        world.checks.supervised()
        if self.phase is not Phase.OVER:
            pauses = {Phase.STARTING: timeouts.START_POLL, Phase.STOPPING: timeouts.EXIT_POLL}
            world.events.after(pauses.get(self.phase, timeouts.SUPERVISOR_POLL), self.turn)

    def die(self) -> None:
        """End at once; what it was about to start does not start."""
        self.is_dead = True
        self._starting.clear()
        if self.socket is not None:
            self.socket.close()

    def ended(self, name: str, exit: Exit) -> None:
        """Take note of the end of a process, which is reported at the next turn."""
        self.exits.append((name, exit))

    # Events for the supervision.

    def _report_exits(self) -> None:
        exits, self.exits = self.exits, []
        for name in self.started - {name for name, _ in exits}:
            self.supervision.placed(name, name not in self.cluster.waiting)
        for name, exit in exits:
            self.started.remove(name)
            self._execute(self.supervision.exited(name, exit, self._world.events.now))

    def _find_head(self) -> None:
        if self._world.head[1] >= 0:
            self._connect()
            self._execute(self.supervision.head_found(self._world.events.now))

    def _poll_head(self) -> None:
        """Report the newest answer, follow a head that has moved, and ask again."""
        now = self._world.events.now
        if (answer := self._answer) is not None:
            self._answer = None
            self._execute(self.supervision.status(head_status(answer, ""), now))
        if now - max(self._answered_at, self._looked_at) > timeouts.REPLAY_SILENCE:
            self._looked_at = now
            if self._known_head != self._world.head:
                self._connect()
        assert self.socket is not None
        self.socket.send(StatsRequest())

    def _connect(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self._world.disturbed()  # what was on its way is lost, a report of a crash for example
        self._known_head = self._world.head
        self.socket = self._world.network.connect(self._known_head[0], "supervisor", OWNER, self._receive)

    def _receive(self, message: Message) -> None:
        if isinstance(message, Stats):
            self._answer, self._answered_at = message, self._world.events.now

    # Instructions of the supervision.

    def _execute(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Start(name):
                    self._start(name)
                case Terminate(name):
                    self._end(name, -15)
                case Kill(name):
                    self._end(name, -9)
                    self.cluster.held.discard(name)
                case Release(name):
                    assert name not in self.started, f"{name} runs without resources"
                    self.cluster.held.discard(name)
                case Tell(message):
                    self._tell(message)
                case Report(text):
                    self._world.note(f"supervisor: {text.partition(chr(10))[0]}")
                case FindResources(roles, actors):
                    self._find_resources(roles, actors)

    def _start(self, name: str) -> None:
        assert name not in self.started, f"{name} is started twice"
        assert self.phase not in (Phase.STOPPING, Phase.OVER), f"{name} is started in a run that ends"
        self.started.add(name)
        if self.cluster.claim(name):
            self._launch(name)
        else:
            self._world.note(f"{name} waits for resources")
            self.cluster.waiting.append(name)

    def _place_waiting(self) -> None:
        for name in list(self.cluster.waiting):
            if self.cluster.claim(name):
                self.cluster.waiting.remove(name)
                self._launch(name)

    def _launch(self, name: str) -> None:
        """Start a process that has its resources; it takes a while before it does anything."""
        self._starts += 1
        self._starting[name] = number = self._starts
        seconds = self._world.rng.uniform(0.0, 0.5) if self._start_seconds is None else self._start_seconds

        def start() -> None:
            if self._starting.get(name) == number:
                del self._starting[name]
                self._world.start(name)

        self._world.events.after(seconds, start)

    def _end(self, name: str, signal: int) -> None:
        """Send a signal; a process that is starting or waiting ends at once."""
        assert name in self.started, f"{name} does not run"
        if name in self._starting or name in self.cluster.waiting:
            self._starting.pop(name, None)
            self.cluster.waiting = [waiting for waiting in self.cluster.waiting if waiting != name]
            self.ended(name, Exit(signal, "was not started", 0.0))
        elif (process := self._world.processes.get(name)) is None:
            return  # it has ended meanwhile
        elif signal == -9:
            self._world.count("kill")
            self._world.end(name, signal, "killed by its supervisor")
        else:
            if self.supervision._processes[name].is_frozen:
                self._world.checks.restarted_as_frozen(process)
            self._world.note(f"{name} is asked to stop")
            process.terminate()

    def _tell(self, message: Gone) -> None:
        assert self.socket is not None
        if self._world.rng.random() < GONE_LOST:
            self._world.note(f"the replay is not told that {message.name} is gone")
            self._world.disturbed()
        else:
            self.socket.send(message)

    def _find_resources(self, roles: frozenset[str], actors: tuple[str, ...]) -> None:
        lacking = roles if self.cluster.is_full else frozenset[str]()
        found = Resources(lacking, dict.fromkeys(lacking, actors[-1:]), f"{self.cluster.slots} slots")
        self._execute(self.supervision.resources(found, self._world.events.now))
