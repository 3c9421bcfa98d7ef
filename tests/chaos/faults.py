"""The faults of a run under chaos: which ones, when, and how the run recovers from each."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from random import Random

from dpsr_apex import timeouts
from dpsr_apex.protocol.restarts import LIMITS
from tests.chaos.chaotic_run import ACTORS, FAR, ChaoticRun
from tests.chaos.site import Site

ROLES = ("replay", "learner", "evaluator", *(f"actor-{index}" for index in range(ACTORS)), FAR, "supervisor")
PAUSES = (0.5, 2.0, 6.0, 20.0)  # seconds; after the longest, the supervisor restarts a member as frozen
SHORT_PAUSES = PAUSES[:3]  # of the replay and the supervisor, without which nothing is restarted
CUTS = (0.5, 3.0, 8.0)  # seconds; after the longest, the lease of the far actor has expired
FULL = (1.0, 4.0, 8.0)  # seconds
TWO_AT_ONCE = 0.35  # share of faults during which another one happens
GAP = 1.5  # seconds between the beginnings of two faults that overlap, at most
CALM = 2.0  # seconds between a recovery and the next fault, at most
STABLE = timeouts.STABLE_AFTER + 10.0  # seconds without a crash, after which the restart budget is reset


@dataclass
class Record:
    """How often faults of one kind happened, and how long the run took to recover after their ends."""

    count: int = 0
    seconds: list[float] = field(default_factory=list)


class Budget:
    """Keeps to the number of crashes in a row after which a supervisor gives a process up."""

    def __init__(self) -> None:
        self._crashes: dict[str, list[float]] = {}  # times in a row, by name

    def allows(self, name: str) -> bool:
        """Whether this process may crash now; if so, it counts as crashed."""
        if name in (FAR, "supervisor"):  # neither has a supervisor
            return True
        now, crashes = time.monotonic(), self._crashes.get(name, [])
        if crashes and now - crashes[-1] > STABLE:
            crashes = []
        if len(crashes) >= LIMITS[name.partition("-")[0]].crashes - 1:
            return False
        self._crashes[name] = [*crashes, now]
        return True

    def reset(self) -> None:
        """Note that another supervisor begins."""
        self._crashes.clear()


Step = Iterator[float]
"""A fault: a generator that causes it, and yields for how many seconds it lasts before it continues."""


class Chaos:
    """Causes faults, one or two at a time, and waits for the recovery."""

    def __init__(self, run: ChaoticRun, site: Site, rng: Random, tell: Callable[[str], None]) -> None:
        self.records: dict[str, Record] = {}
        self.recoveries: list[float] = []  # seconds; one for all faults that overlap
        self._run = run
        self._site = site
        self._rng = rng
        self._tell = tell
        self._budget = Budget()
        self._killed: dict[str, int] = {}  # process ids that must be replaced, by name
        self._is_disk_full = False
        self._began = time.monotonic()

    def continue_until(self, deadline: float) -> None:
        """Cause faults until this time, and recover from the last one."""
        while time.monotonic() < deadline:
            self.cause([self._choose() for _ in range(2 if self._rng.random() < TWO_AT_ONCE else 1)])
            self._run.wait(self._rng.uniform(0.0, CALM))

    def cause(self, faults: list[tuple[str, Step]]) -> None:
        """Let these faults begin one after the other, wait until they are over and until the run has recovered."""
        self._killed.clear()
        begun: list[tuple[float, str, Step]] = []
        for kind, fault in faults:
            self._run.wait(self._rng.uniform(0.0, GAP) if begun else 0.0)
            seconds = next(fault, None)
            if seconds is not None:  # it was possible
                begun.append((time.monotonic() + seconds, kind, fault))
        for until, _, fault in sorted(begun, key=itemgetter(0)):
            self._run.wait(until - time.monotonic())
            next(fault, None)
        if begun:
            self._recover([kind for _, kind, _ in begun])

    def _recover(self, kinds: list[str]) -> None:
        began = time.monotonic()
        self._run.await_progress(self._killed)
        seconds = time.monotonic() - began
        self.recoveries.append(seconds)
        for kind in kinds:
            record = self.records.setdefault(kind, Record())
            record.count += 1
            record.seconds.append(seconds)
        stats = self._run.stats
        at = f" (t = {stats.t:,}, {stats.rate.batches:,} updates)" if stats else ""
        self._tell(f"{began - self._began:7.1f} s  {', '.join(kinds)}: recovered in {seconds:.1f} s{at}")

    def _choose(self) -> tuple[str, Step]:
        """Return one fault, which has not begun."""
        kinds = [*["kill"] * 9, *["stop"] * 6, "all"]
        kinds += ["link"] * 2 if self._site.far else []
        kinds += ["disk"] * 2 if self._site.disk else []
        role = self._rng.choice([*ROLES, "replay", "replay"])
        match self._rng.choice(kinds):
            case "kill" if role == "supervisor":
                return "kill -9 supervisor, resume", self.kill_supervisor()
            case "kill":
                return f"kill -9 {_shown(role)}", self.kill(role)
            case "stop":
                return f"SIGSTOP {_shown(role)}", self.pause(role)
            case "link":
                return "link cut", self.cut_link()
            case "disk":
                return "disk full", self.fill_disk()
        return "kill -9 all, resume", self.kill_all()

    # The faults.

    def kill(self, role: str) -> Step:
        """Kill a process; its supervisor restarts it."""
        pid = self._run.pid(role)
        if pid is None or not self._budget.allows(role):
            return
        self._killed[role] = pid
        _signal(pid, signal.SIGKILL)
        yield 0.0

    def pause(self, role: str) -> Step:
        """Suspend a process for a while."""
        is_short = role in ("replay", "supervisor") or not self._budget.allows(role)
        pid, seconds = self._run.pid(role), self._rng.choice(SHORT_PAUSES if is_short else PAUSES)
        if pid is None:
            return
        _signal(pid, signal.SIGSTOP)
        yield seconds
        _signal(pid, signal.SIGCONT)

    def kill_supervisor(self) -> Step:
        """Kill the command, whose processes save and end, and continue the run."""
        if self._is_disk_full:
            return  # it could not be saved in order
        self._run.kill_supervisor()
        self._resume()
        yield 0.0

    def kill_all(self) -> Step:
        """Kill everything on the head's machine at once, and continue the run."""
        if self._is_disk_full:
            return  # its user makes space first
        self._run.kill_everything()
        self._resume()
        yield 0.0

    def _resume(self) -> None:
        self._budget.reset()
        self._killed.clear()
        self._run.resume()

    def cut_link(self) -> Step:
        """Unplug the machine of the far actor."""
        assert self._site.far
        self._site.far.cut()
        yield self._rng.choice(CUTS)
        self._site.far.heal()

    def fill_disk(self) -> Step:
        """Leave no space on the disk of the run for a while."""
        assert self._site.disk
        self._site.disk.fill()
        self._is_disk_full = True
        yield self._rng.choice(FULL)
        self._site.disk.free()
        self._is_disk_full = False


def _shown(role: str) -> str:
    return "far actor" if role == FAR else role.partition("-")[0]


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, number)
