"""The state that all handlers share: the runs, the open ones, and the emulator processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, HTTPConnection, Request

from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.web import Refusal
from dpsr_apex.web.open_run import Described, OpenRun
from dpsr_apex.web.pool import Pool
from dpsr_apex.web.runs import Runs

RUNS_OPEN = 12  # runs that are kept open, and as many more as are in use
RUN_IN_USE = 10.0  # seconds since the last use; a page that shows a run uses it every few seconds
RUN_IDLE = 900.0  # seconds, after which a run is closed

_Result = TypeVar("_Result")


@dataclass
class State:
    """The state that all handlers share."""

    runs: Runs
    pool: Pool
    open_runs: dict[str, OpenRun] = field(default_factory=dict)
    streams: int = 0
    ending: asyncio.Event = field(default_factory=asyncio.Event)  # set when the server is being stopped

    async def pause(self, seconds: float) -> None:
        """Wait for this time, or until the server is being stopped."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.ending.wait(), seconds)

    async def unless_ending(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Return the result of some work that may take seconds; raise Refusal if the server is stopped meanwhile."""
        task, ending = asyncio.create_task(work), asyncio.create_task(self.ending.wait())
        try:
            if not self.ending.is_set():
                await asyncio.wait((task, ending), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Refusal(503, "The explorer is being stopped.")
            return await task
        finally:
            task.cancel()
            ending.cancel()

    async def open_run(self, name: str) -> OpenRun:
        """Return the open run of this name; open it if necessary."""
        if name not in self.open_runs:
            run = await asyncio.to_thread(self.runs.open, name)
            self._close_some()
            self.open_runs.setdefault(name, OpenRun(name, run))
        opened = self.open_runs[name]
        opened.used_at = time.monotonic()
        return opened

    def _close_some(self) -> None:
        """Close runs that were not used for long and, if there are many, those that were used least recently."""
        by_use = sorted(self.open_runs.values(), key=lambda opened: opened.used_at)
        too_many = len(by_use) - RUNS_OPEN + 1
        for place, opened in enumerate(by_use):
            if time.monotonic() - opened.used_at > (RUN_IN_USE if place < too_many else RUN_IDLE):
                self.open_runs.pop(opened.name).close()

    async def described(self, opened: OpenRun) -> Described:
        """Return the description of a run's environment, from an emulator if it is not known yet."""
        async with opened.describing:
            if opened.described is None:
                opened.described = await self.unless_ending(self._describe(opened))
            return opened.described

    async def _describe(self, opened: OpenRun) -> Described:
        emulator = await self.pool.acquire()
        is_clean = False
        try:
            found = await emulator.ask("open", "opened", run=str(opened.run.path))
            is_clean = True
        finally:
            self.pool.release(emulator, is_clean=is_clean)
        facts = {name: value for name, value in found.head.items() if name not in ("event", "sizes")}
        return Described(facts, FrameCodec(tuple(facts["shape"]), facts["dtype"]))


def state_of(connection: HTTPConnection) -> State:
    """Return the state that all handlers share."""
    state: State = connection.app.state.explorer
    return state


async def open_run_of(request: Request) -> OpenRun:
    """Return the open run that the address names."""
    return await state_of(request).open_run(request.path_params["run"])


def source_of(request: Request) -> str:
    """Return the source of transitions that the address names; empty for the newest one."""
    return request.query_params.get("at", "")[:40]


async def body_of(request: Request) -> dict[str, Any]:
    """Return the JSON object in a request."""
    try:
        given = json.loads(await request.body())
    except (ValueError, RecursionError, ClientDisconnect):  # the last if it is too long
        given = None
    if not isinstance(given, dict):
        raise Refusal(400, "The request must contain a JSON object.")
    return given
