"""The state of one process of a run, as tracked by the supervision."""

from __future__ import annotations

from dataclasses import dataclass

from dpsr_apex import timeouts
from dpsr_apex.protocol.instructions import Instruction, Kill, Release, Start, Terminate
from dpsr_apex.protocol.restarts import Exit, RestartPolicy


@dataclass
class SupervisedProcess:
    """A process across all its restarts."""

    name: str
    role: str
    restarts: RestartPolicy
    is_running: bool = False  # started and not yet reported as ended, also while it waits for resources
    is_placed: bool = False  # whether it has its resources
    is_leaving: bool = False  # told to leave, or about to be: it is never restarted
    is_frozen: bool = False  # told to end because it is silent, and not yet reported as ended
    is_preempted: bool = False  # killed to free its resources, and not yet reported as ended
    ended_at: float | None = None  # when a clean exit was reported
    started_at: float = 0.0  # when it was last started
    terminate_at: float | None = None  # when it is sent SIGTERM if it is still running
    kill_at: float | None = None
    _output: str = ""  # of the last crash that was reported with its output
    _holds_resources: bool = False

    def start(self, now: float) -> Start:
        """Start it."""
        self.restarts.started()
        self.is_running = self._holds_resources = True
        self.ended_at, self.started_at, self.kill_at = None, now, None
        return Start(self.name, self.role)

    def waits_for_resources(self, now: float) -> bool:
        """Whether it has waited for resources longer than starting usually takes."""
        return self.is_running and not self.is_placed and now - self.started_at > timeouts.PLACEMENT_WAIT

    @property
    def may_be_frozen(self) -> bool:
        """Whether it should be running, and was not told to end."""
        return self.is_running and not (self.is_leaving or self.is_preempted or self.is_frozen)

    def end(self, kill_at: float) -> list[Instruction]:
        """End a frozen process, which is restarted: it is sent SIGTERM now, and killed if it is still running then."""
        self.is_frozen, self.kill_at = True, kill_at
        return [Terminate(self.name)]

    def leave(self, terminate_at: float | None, kill_at: float) -> None:
        """Give it time to end by itself before it is sent SIGTERM and then killed; earlier deadlines stay in force."""
        self.is_leaving = True
        self.terminate_at = terminate_at
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)

    def enforce_deadlines(self, now: float) -> list[Instruction]:
        """Return the instructions for a process that did not leave in time."""
        instructions: list[Instruction] = []
        if self.is_running and self.terminate_at is not None and now >= self.terminate_at:
            self.terminate_at = None
            instructions.append(Terminate(self.name))
        if self.is_running and self.kill_at is not None and now >= self.kill_at:
            self.kill_at = None
            instructions.append(self._kill())
        return instructions

    def preempt(self, until: float) -> list[Instruction]:
        """Stop it to free its resources, and restart it at `until`; a process that was given up stays stopped."""
        self.restarts.preempted(until)
        self.ended_at = None
        if self.is_running and not self.is_preempted:
            self.is_preempted = True
            return [self._kill()]
        return self.release()

    def exited(self) -> None:
        """Note that it has ended."""
        self.is_running = self.is_placed = self.is_frozen = self.is_preempted = False

    def is_new_output(self, exit: Exit) -> bool:
        """Note the output of a crash; return whether the user should see it: not twice for the same early failure."""
        former, self._output = self._output, exit.output
        return bool(exit.output) and (exit.output != former or exit.seconds > timeouts.STABLE_AFTER)

    def release(self) -> list[Instruction]:
        """Release the resources reserved for its next start, if any."""
        if not self._holds_resources:
            return []
        self._holds_resources = False
        return [Release(self.name)]

    def _kill(self) -> Kill:
        self._holds_resources = False
        return Kill(self.name)
