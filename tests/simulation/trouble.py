"""What goes wrong in a simulated run, and when: processes, links, nodes, the disk, and the command of the user."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from dpsr_apex import timeouts
from dpsr_apex.protocol.supervision import Phase
from dpsr_apex.wire.messages import OWNER, Message, SetActors, SetRate
from tests.simulation.checks import FOLLOWED
from tests.simulation.network import Faults
from tests.simulation.sim_processes import CONFIG
from tests.simulation.sim_supervisor import Cluster, SimSupervisor
from tests.simulation.storage import Durability

if TYPE_CHECKING:
    from tests.simulation.world import World

RESUME_POLL = 0.5  # seconds between two looks whether the processes of a killed supervisor have ended
EXTENDED = 0.4  # share of all resumed runs that are extended
PAUSES = (1.0, 3.5, 6.0, 12.0, 18.0)  # seconds; after the longest a process counts as frozen, and is restarted
MOST_ACTORS = 4
RATES = (0, 1, 2, 5)  # transitions per update; 0: free running
FREEZES = CONFIG.system.lease + timeouts.FROZEN  # seconds of a pause, after which a process is restarted
CRASHES = {"replay": 2, "learner": 1, "evaluator": 1, "actor": 2}
"""How often a process may crash until it is stable: its restart is refused if the replay is not told of the crash."""
CRASH_PAUSE = timeouts.STABLE_AFTER + 15.0  # seconds between two crashes of the learner in a long history


class Odds(NamedTuple):
    """What a history may consist of. Of each, one is chosen at random; what is repeated is chosen more often."""

    durabilities: tuple[Durability, ...] = ("process", "process", "power", "power", "none")
    faults: tuple[str, ...] = ("crash", "cut", "cut", "cut", "pause", "loss", "scale", "disk", "disk", "command")
    disk_faults: tuple[str, ...] = ("crash", "crash", "loss", "kill", "full", "power", "sync")
    network: tuple[Faults, ...] = (
        Faults(),
        Faults(lost=0.01),
        Faults(repeated=0.02, reordered=0.05),
        Faults(0.02, 0.02, 0.02),
    )
    is_long: bool = False  # long enough for processes to become stable, and crash again
    seconds: float = 30.0  # in which faults happen
    fault_pauses: tuple[float, ...] = (2.0, 4.0)  # seconds between two faults, on average
    full_seconds: tuple[float, ...] = (0.5, 3.0, 8.0)  # for which the disk is full
    full_at_end: float = 0.15  # share of histories in which the disk is full when the last checkpoint is written
    recycle_deadline: float = CONFIG.system.recycle_deadline  # seconds, after which a round ends without all answers
    damaged_checkpoints: float = 0.2  # share of the starts of a replay that find the newest checkpoint damaged
    damaged_journals: float = 0.06  # share of its recoveries that find the journal damaged for good


def random_odds(rng: Random) -> Odds:
    """Return odds in which some kinds of faults are frequent and others do not happen.

    So rare combinations become likely.
    """
    usual = Odds()
    return Odds(
        durabilities=(rng.choice(usual.durabilities),),
        faults=_some(rng, usual.faults),
        disk_faults=_some(rng, usual.disk_faults),
        network=(rng.choice([*usual.network, Faults(lost=0.1), Faults(repeated=0.2, reordered=0.2)]),),
        fault_pauses=(rng.choice([0.5, 1.0, 2.0, 4.0]),),
        full_seconds=(rng.choice(usual.full_seconds),),
        full_at_end=rng.choice([0.0, 0.5]),
        recycle_deadline=rng.choice([0.2, 1.0, usual.recycle_deadline]),
        damaged_checkpoints=rng.choice([0.0, 0.2, 1.0]),
        damaged_journals=rng.choice([0.0, 0.06, 0.5]),
    )


def _some(rng: Random, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return one to three of these kinds."""
    different = sorted(set(kinds))
    return tuple(rng.sample(different, rng.randint(1, min(3, len(different)))))


