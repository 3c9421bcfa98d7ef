"""The head of a run in a process of its own, and synthetic members that say to it whatever a test wants.

Messages of one member are taken in the order in which it sent them. So the answer to a last question comes when all
that was said before has been dealt with, and nobody has to wait for a while and hope.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dpsr_apex.config_files import load_config
from dpsr_apex.processes.discovery import Address
from dpsr_apex.processes.link import ask, ask_terms, request_to_join
from dpsr_apex.processes.onlooker import address_of
from dpsr_apex.processes.weights import squeeze_weights
from dpsr_apex.run.run_directory import RunDirectory, write_config
from dpsr_apex.wire.codec import Frame, decode, encode
from dpsr_apex.wire.messages import (
    Gone,
    Goodbye,
    LearnerState,
    Leave,
    Message,
    Recycle,
    Refused,
    SaveRequest,
    SetRate,
    Stats,
    StatsRequest,
    Welcome,
)
from dpsr_apex.wire.sockets import Client, wait
from tests.system.runs import COMMAND, PATIENCE, eventually

SETTINGS = (
    *("replay.capacity=200", "replay.replace_candidates=16", "replay.recycle_candidates=4", "replay.recycle_period=50"),
    *("learner.learning_starts=50", "learner.batch_size=16", "learner.steps_per_update=0", "learner.device=cpu"),
    *("learner.hidden=[32]", "learner.head=32", "evaluation.episodes=2", "evaluation.max_steps=100"),
    *("run.total_steps=1000000", "run.log_period=100", "run.checkpoint_period=0"),
    *("system.lease=600", "system.recycle_deadline=600"),  # nothing ends because a machine is slow
)

Kind = TypeVar("Kind")


def new_run(path: Path, *settings: str) -> RunDirectory:
    """A run that has not begun: CartPole, small, with these settings besides."""
    run = RunDirectory.create(path)
    write_config(load_config("cartpole", overrides=(*SETTINGS, *settings)), run)
    return run


class Started:
    """A process, and the file that it prints into."""

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
        """All that it has printed, and what was there before."""
        return self._output.read_text(errors="replace")

    @property
    def last_line(self) -> str:
        """The last one that it printed."""
        return self.said.rstrip("\n").rpartition("\n")[2]

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def await_words(self, pattern: str) -> str:
        """The first words that match; waits until it has printed them."""

        def words() -> str | None:
            runs = self.runs
            found = re.search(pattern, self.said)
            assert found or runs, f"it ended with {self.process.returncode}: {self.said}"
            return found[0] if found else None

        return eventually(words)

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it; its exit code."""
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
    """`dpsr-apex` with these arguments, killed in the end if it still runs. What stands in `before` starts it."""
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

    @property
    def address(self) -> Address:
        """Where this machine finds it, with its key if it asks for one."""
        return address_of(self.run)

    @property
    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stats(self) -> dict[str, Any]:
        """How things are."""
        answer = ask(self.address, StatsRequest(), PATIENCE)
        assert isinstance(answer, Stats)
        facts: dict[str, Any] = json.loads(answer.facts)
        return facts

    def traffic(self) -> dict[str, int]:
        """What went through so far."""
        counts: dict[str, int] = self.stats()["traffic"]
        return counts


@contextmanager
def serving(path: Path, *settings: str, bind: str = "127.0.0.1:0", before: Sequence[str] = ()) -> Iterator[Head]:
    """The head of a new run. What stands in `before` starts it."""
    head = Head(new_run(path, *settings), bind, before)
    try:
        head.await_ready()
        yield head
    finally:
        head.kill()


class Visitor:
    """A connection that may say anything."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.client = Client(address.endpoint, address.keys)

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.send_frames(encode(message))

    def send_frames(self, frames: Sequence[Frame]) -> None:
        """As soon as there is room in the queue."""
        eventually(lambda: self.client.send(frames))

    def await_one(self, kind: type[Kind]) -> Kind:
        """The next message of this kind; others before it are passed over."""
        for message in self.listen():
            if isinstance(message, kind):
                return message
            assert not isinstance(message, Refused), message.reason
        raise AssertionError("never reached")

    def listen(self) -> Iterator[Message]:
        """What comes, for as long as it is asked for."""
        deadline = time.monotonic() + PATIENCE
        while True:
            wait([self.client], deadline - time.monotonic())
            frames = self.client.receive()
            assert frames is not None, f"nothing came within {PATIENCE:.0f} s"
            yield decode(frames)

    def say(self, *messages: Message) -> list[Message]:
        """All that comes while these are dealt with."""
        self.send(*messages)
        return self.settle()[0]

    def settle(self) -> tuple[list[Message], dict[str, Any]]:
        """All that comes while what was sent is dealt with, and how things are then."""
        self.send(StatsRequest())
        replies: list[Message] = []
        for message in self.listen():
            if isinstance(message, Stats):
                return replies, json.loads(message.facts)
            replies.append(message)
        raise AssertionError("never reached")

    def stats(self) -> dict[str, Any]:
        """How things are when all that was sent has been dealt with."""
        return self.settle()[1]

    def set_rate(self, steps_per_update: int) -> None:
        """Let the run go on with so many transitions per update."""
        self.send(SetRate(steps_per_update))
        self.await_one(Stats)

    def send_everybody_home(self) -> None:
        """Say that whoever is in the run has died."""
        names = [actor["name"] for actor in self.stats()["actors"]]
        self.say(*map(Gone, [*names, "learner", "evaluator"]))

    def close(self) -> None:
        self.client.close()


class Member(Visitor):
    """One that is in the run."""

    def __init__(self, address: Address, role: str, name: str = "", **changes: Any) -> None:
        super().__init__(address)
        request = request_to_join(ask_terms(address).run_id, role, name or role, "synthetic")
        self.request = request._replace(**changes)
        try:
            self.send(self.request)
            self.welcome = self.await_one(Welcome)
        except BaseException:
            self.close()
            raise

    def leave(self) -> None:
        """Go in order."""
        self.send(Leave(0))
        self.settle()
        self.close()


class SyntheticLearner(Member):
    """A learner whose whole knowledge is one number."""

    STATE = LearnerState('{"updates": 0}', squeeze_weights({"number": np.ones(1)}))

    def __init__(self, address: Address, **changes: Any) -> None:
        super().__init__(address, "learner", **changes)

    def give_state_and_leave(self) -> None:
        """What a head that ends wants of it."""
        self.await_one(SaveRequest)
        self.send(self.STATE)
        self.await_one(Goodbye)
        self.send(Leave(0))
        self.close()


def candidates(messages: Sequence[Message]) -> list[Recycle]:
    """The requests to recycle among these."""
    return [message for message in messages if isinstance(message, Recycle)]
