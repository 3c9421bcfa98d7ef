"""A run under chaos: its command, its processes, an actor on another machine, and what is observed from outside."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

from dpsr_apex.processes.discovery import FileRegistry
from dpsr_apex.processes.link import ReplayLost
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError
from dpsr_apex.wire.keys import BadKeyFile
from dpsr_apex.wire.messages import ACTOR, Stats
from tests.chaos.chaos_tasks import LEDGERS
from tests.chaos.history import Account, Archive, judge
from tests.chaos.site import Site
from tests.system.members import Started
from tests.system.runs import COMMAND, Run

ACTORS = 2  # on the machine of the head
FAR = "far"  # the actor on the other machine
SETTINGS = (
    *("replay.capacity=1000", "replay.replace_candidates=32", "replay.recycle_candidates=8"),
    *("replay.recycle_period=100", "learner.learning_starts=200", "learner.batch_size=16", "learner.device=cpu"),
    *("learner.steps_per_update=8", "learner.hidden=[32]", "learner.head=32"),
    *("evaluation.episodes=1", "evaluation.max_steps=100", "system.lease=5", "system.rate_tolerance=500"),
    *(
        "run.log_period=500",
        "run.checkpoint_period=1000",
        "run.learner_state_period=200",
        "env.name=chaos_tasks:Tagged",
    ),
)
STEPS = 10**9  # so that it never ends by itself
POLL = 0.1  # seconds
PATIENCE = 180.0  # seconds in which a run must recover
END_SECONDS = 60.0  # for a run on a busy machine to stop


class RunEnded(AssertionError):
    """The run has ended by itself, or did not recover."""


class ChaoticRun:
    """The run; `poll` must be called all the time."""

    def __init__(self, site: Site, outside: Path, durability: str) -> None:
        """`outside` is a folder on another disk, for what must survive whatever happens to the run."""
        self.site = site
        self.outside = outside
        self.directory = RunDirectory(site.folder / "run")
        self.greatest_t = 0
        self.resumes = 0
        self.stats: Stats | None = None  # the newest ones
        self.updates = 0  # greatest number so far
        self._archive_folder = site.folder / "archive"
        self._archive = Archive(self.directory.journal, self._archive_folder)
        self._far: Started | None = None
        self._far_started_at = 0.0
        self._ledgers = outside / "ledgers"
        self._ledgers.mkdir()
        shutil.copy(Path(__file__).with_name("chaos_tasks.py"), site.folder)
        self._environment = patch.dict(os.environ, {LEDGERS: str(self._ledgers)})
        self._environment.start()
        settings = [f"--set={setting}" for setting in (*SETTINGS, f"run.durability={durability}")]
        words = ["--base=paper", "--actors", str(ACTORS), "--steps", str(STEPS), "--run-dir", str(self.directory.path)]
        self.run = self._start("train", "cartpole", *words, *settings)

    def _start(self, *words: str) -> Run:
        bind = f"{self.site.near.address}:5555" if self.site.near else "127.0.0.1:0"
        command = [*words, "--bind", bind]
        return Run(self.directory.path, command, self.site.on(self.site.near), outputs=self.outside)

    # Observing.

    def poll(self) -> Stats | None:
        """Keep the archive and the far actor up to date; return the statistics, None if there is no answer."""
        self._archive.update()
        if (code := self.run.process.poll()) is not None:
            raise RunEnded(f"the run has ended by itself, with {code}:\n{self.run.said}{self.run.complained}")
        self._keep_far()
        self.stats = None
        with suppress(ReplayLost, RunDirectoryError, BadKeyFile, FileNotFoundError), self.site.sockets():
            self.stats = self.run.stats()
        if self.stats:
            if self.stats.t < self.greatest_t:
                raise RunEnded(f"the clock went back from {self.greatest_t:,} to {self.stats.t:,}")
            self.greatest_t = self.stats.t
            self.updates = max(self.updates, self.stats.rate.batches)
        return self.stats

    def wait(self, seconds: float) -> None:
        """Let the run continue for this time."""
        self.eventually(lambda _: False, seconds)

    def eventually(self, condition: Callable[[Stats], bool], seconds: float) -> bool:
        """Return whether the condition became true for the statistics of the run in this time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            stats = self.poll()
            if stats and condition(stats):
                return True
            time.sleep(POLL)
        return False

    def await_progress(self, replaced: dict[str, int]) -> None:
        """Wait until everyone is a member, acts and trains again; `replaced` are processes that must not run any more.

        Both the clock and the updates must advance, and each actor must send.
        """
        first: list[Stats] = []
        problem = "the replay does not answer"

        def has_recovered(stats: Stats) -> bool:
            nonlocal problem
            problem = self._missing(stats, replaced)
            if problem:
                first.clear()
                return False
            first.append(stats)
            before = {actor.name: actor.sent for actor in first[0].actors}
            is_sending = all(actor.sent > before.get(actor.name, 0) for actor in stats.actors)
            if not (is_sending and stats.t > first[0].t and stats.rate.batches > first[0].rate.batches):
                problem = "nothing is inserted, an actor sends nothing, or nothing is trained"
                return False
            return True

        if not self.eventually(has_recovered, PATIENCE):
            raise RunEnded(f"no recovery within {PATIENCE:.0f} s: {problem}\n{self.run.said}{self.run.complained}")

    def _missing(self, stats: Stats, replaced: dict[str, int]) -> str:
        """Return what is not as it should be; empty if everyone is there."""
        actors = {f"actor-{index}" for index in range(ACTORS)} | {FAR}
        silent = [name for name, seconds in stats.heard.items() if seconds > 2.0]
        if missing := actors - {actor.name for actor in stats.actors}:
            return f"{', '.join(sorted(missing))} did not join"
        if silent:
            return f"{', '.join(silent)} are silent"
        names = ["replay", "learner", "evaluator", *sorted(actors - {FAR})]
        children = {name: self.pid(name) for name in names}
        return next((f"{name} does not run" for name, pid in children.items() if pid in (None, replaced.get(name))), "")

    # Processes.

    def pid(self, name: str) -> int | None:
        """Return the process id of a role, the far actor or the supervisor; None if it does not run."""
        if name == "supervisor":
            return self.run.process.pid
        if name == FAR:
            return self._far.process.pid if self._far and self._far.runs else None
        child = self.run.child(name)
        return child.pid if child else None

    def kill_everything(self) -> None:
        """Kill all processes on the machine of the head."""
        self.run.kill_all()

    def kill_supervisor(self) -> None:
        """Kill the command itself; its processes save and end by themselves."""
        self.run.process.kill()
        self.run.process.wait()

    def resume(self) -> None:
        """Continue the run with another command, as its user would."""
        self.resumes += 1
        self.run = self._start("resume", str(self.directory.path))

    def _keep_far(self) -> None:
        """Start the far actor, unless it runs or was started a moment ago."""
        if (self._far and self._far.runs) or time.monotonic() < self._far_started_at + 1.0:
            return
        head = FileRegistry(self.directory.connection).look_up()
        if head is None:
            return
        self._far_started_at = time.monotonic()
        address = head.endpoint.removeprefix("tcp://")
        actor: list[str | Path] = [COMMAND, "actor", "--connect", address, "--key", self._carried_key(), "--name", FAR]
        self._far = Started(self.outside / "far.log", [*self.site.on(self.site.far), *actor], cwd=self.site.folder)

    def _carried_key(self) -> Path:
        return Path(shutil.copy2(self.directory.key_of(ACTOR), self.outside / "carried.key"))

    # The end.

    def stop(self) -> None:
        """Stop the run in order, and wait for its end."""
        self.run.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + END_SECONDS
        while self.run.process.poll() is None and time.monotonic() < deadline:
            self._archive.update()
            time.sleep(POLL)
        code = self.run.process.poll()
        if code != 130:
            raise RunEnded(f"the run was told to stop, and ended with {code}:\n{self.run.said}{self.run.complained}")
        if self._far:
            self._far.end(signal.SIGTERM)

    def judge(self) -> Account:
        """Return what became of the transitions, after `stop`."""
        self._archive.merge(self.outside / "journal")
        return judge(self.directory, self.outside / "journal", sorted(self._ledgers.glob("*.ledger")))

    def close(self) -> None:
        """End whatever is still running."""
        if self._far:
            self._far.kill()
        self.run.kill_all()
        self._environment.stop()
