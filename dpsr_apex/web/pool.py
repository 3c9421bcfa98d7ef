"""The emulator processes: one per viewer, limited in number, and ended when they are no longer needed.

One is kept ready, because starting one takes seconds. A process that has served a viewer serves no other viewer.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Coroutine, Sequence
from typing import Any

from dpsr_apex.web import Refusal
from dpsr_apex.web.channel import BrokenChannel, Message, framed, pack, read_message, unpack

IDLE = 600.0  # seconds without a command, after which an emulator ends
READY = 120.0  # seconds for a new process to be ready; a busy machine takes long
LEAVE = 2.0  # seconds for a process to end after its channel was closed, before it is killed
# -P: nothing is imported from the current directory by accident, only what a run's config names.
COMMAND = (sys.executable, "-P", "-m", "dpsr_apex.web.emulator")
_KEPT = 64 * 1024  # bytes of its standard error, for the reason of a crash


class Emulator:
    """One emulator process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._errors = b""
        self._reader = asyncio.create_task(self._read_errors())
        self.used_at = time.monotonic()

    @classmethod
    async def start(cls) -> Emulator:
        """Start a process and wait until it is ready."""
        emulator = cls(await asyncio.create_subprocess_exec(*COMMAND, stdin=PIPE, stdout=PIPE, stderr=PIPE))
        try:
            async with asyncio.timeout(READY):
                await emulator.receive()
        except BaseException:
            await emulator.end()
            raise
        return emulator

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    async def send(self, command: str, parts: Sequence[bytes] = (), **arguments: Any) -> None:
        """Send a command; an emulator that has ended ignores it."""
        assert self._process.stdin is not None
        self.used_at = time.monotonic()
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(framed(pack({"do": command} | arguments, parts)))
            await self._process.stdin.drain()

    async def receive(self) -> bytes:
        """Return its next message; raise BrokenChannel, with the reason, when it has ended."""
        assert self._process.stdout is not None
        try:
            return await read_message(self._process.stdout)
        except BrokenChannel as error:
            raise BrokenChannel(await self._cause()) from error

    async def ask(self, command: str, answer: str, parts: Sequence[bytes] = (), **arguments: Any) -> Message:
        """Send a command, and return the event `answer`; raise Refusal for a problem, or if it ends."""
        await self.send(command, parts, **arguments)
        while True:
            try:
                message = unpack(await self.receive())
            except BrokenChannel as error:
                raise Refusal(502, str(error)) from error
            if message.head["event"] == answer:
                return message
            if message.head["event"] in ("problem", "crashed"):
                raise Refusal(409, message.head["reason"])

    async def end(self) -> None:
        """End the process: at once if it does not notice that its channel is closed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(LEAVE):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await self._drain()

    async def _drain(self) -> None:
        """Read its output to the end, which closes the pipes; not for long, a process that it started may hold them."""
        assert self._process.stdout is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE):
                await asyncio.gather(self._process.stdout.read(), self._reader)

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while read := await self._process.stderr.read(4096):
            self._errors = (self._errors + read)[-_KEPT:]

    async def _cause(self) -> str:
        """Return why the process has ended, in one line."""
        code = await self._process.wait()
        await asyncio.wait([self._reader], timeout=LEAVE)  # what it wrote last may arrive after its end
        lines = self._errors.decode(errors="replace").strip().splitlines()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"The emulator has ended ({how}){f': {lines[-1]}' if lines and code > 0 else ''}."


class Pool:
    """Starts at most `most` emulators, counting the one that is kept ready."""

    def __init__(self, most: int, idle: float = IDLE) -> None:
        self.most = most
        self.idle = idle
        self._used: set[Emulator] = set()
        self._taken = 0  # processes of viewers, including those that are starting or ending
        self._spare: asyncio.Task[Emulator] | None = None
        self._spare_at = 0.0  # when it was last wanted
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def count(self) -> int:
        """The number of processes, including those that are starting or ending."""
        return self._taken + (self._spare is not None)

    def warm_up(self) -> None:
        """Start the process that is kept ready, unless there are as many as permitted."""
        self._spare_at = time.monotonic()
        if self._spare is None and self._taken < self.most:
            self._spare = asyncio.create_task(Emulator.start())

    async def acquire(self) -> Emulator:
        """Return a process for one viewer; raise Refusal if all are in use or none can be started."""
        while self._taken >= self.most and self._ending:
            await asyncio.wait(self._ending, return_when=asyncio.FIRST_COMPLETED)
        if self._taken >= self.most:
            raise Refusal(503, f"All {self.most} emulators are in use. Close another moment first.")
        self._taken += 1
        try:
            emulator = await self._ready()
        except BaseException:
            self._taken -= 1
            raise
        self._used.add(emulator)
        return emulator

    async def _ready(self) -> Emulator:
        """Return the process that is kept ready, or else a new one."""
        while True:
            starting, self._spare = self._spare or asyncio.create_task(Emulator.start()), None
            try:
                emulator = await asyncio.shield(starting)
            except asyncio.CancelledError:
                self._in_background(_end(starting))
                raise
            except (OSError, TimeoutError, BrokenChannel) as error:
                raise Refusal(503, f"No emulator could be started: {error}") from error
            if emulator.is_alive:
                return emulator
            await emulator.end()  # it was kept ready for long, and has ended

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def release(self, emulator: Emulator, *, is_clean: bool = False) -> None:
        """End a viewer's process, and keep another one ready: this one if nobody has used it yet."""
        if is_clean and emulator.is_alive and self._spare is None:
            self._used.discard(emulator)
            self._taken -= 1
            self._spare_at = time.monotonic()
            self._spare = asyncio.create_task(_at_once(emulator))
        else:
            self._in_background(self._replace(emulator))

    async def _replace(self, emulator: Emulator) -> None:
        await emulator.end()
        self._used.discard(emulator)
        self._taken -= 1  # only now, so that there are never more processes than permitted
        if not self._is_closed:
            self.warm_up()

    async def end_idle(self) -> None:
        """End the process that is kept ready, if nobody has wanted one for a while."""
        if self._spare and self._spare.done() and time.monotonic() - self._spare_at > self.idle:
            spare, self._spare = self._spare, None
            await _end(spare)

    async def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        spare, self._spare = [self._spare] if self._spare else [], None
        await asyncio.gather(*self._ending, *map(_end, spare))
        await asyncio.gather(*(emulator.end() for emulator in self._used))
        self._used.clear()
        self._taken = 0


async def _at_once(emulator: Emulator) -> Emulator:
    return emulator


async def _end(starting: asyncio.Task[Emulator]) -> None:
    """End a process, also one that is not ready yet."""
    starting.cancel()  # without effect if it is ready
    with contextlib.suppress(OSError, TimeoutError, BrokenChannel, asyncio.CancelledError):
        await (await starting).end()
