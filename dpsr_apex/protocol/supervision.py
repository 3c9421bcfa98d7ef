"""The supervision of a whole run: which processes should exist, and when they are started, restarted and stopped.

A state machine without clock, processes or sockets: every event returns instructions that the shell executes
(`dpsr_apex.supervise`, or a simulation). The shell reports every exit once, also that of a process it has killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import PurePath
from typing import NamedTuple

from dpsr_apex import timeouts
from dpsr_apex.protocol.frozen import FrozenWatch
from dpsr_apex.protocol.instructions import HeadStatus, Instruction, Report, Resources, Tell, Terminate
from dpsr_apex.protocol.placement import Placement
from dpsr_apex.protocol.restarts import Exit, RestartPolicy
from dpsr_apex.protocol.supervised_process import SupervisedProcess
from dpsr_apex.wire.messages import Gone, Stats


class Phase(Enum):
    """The phase of a run, as tracked by the supervision."""

    STARTING = "only the replay is starting"
    RUNNING = "all processes are running"
    FINISHING = "the replay has exited cleanly: the members leave, and the last evaluation is running"
    STOPPING = "all processes are being stopped"
    OVER = "no process is running"


class Failure(NamedTuple):
    """Why a run cannot continue."""

    process: str  # name of the process that failed last
    cause: str  # in one line
    message: str  # for the user


def head_status(stats: Stats, waiting: str) -> HeadStatus:
    """Return the part of the head's statistics that the supervision uses; `waiting` describes who waits for whom."""
    return HeadStatus(
        stats.t, stats.rate.batches, stats.planned_actors, stats.ending, stats.era, stats.heard, waiting or None
    )


class ProgressWatch:
    """Decides when to report a lack of progress."""

    def __init__(self, now: float) -> None:
        self._progress = (0, 0)
        self._since = now
        self._reported = 0.0  # seconds without progress at the last report

    def stalled(self, progress: tuple[int, int], now: float) -> float | None:
        """Return the seconds without progress if they should be reported now: after 30, 60, 120, ..."""
        if progress != self._progress:
            self._progress, self._since, self._reported = progress, now, 0.0
        seconds = now - self._since
        if seconds < max(timeouts.NO_PROGRESS, 2 * self._reported):
            return None
        self._reported = seconds
        return seconds

    def leave_out(self, seconds: float) -> None:
        """Leave out a time in which nobody looked for progress."""
        self._since += seconds


