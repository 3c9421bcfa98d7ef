"""A supervised run on paper: a clock and processes that do as a test says, and checks of every instruction.

It stands in for the shell: it reports exits once, and executes instructions. An instruction that no shell could execute
fails the test, whatever the test is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from dpsr_apex import timeouts
from dpsr_apex.protocol.instructions import (
    FindResources,
    HeadStatus,
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
from dpsr_apex.protocol.supervision import Failure, Phase, Supervision

LOGS = PurePath("logs")
LEASE = 30.0
CRASH = Exit(1, "ended with exit code 1", 1.0, output="    ValueError: 1")
IN_ORDER = Exit(0, "ended with exit code 0", 1.0)
LOSS = Exit(-9, "was lost", 1.0, is_lost=True)
KILLED = Exit(-9, "was killed by SIGKILL", 1.0, output="    still writing")


@dataclass
class PaperProcess:
    """A process that was started and has not ended."""

    role: str
    started_at: float
    is_placed: bool = True
    terminated: int = 0  # how often it was sent SIGTERM
    is_killed: bool = False

    @property
    def is_told(self) -> bool:
        """Whether it was told to end."""
        return self.terminated > 0 or self.is_killed


class SupervisedRun:
    """A supervision, its clock, and its processes."""

    def __init__(self, actors: int = 2) -> None:
        self.now = 1_000.0
        self.planned = actors
        self.supervision = Supervision(actors, LOGS, LEASE, self.now)
        self.processes: dict[str, PaperProcess] = {}  # that run
        self.kept: set[str] = set()  # names for which resources are in use, or kept
        self.log: list[tuple[float, Instruction]] = []  # with the time of each
        self.has_resources = True  # for a process that is started
        self.found = Resources(frozenset(), {}, "0 CPUs")  # of the engine
        self.entered: dict[Phase, float] = {Phase.STARTING: self.now}  # when
        self.on_start: Callable[[str], None] = lambda _: None  # what else a test checks of a start

    # What a test does.

    def execute(self, instructions: list[Instruction]) -> list[Instruction]:
        """Do what the supervision wants; return the instructions."""
        for instruction in instructions:
            self.log.append((self.now, instruction))
            self._execute(instruction)
        self.entered.setdefault(self.phase, self.now)
        return instructions

    def tick(self, seconds: float = 0.0) -> list[Instruction]:
        """Let so much time pass at once."""
        self.now += seconds
        return self.execute(self.supervision.tick(self.now))

    def advance(self, seconds: float, *, exits: bool = True) -> None:
        """Let time pass in the steps of a supervisor, which also sees what it has killed."""
        end = self.now + seconds
        while self.now < end:
            self.tick(min(timeouts.SUPERVISOR_POLL, end - self.now))
            for name in [name for name, process in self.processes.items() if process.is_killed and exits]:
                self.exit(name, KILLED)

    def begin(self) -> None:
        """Start everything."""
        self.tick()
        self.execute(self.supervision.head_found(self.now))

    def exit(self, name: str, exit: Exit = CRASH) -> list[Instruction]:
        """Let a process end, which is reported."""
        del self.processes[name]
        return self.execute(self.supervision.exited(name, exit, self.now))

    def place(self, name: str, is_placed: bool = True) -> None:
        """Give a process its resources, or take them away."""
        self.processes[name].is_placed = is_placed
        self.supervision.placed(name, is_placed)

    def answer(
        self,
        *,
        t: int = 0,
        planned: int | None = None,
        ending: bool = False,
        waiting: str | None = None,
        era: int = 0,
        heard: Mapping[str, float] | None = None,
    ) -> list[Instruction]:
        """Let the head answer."""
        self.planned = self.planned if planned is None else planned
        head = HeadStatus(t, 0, self.planned, ending, era, heard or {}, waiting)
        return self.execute(self.supervision.status(head, self.now))

    def stop(self) -> list[Instruction]:
        return self.execute(self.supervision.stop(self.now))

    def record(self, *, finished: bool = True, evaluated: bool = False) -> list[Instruction]:
        return self.execute(self.supervision.recorded(finished, evaluated, self.now))

    # What it saw.

    @property
    def phase(self) -> Phase:
        return self.supervision.phase

    @property
    def failure(self) -> Failure:
        """Why it cannot continue; it has failed."""
        assert self.supervision.failure is not None
        return self.supervision.failure

    @property
    def starts(self) -> list[str]:
        """Names in the order of their starts."""
        return [instruction.name for _, instruction in self.log if isinstance(instruction, Start)]

    @property
    def reports(self) -> list[str]:
        return [instruction.text for _, instruction in self.log if isinstance(instruction, Report)]

    @property
    def gone(self) -> list[str]:
        """Names of those that the head was told of."""
        return [instruction.message.name for _, instruction in self.log if isinstance(instruction, Tell)]

    def times(self, instruction: Instruction) -> list[float]:
        """When this was wanted, after the beginning of the run."""
        return [time - 1_000.0 for time, one in self.log if one == instruction]

    # As a shell.

    def _execute(self, instruction: Instruction) -> None:
        match instruction:
            case Start(name, role):
                assert name not in self.processes, f"{name} runs already"
                assert self.phase not in (Phase.STOPPING, Phase.OVER), "nothing is started in a run that ends"
                self.on_start(name)
                self.processes[name] = PaperProcess(role, self.now)
                self.kept.add(name)
                self.place(name, self.has_resources)
            case Terminate(name):
                self.processes[name].terminated += 1
            case Kill(name):
                assert not self.processes[name].is_killed, "once is enough"
                self.processes[name].is_killed = True
                self.kept.remove(name)
            case Release(name):
                assert name not in self.processes, "only of those that have ended"
                self.kept.remove(name)
            case FindResources(roles, _):
                assert roles
                self.execute(self.supervision.resources(self.found, self.now))
            case Tell() | Report():
                pass
