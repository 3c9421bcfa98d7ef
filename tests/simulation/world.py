"""A whole run from a seed: supervisor, replay, actors, learner and evaluator, on a network and a cluster that fail.

Everything is decided by one random generator and a simulated clock, so a seed is a history: `run(seed)` repeats it, and
`python -m tests.simulation SEED` prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from itertools import count
from random import Random
from typing import Any

import numpy as np

from dpsr_apex import timeouts
from dpsr_apex.config import Config
from dpsr_apex.protocol.restarts import Exit
from dpsr_apex.protocol.supervision import Phase
from dpsr_apex.wire.messages import Message, SetActors, Stats, StatsRequest
from tests.simulation.accounts import Accounts
from tests.simulation.checks import FOLLOWED, Checks
from tests.simulation.evaluator import EvaluatorProcess
from tests.simulation.hosts import Saved
from tests.simulation.network import Events, Faults, Network
from tests.simulation.sim_processes import (
    CONFIG,
    DEEP,
    TERMINATED,
    ActorProcess,
    LearnerProcess,
    Process,
    ReplayProcess,
)
from tests.simulation.sim_supervisor import SLOTS, SimSupervisor

TROUBLE = 30.0  # seconds in which faults happen
PATIENCE = 200.0  # seconds after that in which the run must finish
FAULT_PAUSES = (2.0, 4.0)  # seconds between two faults, on average
LINES_SHOWN = 120  # of a history that failed
PAUSES = (1.0, 3.5, 6.0, 12.0)  # seconds; a process that is stopped meanwhile is killed after the longest
FAULTS = ("crash", "cut", "cut", "cut", "pause", "loss", "scale")
MOST_ACTORS = 4
CRASHES = {"replay": 2, "learner": 1, "evaluator": 1, "actor": 2}
"""How often a process may crash until it is stable: its restart is refused if the replay is not told of the crash."""
LONG = 50  # every 50th history is long enough for processes to become stable, and crash again
CRASH_PAUSE = timeouts.STABLE_AFTER + 15.0  # seconds between two crashes of the learner in a long history


class HistoryFailed(AssertionError):
    """A check failed, at the end of this history."""

    def __init__(self, seed: int, history: list[str], cause: str) -> None:
        shown = "\n".join(history[-LINES_SHOWN:])
        super().__init__(f"seed {seed}: {cause}\nThe last events (all: python -m tests.simulation {seed}):\n{shown}")


def run(seed: int, start_seconds: float | None = None) -> World:
    """The history of a seed, from its start until its supervision is over; HistoryFailed if a check fails."""
    world = World(seed, start_seconds)
    try:
        world.play()
    except AssertionError as error:
        raise HistoryFailed(seed, world.tell(), str(error).partition("\n")[0] or "a check failed") from error
    return world


class World:
    """Everything that exists in one run, and what is checked about it."""

    def __init__(self, seed: int, start_seconds: float | None = None) -> None:
        """Processes take `start_seconds` to start; None: a short random time."""
        self.rng = Random(seed)
        self.events = Events()
        self._history: list[tuple[float, str, Message | None]] = []
        self.network = Network(self.events, self.rng, self.note, self._message_fault)
        self.config = DEEP if seed % 4 == 3 else CONFIG  # as the replay has written it
        self.accounts = Accounts(CONFIG.run.total_steps)
        self.saved: Saved | None = None  # the newest checkpoint
        self.has_saved_at_end = False  # whether the replay has ended in order, with its last checkpoint
        self.is_evaluated = False
        self.head = ("nowhere", -1)  # endpoint and era of the replay, as it has published them
        self.processes: dict[str, Process] = {}
        self.disturbed_until = 0.0  # when the last fault was over
        self.disturbances = 0
        self.counts: dict[str, int] = {}  # of what has happened
        self.start_seconds = start_seconds or 0.5
        self.is_long = seed % LONG == 7
        self.supervisor = SimSupervisor(self, start_seconds)
        self.checks = Checks(self)
        self._trouble = 3.5 * CRASH_PAUSE if self.is_long else TROUBLE
        self._fault_pause = CRASH_PAUSE if self.is_long else self.rng.choice(FAULT_PAUSES)
        self._crashes: dict[str, list[float]] = {}  # when each process crashed
        self._is_disk_full = self.rng.random() < 0.15  # when the last checkpoint is written, for the first time
        self._eras, self._incarnations = count(), count()

    def play(self) -> None:
        """Run until the supervision is over."""
        self.network.faults = self.rng.choice(
            [Faults(), Faults(lost=0.01), Faults(repeated=0.02, reordered=0.05), Faults(0.02, 0.02, 0.02)]
        )
        self.supervisor.turn()
        self._plan_faults()
        while self.supervisor.phase is not Phase.OVER:
            assert self.events.now < self._trouble + PATIENCE, "the run does not finish"
            self.events.run_next()

    @property
    def planned_actors(self) -> int:
        return self.config.system.actors or 1

    @property
    def is_trained(self) -> bool:
        """Whether the checkpoint of the last step exists."""
        return self.saved is not None and self.saved.t == CONFIG.run.total_steps

    @property
    def was_stopped(self) -> bool:
        """Whether the user has stopped the run."""
        return self.supervisor.is_interrupted

    @property
    def is_short_of_slots(self) -> bool:
        return self.supervisor.cluster.slots < SLOTS

    def set_config(self, config: Config) -> None:
        """Take note that the replay has written another config."""
        self.config = config
        self.checks.plan_changed()

    def may_write_last(self) -> bool:
        """Whether the last checkpoint can be written; only once it cannot."""
        is_full = self._is_disk_full and not self.was_stopped and not self._crashes.get("replay")
        self._is_disk_full = False
        return not is_full

    def steps_per_turn(self) -> int:
        """How often an actor steps its environment in its turn."""
        return int(self.rng.random() < 0.08) if self.is_long else self.rng.randrange(4)

    def note(self, text: str, message: Message | None = None) -> None:
        self._history.append((self.events.now, text, message))

    def tell(self) -> list[str]:
        """The history so far, one line for each event and each message."""
        return [
            f"{now:8.3f} {text}{'' if message is None else _brief(message)}" for now, text, message in self._history
        ]

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # Processes.

    def start(self, name: str) -> None:
        assert name not in self.processes, f"{name} runs already"
        incarnation = next(self._incarnations)
        self.note(f"{name} starts ({incarnation})")
        self.disturbed()
        self.checks.changed(timeouts.REPLAY_SILENCE if name == "replay" else 0.0)  # until it is found again
        process: Process
        if name == "replay":
            process = ReplayProcess(self, next(self._eras))
        elif name == "learner":
            process = LearnerProcess(self, name, incarnation)
        elif name == "evaluator":
            process = EvaluatorProcess(self, name, incarnation)
        else:
            process = ActorProcess(self, name, incarnation)
        self.processes[name] = process
        process.take_turns()

    def end(self, name: str, code: int, why: str, is_lost: bool = False) -> None:
        """A process ends, which its supervisor notices at its next turn."""
        process = self.processes.pop(name)
        process.is_alive = False
        process.close(lingers=code in (0, TERMINATED))
        self.note(f"{name} ends with {code}: {why}")
        self.count(f"{role_of(name)} ended with {code}")
        if isinstance(process, ReplayProcess):
            self.has_saved_at_end = code == 0 and process.has_saved
            if not self.has_saved_at_end:
                self.accounts.rolled_back(process.host, self.saved)
        exit = Exit(code, why, self.events.now - process.started_at, is_lost)
        self.supervisor.ended(name, exit)
        self.checks.ended(process, name, exit)

    # Faults.

    def _plan_faults(self) -> None:
        self.events.after(self.rng.expovariate(1 / self._fault_pause), self._disturb)
        self.events.at(self._trouble, self._calm_down)
        if self.is_long:
            for crash in range(1, 4):
                self.events.at(crash * CRASH_PAUSE, lambda: self._disturb_process("learner", "crash"))
        elif self.rng.random() < 0.3:
            self.events.at(self.rng.uniform(1.0, TROUBLE), self._interrupt)

    def _interrupt(self) -> None:
        self.note("the user stops the run")
        self.count("stop")
        self.supervisor.is_interrupted = True

    def _disturb(self) -> None:
        if self.events.now > self._trouble:
            return
        faults = ("pause",) if self.is_long else FAULTS
        fault = self.rng.choice(faults)
        pause = self.rng.expovariate(1 / self._fault_pause)
        if fault == "scale":
            self._scale()
            pause += self.rng.choice([0.0, FOLLOWED + 1.0])  # to see whether the new number of actors runs
        else:
            names = ["replay", "evaluator", "supervisor", *self._actors, *self._actors, *["learner"] * 4]
            self._disturb_process(self.rng.choice(names), fault)
        self.events.after(pause, self._disturb)

    @property
    def _actors(self) -> list[str]:
        return [name for name in self.processes if role_of(name) == "actor"]

    def _disturb_process(self, name: str, fault: str) -> None:
        process, is_stopping = self.processes.get(name), self.supervisor.stopping_since is not None
        if self.supervisor.phase is Phase.STARTING:
            return  # a replay that does not start ends the run
        if name == "supervisor" and self.supervisor.socket is not None:
            self.checks.changed(self._cut(name, self.supervisor.socket.cut))
        elif process is None or (is_stopping and fault == "pause"):
            return
        elif fault == "crash":
            self._crash(name)
        elif fault == "cut":
            seconds = self._cut(name, process.cut)
            if name == "replay":
                self.checks.changed(seconds)
        elif fault == "loss":
            self._lose_node(name)
        else:
            seconds = self.rng.choice([1.0, 3.5, 6.0] if name == "replay" else PAUSES)
            self._afflicted("pause", f"{name} is suspended for {seconds:.1f} s", seconds)
            self.checks.changed(seconds)
            process.pause(seconds)

    def _afflicted(self, fault: str, text: str, seconds: float = 0.0) -> None:
        self.count(fault)
        self.note(text)
        self.disturbed(seconds)

    def _crash(self, name: str) -> None:
        """Let a process crash, unless it has crashed so often that it would be given up."""
        times = [time for time in self._crashes.get(name, []) if time > self.events.now - CRASH_PAUSE]
        if len(times) < CRASHES[role_of(name)]:
            self._crashes[name] = [*times, self.events.now]
            self._afflicted("crash", f"{name} crashes")
            self.end(name, 1, "a crash")

    def _cut(self, name: str, cut: Callable[[float], None]) -> float:
        """Cut the links of a process; return for how long."""
        seconds = self.rng.choice([0.0, 0.3, 3.0, 7.0])
        self._afflicted("cut", f"the links of {name} are cut for {seconds:.1f} s", seconds)
        cut(seconds)
        return seconds

    def _lose_node(self, name: str) -> None:
        """Lose a node with one or two processes; another one takes its place later."""
        others = [other for other in self.processes if other != name]
        lost = [name, *self.rng.sample(others, min(len(others), self.rng.randrange(2)))]
        if self.supervisor.phase is not Phase.RUNNING or self.is_short_of_slots:
            return
        slots, seconds = self.supervisor.cluster.lose(lost), self.rng.choice([1.0, 8.0, 12.0])
        self._afflicted("node lost", f"the node of {' and '.join(lost)} is lost for {seconds:.1f} s", seconds)
        for each in lost:
            self.end(each, -9, "its node was lost", is_lost=True)
        self.events.after(seconds, lambda: self._add_slots(slots))

    def _add_slots(self, slots: int) -> None:
        self.supervisor.cluster.slots += slots
        self.checks.changed(2 * timeouts.PLACEMENT_WAIT + self.start_seconds)  # of those that were preempted

    def _scale(self) -> None:
        """A user changes the number of actors, and asks again until there is an answer."""
        self.count("scale")
        answers: list[Message] = []
        socket = self.network.connect(self.head[0], "user", answers.append)
        question, deadline = SetActors(self.rng.randint(1, MOST_ACTORS)), self.events.now + timeouts.CONTROL_ANSWER

        def ask() -> None:
            if answers or self.events.now > deadline:
                socket.close()
                return
            socket.send(question)
            self.events.after(timeouts.QUESTION_REPEAT, ask)

        ask()

    def disturbed(self, seconds: float = 0.0) -> None:
        """Something went wrong, for this time."""
        self.disturbed_until = max(self.disturbed_until, self.events.now + seconds)
        self.disturbances += 1

    def _calm_down(self) -> None:
        self.network.faults = Faults()
        self.disturbed()
        self.note("nothing goes wrong any more")

    def _message_fault(self, text: str, message: Message, seconds: float) -> None:
        self.disturbed(seconds)
        if isinstance(message, Stats | StatsRequest):
            self.checks.delayed(seconds)
        self.count(f"message {text.partition(':')[0]}")
        self.note(text, message)


def role_of(name: str) -> str:
    return name.partition("-")[0]


def _brief(message: Message) -> str:
    fields = [f"{name}={_short(value)}" for name, value in zip(message._fields, message, strict=True)]
    return f"{type(message).__name__}({', '.join(fields)})"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"[{value.size}]"
    if isinstance(value, str | bytes | int | float | None):
        return repr(value)[:40]
    return f"<{len(value)}>" if isinstance(value, Sized) else "..."
