"""What the handlers of all pages share: the runs, the open ones, and the emulator processes."""

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
from dpsr_apex.web.desk import Described, Desk
from dpsr_apex.web.pool import Pool
from dpsr_apex.web.runs import Runs

DESKS = 12  # runs that are kept open, and as many more as are in use
DESK_IN_USE = 10.0  # seconds since the last use; a page that shows a run uses it every few seconds
DESK_IDLE = 900.0  # seconds, after which a run is closed

_Result = TypeVar("_Result")


@dataclass
class State:
    """What the handlers share."""

    runs: Runs
    pool: Pool
    desks: dict[str, Desk] = field(default_factory=dict)
    streams: int = 0
    ending: asyncio.Event = field(default_factory=asyncio.Event)  # set when the server is being stopped

    async def pause(self, seconds: float) -> None:
        """Wait for so long, or until the server is being stopped."""
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

    async def desk(self, name: str) -> Desk:
        """Return the desk of a run, opened now if it is not open yet."""
        if name not in self.desks:
            run = await asyncio.to_thread(self.runs.open, name)
            self._close_some()
            self.desks.setdefault(name, Desk(name, run))
        desk = self.desks[name]
        desk.used_at = time.monotonic()
        return desk

    def _close_some(self) -> None:
        """Close runs that were not used for long and, if there are many, those that were used least recently."""
        by_use = sorted(self.desks.values(), key=lambda desk: desk.used_at)
        too_many = len(by_use) - DESKS + 1
        for place, desk in enumerate(by_use):
            if time.monotonic() - desk.used_at > (DESK_IN_USE if place < too_many else DESK_IDLE):
                self.desks.pop(desk.name).close()

    async def described(self, desk: Desk) -> Described:
        """Return the description of a run's environment, from an emulator if it is not known yet."""
        async with desk.describing:
            if desk.described is None:
                desk.described = await self.unless_ending(self._describe(desk))
            return desk.described

    async def _describe(self, desk: Desk) -> Described:
        emulator = await self.pool.acquire()
        is_clean = False
        try:
            found = await emulator.ask("open", "opened", run=str(desk.run.path))
            is_clean = True
        finally:
            self.pool.release(emulator, is_clean=is_clean)
        facts = {name: value for name, value in found.head.items() if name not in ("event", "sizes")}
        return Described(facts, FrameCodec(tuple(facts["shape"]), facts["dtype"]))


def state_of(connection: HTTPConnection) -> State:
    """Return what the handlers share."""
    state: State = connection.app.state.explorer
    return state


async def desk_of(request: Request) -> Desk:
    """Return the desk of the run that the address names."""
    return await state_of(request).desk(request.path_params["run"])


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
