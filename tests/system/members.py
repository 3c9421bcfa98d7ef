"""The head of a run in its own process, and synthetic members that send it whatever a test wants.

Messages of one member are handled in the order in which it sent them. So the answer to a last request arrives after
everything sent before has been handled, and no test has to sleep.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dpsr_apex.config_files import load_config
from dpsr_apex.processes.discovery import Address, FileRegistry, find_head
from dpsr_apex.processes.link import ask_terms, request_to_join
from dpsr_apex.processes.statistics import ask_stats
from dpsr_apex.processes.weights import pack_weights
from dpsr_apex.record.run_directory import RunDirectory, RunDirectoryError, write_config
from dpsr_apex.wire.addresses import port_of
from dpsr_apex.wire.codec import Frame, decode, encode
from dpsr_apex.wire.messages import (
    OWNER,
    Gone,
    Goodbye,
    Hello,
    LearnerState,
    Leave,
    Message,
    Recycle,
    Refused,
    SaveRequest,
    SetRate,
    Stats,
    StatsRequest,
    Terms,
    Welcome,
)
from dpsr_apex.wire.sockets import ClientSocket, wait
from tests.system.runs import COMMAND, PATIENCE, eventually

SETTINGS = (
    *("replay.capacity=200", "replay.replace_candidates=16", "replay.recycle_candidates=4", "replay.recycle_period=50"),
    *("learner.learning_starts=50", "learner.batch_size=16", "learner.steps_per_update=0", "learner.device=cpu"),
    *("actor.n_steps=3", "learner.hidden=[32]", "learner.head=32", "evaluation.episodes=2", "evaluation.max_steps=100"),
    *("run.total_steps=1000000", "run.log_period=100", "run.checkpoint_period=0"),
    *("system.lease=600", "system.recycle_deadline=600"),  # no timeout on a slow machine
)

Kind = TypeVar("Kind")


def new_run(path: Path, *settings: str) -> RunDirectory:
    """Create a small CartPole run with these additional settings, without starting it."""
    run = RunDirectory.create(path)
    write_config(load_config("cartpole", base="paper", overrides=(*SETTINGS, *settings)), run)
    return run


class Started:
    """A process, and the file with its output."""

    def __init__(
        self,
        output: Path,
        command: Sequence[str | Path],
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._output = output
        with output.open("ab") as stream:
            self.process = subprocess.Popen(
                command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
            )

    @property
    def said(self) -> str:
        """The content of the file."""
        return self._output.read_text(errors="replace")

    @property
    def last_line(self) -> str:
        """The last line that it printed."""
        return self.said.rstrip("\n").rpartition("\n")[2]

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def await_words(self, pattern: str) -> str:
        """Wait until it has printed text that matches; return that text."""

        def words() -> str | None:
            runs = self.runs
            found = re.search(pattern, self.said)
            assert found or runs, f"it ended with {self.process.returncode}: {self.said}"
            return found[0] if found else None

        return eventually(words)

    def wait(self) -> int:
        """Return its exit code."""
        return self.process.wait(PATIENCE)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal; return its exit code."""
        self.process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        if self.runs:
            self.process.kill()
        self.process.wait()


@contextmanager
def started(
    output: Path, *arguments: str | Path, before: Sequence[str] = (), cwd: Path | None = None
) -> Iterator[Started]:
    """Run `dpsr-apex` with these arguments, and kill it in the end; `before` is a prefix of the command."""
    command = Started(output, [*before, COMMAND, *arguments], cwd)
    try:
        yield command
    finally:
        command.kill()


class Head(Started):
    """`dpsr-apex replay` for a run directory."""

    def __init__(self, run: RunDirectory, bind: str, before: Sequence[str]) -> None:
        self.run = run
        run.connection.unlink(missing_ok=True)
        command: list[str | Path] = [*before, COMMAND, "replay", "--run-dir", run.path, "--bind", bind]
        super().__init__(run.logs / "replay.log", command)

    def await_ready(self) -> None:
        """Wait until it listens."""

        def listens() -> bool:
            assert self.runs, f"it ended with {self.process.returncode}: {self.said}"
            return self.run.connection.exists()

        eventually(listens)

    def address(self, role: str) -> Address:
        """Its address on this machine, with the keys of this role."""
        return address_of(self.run, role)

    @property
    def host_and_port(self) -> str:
        """Its address as it is given to `--connect`."""
        return self.address(OWNER).endpoint.removeprefix("tcp://")

    def connect(self, role: str) -> tuple[str | Path, ...]:
        """The options with which a process of this role connects to it."""
        return "--connect", self.host_and_port, "--key", self.run.key_of(role)

    @property
    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stats(self) -> Stats:
        """The statistics."""
        return stats_of(self.run, PATIENCE)

    def traffic(self) -> dict[str, int]:
        """The counters of traffic, by name."""
        return self.stats().traffic.counts()


def address_of(run: RunDirectory, role: str) -> Address:
    """Return the address of the head of a run, with the keys of this role; raise RunDirectoryError if it has none."""
    found = find_head(FileRegistry(run.connection), run.key_of(role), role)
    if found is None:
        raise RunDirectoryError(f"{run.path} has no head")
    return found.address