class Trouble:
    """Plans and causes the faults of one history."""

    def __init__(self, world: World, odds: Odds) -> None:
        self.until = 3.5 * CRASH_PAUSE if world.is_long else odds.seconds  # when the last fault happens
        self._world = world
        self._odds = odds
        self._rng, self._events, self._disk, self._storage = world.rng, world.events, world.disk, world.storage
        self._fault_pause = CRASH_PAUSE if world.is_long else world.rng.choice(odds.fault_pauses)
        self._crashes: dict[str, list[float]] = {}  # when each process crashed
        self._is_full_at_end = world.rng.random() < odds.full_at_end

    @property
    def _supervisor(self) -> SimSupervisor:
        return self._world.supervisor

    @property
    def _actors(self) -> list[str]:
        return [name for name in self._world.processes if role_of(name) == "actor"]

    def plan(self) -> None:
        self._events.after(self._rng.expovariate(1 / self._fault_pause), self._disturb)
        self._events.at(self.until, self._calm_down)
        if self._world.is_long:
            for crash in range(1, 4):
                self._events.at(crash * CRASH_PAUSE, lambda: self._disturb_process("learner", "crash"))
        elif self._rng.random() < 0.3:
            self._events.at(self._rng.uniform(1.0, self.until), self._interrupt)

    def damage_storage(self) -> None:
        """Damage what the replay is about to read: it must notice that, and lose nothing if another copy exists."""
        # A power cut may already have damaged what the older checkpoint needs of a journal that is not synced.
        if self._events.now >= self.until or not self._storage.has_journal or self._storage.may_be_damaged:
            return
        if self._rng.random() < self._odds.damaged_checkpoints and self._storage.lose_newest_checkpoint():
            self._note_fault("damaged checkpoint", "the newest checkpoint is damaged")
            self._world.saved = next(reversed(self._storage.checkpoints()), None)
        since = self._world.saved.next if self._world.saved else 0
        if self._rng.random() < 0.3 and self._storage.check_that_damage_is_noticed(since):
            self._world.count("flipped bit")
        may_be_given_up = self._world.promise.awaits_recovery and self._rng.random() < self._odds.damaged_journals
        if may_be_given_up and self._storage.damage(since):
            self._note_fault("journal given up", "the journal is damaged, and its user gives up what follows")
            self._world.promise.given_up()

    def may_write_last(self) -> bool:
        """Whether the last checkpoint can be written; only once it cannot."""
        is_full = self._is_full_at_end and not self._world.was_stopped and not self._crashes.get("replay")
        self._is_full_at_end = False
        return not is_full

    def _interrupt(self) -> None:
        self._world.note("the user stops the run")
        self._world.count("stop")
        self.free_disk()  # a run that cannot save waits for as long as it takes
        self._supervisor.is_interrupted = True

    def _disturb(self) -> None:
        if self._events.now > self.until:
            return
        faults = ("pause",) if self._world.is_long else self._odds.faults
        fault = self._rng.choice(faults)
        pause = self._rng.expovariate(1 / self._fault_pause)
        if fault == "scale":
            self._scale()
            pause += self._rng.choice([0.0, FOLLOWED + 1.0])  # to see whether the new number of actors runs
        elif fault == "command":
            self._kill_command()
        elif fault == "disk":
            if self._supervisor.phase is Phase.RUNNING and "replay" in self._world.processes:
                self._disturb_disk(self._rng.choice(self._odds.disk_faults))
        else:
            names = ["replay", "evaluator", "supervisor", *self._actors, *self._actors, *["learner"] * 4]
            self._disturb_process(self._rng.choice(names), fault)
        self._events.after(pause, self._disturb)

    def _disturb_process(self, name: str, fault: str) -> None:
        process, is_stopping = self._world.processes.get(name), self._supervisor.stopping_since is not None
        if self._supervisor.phase is Phase.STARTING:
            return  # a replay that does not start ends the run
        if name == "supervisor" and self._supervisor.socket is not None:
            if fault != "pause":
                self._world.checks.changed(self._cut(name, self._supervisor.socket.cut))
            elif self._supervisor.phase is Phase.RUNNING:
                self._suspend_supervisor(self._rng.choice(PAUSES))
        elif process is None or (is_stopping and fault == "pause"):
            return
        elif fault == "crash":
            self._crash(name)
        elif fault == "cut":
            seconds = self._cut(name, process.cut)
            process.unreachable_until = self._events.now + seconds
            if name == "replay":
                self._world.checks.changed(seconds)
        elif fault == "loss":
            self._lose_node(name)
        else:
            seconds = self._rng.choice([1.0, 3.5, 6.0] if name == "replay" else PAUSES)
            if seconds > FREEZES and not self._may_crash(name):
                return  # its restart would count as a crash
            self._note_fault("pause", f"{name} is suspended for {seconds:.1f} s", seconds)
            self._world.checks.changed(seconds)
            process.pause(seconds)

    def _suspend_supervisor(self, seconds: float) -> None:
        self._note_fault("supervisor suspended", f"the supervisor is suspended for {seconds:.1f} s", seconds)
        self._world.checks.changed(seconds)
        self._supervisor.suspended_until = max(self._supervisor.suspended_until, self._events.now + seconds)

    def _note_fault(self, fault: str, text: str, seconds: float = 0.0) -> None:
        self._world.count(fault)
        self._world.note(text)
        self._world.disturbed(seconds)

    def _disturb_disk(self, fault: str) -> None:
        if fault == "full":
            seconds = self._rng.choice(self._odds.full_seconds)
            self._disk.free = self._rng.randrange(500)
            self._note_fault("disk full", f"the disk is full for {seconds:.1f} s", seconds + 1.0)
            self._world.checks.changed(seconds + 1.0)
            self._events.after(seconds, self.free_disk)
        elif fault == "power":
            self._cut_power()
        elif fault == "loss":  # which does not count as a crash, so that it may happen often
            self._lose_node("replay")
        elif fault == "crash":
            self._crash("replay")
            if self._rng.random() < 0.5:
                self._events.after(self._rng.uniform(1.0, 4.0), self._cut_power)
        elif fault == "kill" and self._may_crash("replay"):
            self._note_fault("disk kill", "the replay will be killed in a disk operation")
            self._disk.kill_after = self._rng.randrange(25)
        elif fault == "sync" and self._storage.awaits_sync and self._may_crash("replay"):
            self._note_fault("sync failure", "the next sync will fail")
            self._disk.sync_fails = True
            self._events.after(self._rng.choice([0.3, 3.0, 6.0]), self._cut_power)

    def _cut_power(self) -> None:
        """Cut the power of the machine with the disk, whose node is lost with the replay."""
        if "replay" in self._world.processes:
            self._lose_node("replay")
        if "replay" not in self._world.processes:
            self._world.count("power cut")
            self._world.note("the disk has lost its power")
            self._disk.cut_power()
            self._world.promise.power_was_cut()
            self._world.saved = next(reversed(self._storage.checkpoints()), None)

    def free_disk(self) -> None:
        """Let there be space on the disk."""
        self._disk.free = None

    def _may_crash(self, name: str) -> bool:
        """Whether a process may crash once more, which is counted: otherwise it would be given up."""
        times = [time for time in self._crashes.get(name, []) if time > self._events.now - CRASH_PAUSE]
        if len(times) >= CRASHES[role_of(name)]:
            return False
        self._crashes[name] = [*times, self._events.now]
        return True

    def _crash(self, name: str) -> None:
        if self._may_crash(name):
            self._note_fault("crash", f"{name} crashes")
            self._world.end(name, 1, "a crash")

    def _cut(self, name: str, cut: Callable[[float], None]) -> float:
        """Cut the links of a process; return for how long."""
        seconds = self._rng.choice([0.0, 0.3, 3.0, 7.0])
        self._note_fault("cut", f"the links of {name} are cut for {seconds:.1f} s", seconds)
        cut(seconds)
        return seconds

    def _lose_node(self, name: str) -> None:
        """Lose a node with one or two processes; another one takes its place later."""
        others = [other for other in self._world.processes if other != name]
        lost = [name, *self._rng.sample(others, min(len(others), self._rng.randrange(2)))]
        if self._supervisor.phase is not Phase.RUNNING or self._world.is_short_of_slots:
            return
        cluster, seconds = self._supervisor.cluster, self._rng.choice([1.0, 8.0, 12.0])
        slots = cluster.lose(lost)
        self._note_fault("node lost", f"the node of {' and '.join(lost)} is lost for {seconds:.1f} s", seconds)
        for each in lost:
            self._world.end(each, -9, "its node was lost", is_lost=True)
        self._events.after(seconds, lambda: self._add_slots(cluster, slots))

    def _add_slots(self, cluster: Cluster, slots: int) -> None:
        cluster.slots += slots
        self._world.checks.changed(
            2 * timeouts.PLACEMENT_WAIT + self._world.start_seconds
        )  # of those that were preempted

    def _kill_command(self) -> None:
        """Kill the supervisor: alone, so that its processes save and end, or with everything else on its machine."""
        if self._supervisor.is_dead or self._supervisor.phase in (Phase.STARTING, Phase.OVER):
            return
        self._supervisor.die()
        if self._rng.random() < 0.5:
            self._note_fault("supervisor killed", "the supervisor is killed")
            for process in list(self._world.processes.values()):
                process.terminate()
        else:
            self._note_fault("everything killed", "everything is killed")
            for name in list(self._world.processes):
                self._world.end(name, -9, "killed with everything else")
            if self._rng.random() < 0.5:
                self._cut_power()
        self._resume_when_over()

    def _resume_when_over(self) -> None:
        """Let the user continue the run as soon as no process is left, and sometimes extend it."""
        if self._world.processes:
            self._world.disturbed()
            self._events.after(RESUME_POLL, self._resume_when_over)
            return
        self._world.note("the user resumes the run")
        if self._rng.random() < EXTENDED:
            self._world.extend(self._rng.randrange(1, 30))
        self._disk.kill_after, self._disk.sync_fails = None, False  # a replay that cannot start ends the run
        self._crashes.clear()
        self._world.restart_supervisor()
        self._world.disturbed()
        self._supervisor.turn()

    def _scale(self) -> None:
        """A user changes the number of actors or the rate, and asks again until there is an answer."""
        self._world.count("scale")
        answers: list[Message] = []
        socket = self._world.network.connect(self._world.head[0], "user", OWNER, answers.append)
        questions: list[Message] = [SetActors(self._rng.randint(1, MOST_ACTORS)), SetRate(self._rng.choice(RATES))]
        question, deadline = self._rng.choice(questions), self._events.now + timeouts.CONTROL_ANSWER

        def ask() -> None:
            if answers or self._events.now > deadline:
                socket.close()
                return
            socket.send(question)
            self._events.after(timeouts.QUESTION_REPEAT, ask)

        ask()

    def _calm_down(self) -> None:
        self._world.network.faults = Faults()
        self._disk.free, self._disk.kill_after, self._disk.sync_fails = None, None, False
        self._world.disturbed()
        self._world.note("nothing goes wrong any more")


def role_of(name: str) -> str:
    """Return the role of a process."""
    return name.partition("-")[0]
