"""What is checked about the supervision of a simulated run, from its events alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpsr_apex import timeouts
from dpsr_apex.protocol.restarts import Exit
from dpsr_apex.protocol.supervision import Phase
from tests.simulation.sim_processes import CONFIG, POLL, ClientProcess, Process, ReplayProcess

if TYPE_CHECKING:
    from tests.simulation.world import World

SLACK = 1.0  # seconds for a turn of the supervisor, a start, and messages
LONGEST_WRITE = 1.0  # seconds that the replay needs for a checkpoint
TOLD = 0.8  # seconds after which the replay knows of a crash
FOLLOWED = timeouts.ACTOR_DRAIN + 2 * SLACK  # seconds after which a new number of actors runs
EVALUATED = timeouts.PROCESS_LEAVE + 10.0  # seconds after the end of the replay: the last evaluation, with one restart


class Checks:
    """Checks every turn of the supervisor, and the end of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._failures: dict[str, int] = {}  # crashes in a row, by name
        self._plan_settled_at = 0.0  # when the planned processes should run, if nothing else happens
        self._dead: dict[tuple[str, int], float] = {}  # when members ended, by their key

    # Events.

    def changed(self, seconds: float = 0.0) -> None:
        """Note that the processes that run are about to change, for this time."""
        seconds += FOLLOWED + self._world.start_seconds
        self._plan_settled_at = max(self._plan_settled_at, self._world.events.now + seconds)

    def delayed(self, seconds: float) -> None:
        """Note that the supervisor learns later of a change."""
        self._plan_settled_at += seconds + timeouts.SUPERVISOR_POLL

    def plan_changed(self) -> None:
        self.changed()
        self._failures = {name: count for name, count in self._failures.items() if not name.startswith("actor")}

    def ended(self, process: object, name: str, exit: Exit) -> None:
        """Note the end of a process, and how long it may take until it runs again."""
        now = self._world.events.now
        backoff = timeouts.STOP_ANSWER
        if exit.is_lost:
            backoff = timeouts.NODE_LOST_BACKOFF
        elif exit.code:
            in_a_row = 0 if exit.seconds > timeouts.STABLE_AFTER else self._failures.get(name, 0)
            self._failures[name] = in_a_row + 1
            backoff = timeouts.FIRST_BACKOFF * 2.0**in_a_row
        self.changed(backoff)
        if isinstance(process, ClientProcess):
            self._dead[process.key] = now
            if exit.code and self._world.supervisor.phase is Phase.RUNNING and not self._world.supervisor.is_dead:
                self._expect_told(process.key)

    def _expect_told(self, key: tuple[str, int]) -> None:
        """The replay is told of a crash, and does not wait for the lease, unless something else happens."""
        world, replay, socket = self._world, self._replay, self._world.supervisor.socket
        disturbances = world.disturbances
        if replay is None or socket is None or socket.server is not replay.server:
            return
        if replay.now < max(replay.paused_until, world.supervisor.suspended_until):
            return

        def check() -> None:
            is_quiet = world.disturbances == disturbances and replay.is_alive and not replay.host.service.ending
            if is_quiet and world.supervisor.phase is Phase.RUNNING:
                world.count("told of a crash")
                assert replay.host.service.sessions.of(key) is None, f"the replay was not told that {key[0]} is gone"

        world.events.after(TOLD, check)

    def restarted_as_frozen(self, process: Process) -> None:
        """Note that a process is restarted because it is silent: it must have been suspended or cut off for a while."""
        since = self._world.events.now - 2 * SLACK - timeouts.HEAD_SILENCE
        disturbed_until = max(process.paused_until, process.unreachable_until)
        self._world.count("frozen process restarted")
        if isinstance(process, ClientProcess) and process.has_left:
            return  # a replay that could not write its last checkpoint continues, without those that it has dismissed
        assert disturbed_until > since, f"{process.name} is restarted as frozen, but could have joined again"

    # Every turn.

    def supervised(self) -> None:
        """Check the run after a turn of its supervisor."""
        supervisor = self._world.supervisor
        assert supervisor.supervision.failure is None, f"the run was given up: {supervisor.supervision.failure}"
        match supervisor.phase:
            case Phase.RUNNING:
                self._check_plan()
                self._check_sessions()
            case Phase.FINISHING:
                self._check_finishing()
            case Phase.STOPPING:
                self._check_stopping()
            case Phase.OVER:
                self._check_end()

    @property
    def _replay(self) -> ReplayProcess | None:
        process = self._world.processes.get("replay")
        return process if isinstance(process, ReplayProcess) else None

    def _check_plan(self) -> None:
        """If nothing has happened for a while, exactly the planned processes run."""
        world, now = self._world, self._world.events.now
        if now < self._plan_settled_at or world.is_short_of_slots or self._is_ending:
            return
        actors = [f"actor-{index}" for index in range(world.planned_actors)]
        planned, running = sorted(["replay", "learner", "evaluator", *actors]), sorted(world.processes)
        world.count("plan checked")
        assert running == planned, f"{', '.join(planned)} should run, and {', '.join(running)} do"

    @property
    def _is_ending(self) -> bool:
        return self._replay is not None and self._replay.host.service.ending

    def _check_sessions(self) -> None:
        """A member that has ended does not stay a member for longer than its lease."""
        replay, now = self._replay, self._world.events.now
        if replay is None or replay.is_or_was_paused_since(now - 2 * CONFIG.system.lease):
            return
        for session in replay.host.service.sessions:
            ended_at = self._dead.get(session.key, math.inf)
            assert now - ended_at < CONFIG.system.lease + 2 * SLACK, f"{session.name} ended, and is still a member"

    def _check_finishing(self) -> None:
        supervisor, world = self._world.supervisor, self._world
        assert supervisor.finishing_since is not None
        seconds = world.events.now - max(supervisor.finishing_since, world.disturbed_until)
        assert seconds < EVALUATED + world.start_seconds, "the last evaluation does not end"

    def _check_stopping(self) -> None:
        """Everything but the replay ends in its time, and the replay as soon as its checkpoint is written."""
        world = self._world
        assert world.supervisor.stopping_since is not None
        seconds = world.events.now - world.supervisor.stopping_since
        members = sorted(world.processes.keys() - {"replay"})
        assert seconds < timeouts.PROCESS_LEAVE + 2 * POLL or not members, f"{', '.join(members)} did not stop in time"
        paused = self._replay.seconds_paused if self._replay else 0.0
        assert seconds < timeouts.STOP_BUDGET + LONGEST_WRITE + SLACK + paused, "the run does not stop in time"

    def _check_end(self) -> None:
        world, cluster = self._world, self._world.supervisor.cluster
        assert not world.processes, f"{', '.join(world.processes)} outlived the supervision"
        assert not world.supervisor.started
        assert not cluster.waiting
        assert not cluster.held, f"resources are kept for {', '.join(sorted(cluster.held))}"
        assert world.was_stopped or (world.is_trained and world.is_evaluated), "the run ended before it was finished"
        if world.has_saved_at_end:
            world.accounts.check_saved(world.saved)