def stats_of(run: RunDirectory, seconds: float = 2.0) -> Stats:
    """Return the statistics of a run, from its head."""
    return ask_stats(address_of(run, OWNER), StatsRequest(), seconds)


def set_rate(run: RunDirectory, steps_per_update: int) -> None:
    """Set the number of transitions per update of a run."""
    ask_stats(address_of(run, OWNER), SetRate(steps_per_update), PATIENCE)


def await_members(stats: Callable[[], Stats], *actors: str, joins: int) -> Stats:
    """Wait until a learner and these actors are members, and `joins` processes have joined; return the statistics."""

    def all_joined() -> Stats | None:
        found = stats()
        is_complete = found.learner is not None and {actor.name for actor in found.actors} >= set(actors)
        return found if is_complete and found.traffic.joins >= joins else None

    return eventually(all_joined)


@contextmanager
def serving(path: Path, *settings: str, bind: str = "127.0.0.1:0", before: Sequence[str] = ()) -> Iterator[Head]:
    """Start the head of a new run, and kill it in the end; `before` is a prefix of the command."""
    with serving_run(new_run(path, *settings), bind, before) as head:
        yield head


@contextmanager
def serving_run(run: RunDirectory, bind: str = "127.0.0.1:0", before: Sequence[str] = ()) -> Iterator[Head]:
    """Start the head of this run, and kill it in the end."""
    head = Head(run, bind, before)
    try:
        head.await_ready()
        yield head
    finally:
        head.kill()


class Visitor:
    """A connection with the key of a role, over which anything can be sent; `host`: if the head is on another one."""

    def __init__(self, run: RunDirectory, role: str, host: str = "127.0.0.1") -> None:
        self.run = run
        address = address_of(run, role)
        self.address = address._replace(endpoint=f"tcp://{host}:{port_of(address.endpoint)}")
        self.client = ClientSocket(*self.address)

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.send_frames(encode(message))

    def send_frames(self, frames: Sequence[Frame]) -> None:
        """Send them as soon as the queue is not full."""
        eventually(lambda: self.client.send(frames))

    def await_one(self, kind: type[Kind]) -> Kind:
        """Return the next message of this kind; others before it are skipped."""
        for message in self.listen():
            if isinstance(message, kind):
                return message
            assert not isinstance(message, Refused), message.reason
        raise AssertionError("never reached")

    def listen(self) -> Iterator[Message]:
        """Yield messages as they arrive."""
        deadline = time.monotonic() + PATIENCE
        while True:
            wait([self.client], deadline - time.monotonic())
            if (frames := self.client.receive()) is not None:
                yield decode(frames)
            assert time.monotonic() < deadline, f"no message within {PATIENCE:.0f} s"

    def say(self, *messages: Message) -> list[Message]:
        """Send these; return all messages that arrive until they are handled."""
        self.send(*messages)
        return self.settle()

    def settle(self) -> list[Message]:
        """Return all messages that arrive until everything sent is handled."""
        self.send(Hello())
        replies: list[Message] = []
        for message in self.listen():
            if isinstance(message, Terms):
                return replies
            replies.append(message)
        raise AssertionError("never reached")

    def stats(self) -> Stats:
        """Return the statistics after everything sent is handled."""
        self.settle()
        return stats_of(self.run, PATIENCE)

    def close(self) -> None:
        self.client.close()


class Member(Visitor):
    """A member of the run."""

    def __init__(self, run: RunDirectory, role: str, name: str = "", **changes: Any) -> None:
        super().__init__(run, role)
        request = request_to_join(ask_terms(self.address).run_id, role, name or role, "synthetic")
        self.request = request._replace(**changes)
        try:
            self.send(self.request)
            self.welcome = self.await_one(Welcome)
        except BaseException:
            self.close()
            raise

    def leave(self) -> None:
        """Leave, and close the connection."""
        self.send(Leave(0))
        self.settle()
        self.close()

    def leave_ending_head(self) -> None:
        """Leave a head that ends as soon as all members have left, and may not answer any more."""
        self.send(Leave(0))
        self.close()


class SyntheticLearner(Member):
    """A learner whose state is a single number."""

    STATE = LearnerState('{"updates": 0}', pack_weights({"number": np.ones(1)}))

    def __init__(self, run: RunDirectory, **changes: Any) -> None:
        super().__init__(run, "learner", **changes)

    def await_request(self, state: LearnerState = STATE) -> LearnerState:
        """Wait for a request for the state, and return this one as its answer."""
        era, number = self.await_one(SaveRequest)
        return state._replace(era=era, request=number)

    def give_state_and_leave(self) -> None:
        """Answer a head that is ending."""
        self.send(self.await_request())
        self.await_one(Goodbye)
        self.leave_ending_head()


def end_all_members(run: RunDirectory) -> None:
    """Report the end of all members, as a supervisor does."""
    with closing(Visitor(run, OWNER)) as owner:
        owner.say(*map(Gone, [*(actor.name for actor in owner.stats().actors), "learner", "evaluator"]))


def candidates(messages: Sequence[Message]) -> list[Recycle]:
    """Return the requests to recycle among these."""
    return [message for message in messages if isinstance(message, Recycle)]
