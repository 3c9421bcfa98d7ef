"""A whole run from a seed: supervisor, replay, actors, learner and evaluator, on a network and a cluster that fail.

Everything is decided by one random generator and a simulated clock, so a seed is a history: `run(seed)` repeats it, and
`python -m tests.simulation SEED` prints it.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import numpy as np

from dpsr_apex import timeouts
from dpsr_apex.config import Config
from dpsr_apex.protocol.restarts import Exit
from dpsr_apex.protocol.supervision import Phase
from dpsr_apex.wire.messages import Message, Stats, StatsRequest
from tests.simulation.accounts import Accounts
from tests.simulation.checks import Checks
from tests.simulation.disk import Killed, SimDisk
from tests.simulation.evaluator import EvaluatorProcess
from tests.simulation.hosts import LearnerHost, Saved
from tests.simulation.network import Events, Network
from tests.simulation.promise import Promise
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
from tests.simulation.storage import Storage
from tests.simulation.trouble import Odds, Trouble, random_odds, role_of

PATIENCE = 200.0  # seconds after that in which the run must finish
LINES_SHOWN = 120  # of a history that failed
LONG, SPECIAL = 50, 3  # every 50th history is long, and every third has odds of its own


class HistoryFailed(AssertionError):
    """A check failed, at the end of this history."""

    def __init__(self, seed: int, history: list[str], cause: str) -> None:
        shown = "\n".join(history[-LINES_SHOWN:])
        super().__init__(f"seed {seed}: {cause}\nThe last events (all: python -m tests.simulation {seed}):\n{shown}")


def run(seed: int, start_seconds: float | None = None, odds: Odds | None = None) -> World:
    """The history of a seed, from its start until its supervision is over; HistoryFailed if a check fails."""
    world = World(seed, start_seconds, odds)
    try:
        world.play()
    except Exception as error:
        cause = str(error).partition("\n")[0] or "a check failed"
        told = cause if isinstance(error, AssertionError) else f"{type(error).__name__}: {cause}"
        raise HistoryFailed(seed, world.tell(), told) from error
    return world


class World:
    """Everything that exists in one run, and what is checked about it."""

    def __init__(self, seed: int, start_seconds: float | None = None, odds: Odds | None = None) -> None:
        """Processes take `start_seconds` to start; None: a short random time. `odds` are None for those of the seed."""
        self.rng = Random(seed)
        self._odds = odds = odds or (random_odds(self.rng) if seed % SPECIAL == 2 else Odds())
        self.events = Events()
        self._history: list[tuple[float, str, Message | None]] = []
        self.network = Network(self.events, self.rng, self.note, self._message_fault)
        config = DEEP if seed % 4 == 3 else CONFIG
        system = replace(config.system, recycle_deadline=odds.recycle_deadline)
        self.accounts = Accounts(CONFIG.run.total_steps)
        self.disk = SimDisk(self.rng, self.note)
        self.storage = Storage(self.disk, self.rng.choice(odds.durabilities))
        run = replace(config.run, durability=self.storage.durability)
        self.config = replace(config, system=system, run=run)  # as the replay has written it
        self.promise = Promise(self.accounts, self.storage)
        self.saved: Saved | None = None  # the newest checkpoint
        self.learner: LearnerHost | None = None  # of the newest learner process
        self.updates_written = 0  # in the newest state of the learner that was written beside the journal
        self.has_saved_at_end = False  # whether the replay has ended in order, with its last checkpoint
        self.is_evaluated = False
        self.head = ("nowhere", -1)  # endpoint and era of the replay, as it has published them
        self.processes: dict[str, Process] = {}
        self.disturbed_until = 0.0  # when the last fault was over
        self.disturbances = 0
        self.may_reorder = False  # whether messages may overtake each other
        self.counts: dict[str, int] = {}  # of what has happened
        self.start_seconds = start_seconds or 0.5
        self.is_long = odds.is_long or seed % LONG == 7
        self.supervisor = SimSupervisor(self, start_seconds)
        self.checks = Checks(self)
        self.trouble = Trouble(self, odds)
        self._start_seconds = start_seconds
        self._eras, self._incarnations = count(), count()

    def play(self) -> None:
        """Run until the supervision is over."""
        self.network.faults = self.rng.choice(self._odds.network)
        self.may_reorder = self.network.faults.reordered > 0
        self.supervisor.turn()
        self.trouble.plan()
        while self.supervisor.phase is not Phase.OVER:
            assert self.events.now < self.trouble.until + PATIENCE, "the run does not finish"
            self.events.run_next()

    @property
    def planned_actors(self) -> int:
        return self.config.system.actors or 1

    @property
    def is_trained(self) -> bool:
        """Whether the checkpoint after the last step and the last update exists."""
        return self.saved is not None and self.saved.t == self.config.run.total_steps and self.saved.is_finished

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

    def extend(self, steps: int) -> None:
        """Let the run be longer, while no process of it is running."""
        self.note(f"the run is extended by {steps} steps")
        self.count("extended")
        total_steps = self.config.run.total_steps + steps
        self.config = replace(self.config, run=replace(self.config.run, total_steps=total_steps))
        self.accounts.total_steps = total_steps
        self.is_evaluated = False

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
            try:
                self.trouble.damage_storage()
                process = ReplayProcess(self, next(self._eras))
            except (Killed, OSError) as error:
                self._ended_at_start(name, str(error) or "killed")
                return
        elif name == "learner":
            process = LearnerProcess(self, name, incarnation)
        elif name == "evaluator":
            process = EvaluatorProcess(self, name, incarnation)
        else:
            process = ActorProcess(self, name, incarnation)
        self.processes[name] = process
        process.take_turns()

    def restart_supervisor(self) -> None:
        """Let another command continue the run, whose processes have all ended."""
        self.head = ("nowhere", -1)
        self.supervisor = SimSupervisor(self, self._start_seconds)
        self.checks = Checks(self)

    def _ended_at_start(self, name: str, why: str) -> None:
        self.note(f"{name} ends while it recovers: {why}")
        self.count("ended while it recovers")
        exit = Exit(1, why, 0.0)
        self.supervisor.ended(name, exit)
        self.checks.ended(None, name, exit)

    def end(self, name: str, code: int, why: str, is_lost: bool = False, is_whole: bool = True) -> None:
        """A process ends, which its supervisor notices at its next turn; not `is_whole`: within a disk operation."""
        process = self.processes.pop(name)
        process.is_alive = False
        process.close(lingers=code in (0, TERMINATED))
        self.note(f"{name} ends with {code}: {why}")
        self.count(f"{role_of(name)} ended with {code}")
        if isinstance(process, ReplayProcess):
            self.has_saved_at_end = code == 0 and process.has_saved
            if not self.has_saved_at_end:
                self.promise.died(process.host, is_whole)
        exit = Exit(code, why, self.events.now - process.started_at, is_lost)
        self.supervisor.ended(name, exit)
        self.checks.ended(process, name, exit)

    def disturbed(self, seconds: float = 0.0) -> None:
        """Something went wrong, for this time."""
        self.disturbed_until = max(self.disturbed_until, self.events.now + seconds)
        self.disturbances += 1

    def _message_fault(self, text: str, message: Message, seconds: float) -> None:
        self.disturbed(seconds)
        if isinstance(message, Stats | StatsRequest):
            self.checks.delayed(seconds)
        self.count(f"message {text.partition(':')[0]}")
        self.note(text, message)


def _brief(message: Message) -> str:
    fields = [f"{name}={_short(value)}" for name, value in zip(message._fields, message, strict=True)]
    return f"{type(message).__name__}({', '.join(fields)})"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"[{value.size}]"
    if isinstance(value, str | bytes | int | float | None):
        return repr(value)[:40]
    return f"<{len(value)}>" if isinstance(value, Sized) else "..."