class Supervision:
    """Supervises one run, from the start of its replay until no process is running."""

    def __init__(self, actors: int, logs: PurePath, lease: float, now: float) -> None:
        """Plan a run with this number of actors, whose processes write `logs`/NAME.log.

        A member that is silent for longer than the lease, in seconds, and does not return is restarted.
        """
        self.phase = Phase.STARTING
        self.failure: Failure | None = None
        self._logs = logs
        self._planned_actors = actors
        self._processes: dict[str, SupervisedProcess] = {}  # in the order in which they are started
        self._head: HeadStatus | None = None
        self._heard_at = now  # when the head last answered
        self._ticked_at = now
        self._lease = lease
        self._frozen = FrozenWatch(lease, now)
        self._progress = ProgressWatch(now)
        self._placement = Placement()
        self._reported_evaluation = False
        self._is_trained = False
        self._add("replay", "replay", now)

    # Events.

    def tick(self, now: float) -> list[Instruction]:
        """Do everything that is due at time `now`."""
        self._leave_out_gap(now)
        instructions: list[Instruction] = []
        if self.phase is Phase.RUNNING:
            instructions += self._follow_plan(now)
        for process in list(self._processes.values()):
            if not process.is_running and process.restarts.is_due(now):
                instructions.append(process.start(now))
            instructions += process.enforce_deadlines(now)
        if self.phase in (Phase.STARTING, Phase.RUNNING, Phase.FINISHING):
            instructions += self._placement.check(self._processes.values(), now)
        if self.phase in (Phase.STARTING, Phase.RUNNING):
            instructions += self._check_progress(now)
        if self.phase is Phase.RUNNING and not self._is_ending:
            instructions += self._restart_frozen_head(now)
        return instructions

    def head_found(self, now: float) -> list[Instruction]:
        """Start everything else: the replay has published its address."""
        if self.phase is Phase.STARTING:
            self.phase = Phase.RUNNING
            self._heard_at = now
            self._progress = ProgressWatch(now)
            self._add("learner", "learner", now)
            self._add_actor(0, now)
            self._add("evaluator", "evaluator", now)
            for index in range(1, self._planned_actors):
                self._add_actor(index, now)
        return self.tick(now)

    def placed(self, name: str, is_placed: bool) -> None:
        """Note whether a process that was started has its resources."""
        self._processes[name].is_placed = is_placed

    def exited(self, name: str, exit: Exit, now: float) -> list[Instruction]:
        """Handle the exit of a process: restart it, give it up, or note that it has left."""
        process = self._processes[name]
        was_preempted, was_frozen = process.is_preempted, process.is_frozen
        process.exited()
        self._frozen.ended(name)
        if process.is_leaving:
            return self._left(process, exit, now)
        if was_preempted:
            return []
        if was_frozen:  # it does not count as a crash: otherwise a busy machine could end a run
            process.restarts.restart(now)
            return [Tell(Gone(name))] if process.role != "replay" else []
        if exit.code == 0 and self.phase is not Phase.STARTING:
            return self._ended_in_order(process, now)
        if self.phase is Phase.STARTING and not exit.is_lost:
            why = f"The replay did not start:\n{exit.output}" if exit.output else f"The replay {exit.cause}"
            return self._fail(Failure(name, exit.reason, why), now)
        return self._crashed(process, exit, now)

    def status(self, head: HeadStatus, now: float) -> list[Instruction]:
        """Handle the status of the head.

        A process that exited cleanly although the run continues was told to leave by a replay that has been restarted
        since, and is restarted too. The status must be newer than that exit: the head may have sent it just before.
        """
        self._head, self._heard_at = head, now
        if self.phase is Phase.RUNNING and not head.is_ending:
            for process in self._processes.values():
                if process.ended_at is not None and now > process.ended_at + timeouts.STOP_ANSWER:
                    process.ended_at = None
                    process.restarts.restart(now)
        self._frozen.head_answered(head.era, head.heard, now)
        return [] if self._is_ending else [*self._restart_frozen_members(now)]

    def trained(self, now: float) -> list[Instruction]:
        """Note that training is done, although the replay has not exited: its callbacks await the last evaluation."""
        if self.phase is not Phase.RUNNING or self._is_trained:
            return []
        self._is_trained = True
        self._processes["evaluator"].restarts.reset(now)
        return self._report_evaluation()

    def resources(self, found: Resources, now: float) -> list[Instruction]:
        """Handle the answer to `FindResources`."""
        return self._placement.answered(found, self._processes.values(), now)

    def recorded(self, is_finished: bool, is_evaluated: bool, now: float) -> list[Instruction]:
        """Stop when the last evaluation is recorded, or when the replay has ended before the run was finished.

        The arguments describe the run directory after all exits reported so far.
        """
        if self.phase is not Phase.FINISHING or any(process.is_leaving for process in self._processes.values()):
            return []
        if is_evaluated or not is_finished:
            return self.stop(now)
        evaluator = self._processes["evaluator"]
        if evaluator.restarts.given_up or evaluator.ended_at is not None:
            return self._fail_evaluation(evaluator, now)
        return self._report_evaluation()

    def stop(self, now: float) -> list[Instruction]:
        """Stop all processes: the replay saves and tells the members to leave; those that do not leave are killed."""
        if self.phase in (Phase.STOPPING, Phase.OVER):
            return []
        self.phase = Phase.STOPPING
        replay = self._processes.get("replay")
        deadline = now + timeouts.PROCESS_LEAVE
        processes = list(self._processes.values())
        if replay is not None and replay.is_running:
            told = [process for process in processes if process.role in ("replay", "evaluator")]
            self._let_leave(deadline - timeouts.LEAVE_GRACE, deadline)
            replay.terminate_at, replay.kill_at = None, deadline + timeouts.WRITE_CHECKPOINT
        else:
            told = processes
            self._let_leave(now + timeouts.LEAVE_GRACE, deadline)
        terminated = [Terminate(process.name) for process in told if process.is_running]
        return [*terminated, *self._reap_those_that_ended()]

    # What events lead to.

    def _leave_out_gap(self, now: float) -> None:
        """Leave out a long time since the last tick, in which this process was suspended and could hear nobody."""
        gap, self._ticked_at = now - self._ticked_at, now
        if gap > timeouts.SUPERVISOR_GAP:
            self._heard_at = min(self._heard_at + gap, now)
            self._progress.leave_out(gap)

    def _add(self, name: str, role: str, now: float) -> None:
        self._processes[name] = SupervisedProcess(name, role, RestartPolicy(role, now))

    def _add_actor(self, index: int, now: float) -> None:
        self._add(f"actor-{index}", "actor", now)

    def _log(self, process: SupervisedProcess) -> PurePath:
        return self._logs / f"{process.name}.log"

    @property
    def _is_ending(self) -> bool:
        """Whether the members were told to leave, or training is done: then silence is to be expected."""
        return self.phase is not Phase.RUNNING or self._is_trained or (self._head is not None and self._head.is_ending)

    @property
    def _actors(self) -> list[SupervisedProcess]:
        """Return the actors that are part of the plan."""
        return [process for process in self._processes.values() if process.role == "actor" and not process.is_leaving]

    def _follow_plan(self, now: float) -> list[Instruction]:
        """Adjust the number of actors to the head's plan: the last ones leave, or more are added.

        New actors are added only after all leaving ones have ended, because they may reuse their names.
        """
        if self._head is None or self._head.is_ending:
            return []
        actors, planned = self._actors, self._head.planned_actors
        if planned != self._planned_actors:
            self._planned_actors = planned
            for actor in actors:
                actor.restarts.reset(now)
        for actor in actors[planned:]:
            actor.leave(None, now + timeouts.PROCESS_LEAVE)
        instructions: list[Instruction] = [Terminate(actor.name) for actor in actors[planned:] if actor.is_running]
        instructions += self._reap_those_that_ended()
        if not any(process.is_leaving for process in self._processes.values()):
            for index in range(len(actors), planned):
                self._add_actor(index, now)
        return instructions

    def _report_evaluation(self) -> list[Instruction]:
        if self._reported_evaluation:
            return []
        self._reported_evaluation = True
        return [Report("Training is done; the last evaluation is running")]

    def _check_progress(self, now: float) -> Iterator[Instruction]:
        if self._is_trained:
            return
        head = self._head
        stalled = self._progress.stalled((head.t, head.batches) if head else (0, 0), now)
        if stalled is None:
            return
        if self.phase is Phase.STARTING:
            if self._processes["replay"].is_placed:
                yield Report(f"Waiting for the replay to load its checkpoint ({stalled:.0f} s so far)")
            return
        silent = now - self._heard_at
        why = (head and head.waiting) or "No process reports what it is waiting for."
        if silent > timeouts.NO_PROGRESS / 2:
            why = f"The replay has not answered for {silent:.0f} s."
        yield Report(f"No progress for {stalled:.0f} s at t = {head.t if head else 0:,}. {why}")

    def _restart_frozen_members(self, now: float) -> Iterator[Instruction]:
        for process in self._processes.values():
            silence = self._frozen.frozen_for(process.name, process.started_at, now)
            if silence is not None and process.may_be_frozen:
                yield Report(
                    f"{process.name} is running, but has sent nothing for {silence:.0f} s "
                    f"(system.lease = {self._lease:g}); restarting it"
                )
                self._frozen.restarted(process.name, process.started_at)
                yield from process.end(now + timeouts.FROZEN_GRACE)

    def _restart_frozen_head(self, now: float) -> Iterator[Instruction]:
        replay = self._processes["replay"]
        silence = now - max(self._heard_at, replay.started_at)
        if silence > timeouts.HEAD_FROZEN and replay.is_placed and replay.may_be_frozen:
            yield Report(f"The replay is running, but has not answered for {silence:.0f} s; restarting it")
            yield from replay.end(now + timeouts.FROZEN_GRACE)

    def _ended_in_order(self, process: SupervisedProcess, now: float) -> list[Instruction]:
        process.ended_at = now
        if process.role == "replay":
            self.phase = Phase.FINISHING
            self._let_leave(now + timeouts.LEAVE_GRACE, now + timeouts.PROCESS_LEAVE, but="evaluator")
            self._processes["evaluator"].restarts.reset(now)  # an ending replay may have rejected it
            return self._reap_those_that_ended()
        return process.release()

    def _crashed(self, process: SupervisedProcess, exit: Exit, now: float) -> list[Instruction]:
        restarts = process.restarts
        restarts.exited(exit, now)
        text = f"{process.name} {exit.cause}"
        if restarts.crashes == 1 and process.is_new_output(exit):
            text += f"; its last output ({self._log(process)}):\n{exit.output}"
        instructions: list[Instruction] = [] if process.role == "replay" else [Tell(Gone(process.name))]
        if not restarts.given_up:
            return [*instructions, Report(text)]
        text += f"\n{process.name} failed {restarts.failures} times in a row and is not restarted"
        return [*instructions, Report(text), *process.release(), *self._given_up(process, exit, now)]

    def _given_up(self, process: SupervisedProcess, exit: Exit, now: float) -> list[Instruction]:
        """End a run that cannot continue without this process."""
        if process.role in ("replay", "learner"):
            what = f"The {process.role} failed {process.restarts.failures} times in a row"
        elif process.role == "actor" and all(actor.restarts.given_up for actor in self._actors):
            what = "Every actor failed too often"
        elif process.role == "evaluator" and self._is_trained:
            return self._fail_evaluation(process, now)
        else:
            return []
        last = f"the last time, {process.name} {exit.reason}"
        return self._fail(Failure(process.name, exit.reason, f"{what}; {last}. See {self._log(process)}"), now)

    def _fail_evaluation(self, evaluator: SupervisedProcess, now: float) -> list[Instruction]:
        message = f"The last evaluation failed; see {self._log(evaluator)}"
        return self._fail(Failure("evaluator", "the last evaluation failed", message), now)

    def _fail(self, failure: Failure, now: float) -> list[Instruction]:
        self.failure = failure
        return self.stop(now)

    def _let_leave(self, terminate_at: float, kill_at: float, but: str = "") -> None:
        """Give every process, except those of the role `but`, time to end by itself."""
        for process in self._processes.values():
            if process.role != but:
                process.leave(terminate_at, kill_at)

    def _left(self, process: SupervisedProcess, exit: Exit, now: float) -> list[Instruction]:
        reports = []
        if process.role == "replay":
            if exit.code != 0:  # its last checkpoint may be missing
                reports = [Report(f"replay {exit.cause}; its last output ({self._log(process)}):\n{exit.output}")]
            for member in self._processes.values():
                if member.terminate_at is not None:
                    member.terminate_at = min(member.terminate_at, now + timeouts.LEAVE_GRACE)
        return [*reports, *self._reap_those_that_ended()]

    def _reap_those_that_ended(self) -> list[Instruction]:
        """Remove leaving processes that have ended or were never started; report actors among them to the head."""
        instructions: list[Instruction] = []
        for process in list(self._processes.values()):
            if process.is_leaving and not process.is_running:
                del self._processes[process.name]
                instructions += process.release()
                if self.phase is Phase.RUNNING:
                    instructions.append(Tell(Gone(process.name)))  # it may not have been able to leave cleanly
        if self.phase is Phase.STOPPING and not self._processes:
            self.phase = Phase.OVER
        return instructions
