"""The WebSocket of one viewer: commands from the browser to an emulator process, and frames back.

Each connection has its own process. What a viewer sends is checked here; runs and weights are looked up by name, so no
path ever comes from outside.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from dpsr_apex.web import Refusal
from dpsr_apex.web.channel import BrokenChannel, encode_transition, pack
from dpsr_apex.web.open_run import OpenRun
from dpsr_apex.web.pool import Emulator
from dpsr_apex.web.state import State
from dpsr_apex.web.weights import Weights, weights_of

CHECK_EVERY = 5.0  # seconds between two checks for an idle viewer

PLAIN: Final[dict[str, dict[str, type | tuple[type, ...]]]] = {  # commands that are forwarded, and their arguments
    "try": {},
    "play": {"speed": str},
    "pause": {},
    "step": {},
    "drive": {"who": str},
    "keys": {"action": (int, type(None))},
    "branch": {"frame": int},
    "saliency": {"on": bool},
    "save": {},
}
WORDS: Final = {"speed": ("slow", "real", "fast", "most"), "who": ("agent", "you")}


class Viewer:
    """One connection."""

    def __init__(self, websocket: WebSocket, opened: OpenRun, state: State) -> None:
        self._websocket = websocket
        self._opened = opened
        self._pool = state.pool
        self._open_run = state.open_run
        self._ending = state.ending
        self._unless_ending = state.unless_ending

    async def serve(self) -> None:
        """Serve the viewer until it leaves, is idle for long, its emulator ends, or the server is being stopped."""
        await self._websocket.accept()
        try:
            emulator = await self._unless_ending(self._pool.acquire())
        except Refusal as refusal:
            await self._notify("refused", reason=refusal.reason)
            await self._websocket.close(1013)
            return
        tasks = [
            asyncio.create_task(work)
            for work in (
                *(self._to_emulator(emulator), self._to_browser(emulator), self._until_idle(emulator)),
                self._ending.wait(),
            )
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            self._pool.release(emulator)  # does not wait: this may run while the connection is being cancelled
        if self._ending.is_set():
            await self._websocket.close(1001)

    async def _to_emulator(self, emulator: Emulator) -> None:
        """Forward commands until the viewer leaves."""
        try:
            await emulator.send("open", run=str(self._opened.run.path))
            while True:
                text = await self._websocket.receive_text()
                try:
                    await self._forward(emulator, _command(text))
                except Refusal as refusal:
                    await self._notify("problem", reason=refusal.reason)
        except (WebSocketDisconnect, KeyError):  # KeyError: bytes instead of text
            return

    async def _to_browser(self, emulator: Emulator) -> None:
        """Forward events until the emulator ends."""
        try:
            while True:
                await self._websocket.send_bytes(await emulator.receive())
        except BrokenChannel as error:
            await self._notify("crashed", reason=str(error))
            await self._websocket.close(1011)
        except (WebSocketDisconnect, RuntimeError):  # RuntimeError: it was closed meanwhile
            return

    async def _until_idle(self, emulator: Emulator) -> None:
        while time.monotonic() - emulator.used_at < self._pool.idle:
            await asyncio.sleep(min(CHECK_EVERY, self._pool.idle))
        minutes = self._pool.idle / 60
        await self._notify(
            "crashed", reason=f"The emulator was ended because it was not used for {minutes:.0f} minutes."
        )
        await self._websocket.close(1001)

    async def _forward(self, emulator: Emulator, command: dict[str, Any]) -> None:
        name = command.pop("do", None)
        if name == "enter":
            await self._enter(emulator, command)
        elif name == "compare":
            await self._compare(emulator, command)
        elif name in PLAIN:
            await emulator.send(name, **_checked(command, PLAIN[name]))
        else:
            raise Refusal(400, f"There is no command {name!r:.40}.")

    async def _enter(self, emulator: Emulator, command: dict[str, Any]) -> None:
        given = _checked(command, {"id": str, "at": str, "weights": str})
        _, found = await self._opened.do(self._opened.find_one, given["at"], identity_of(given["id"]))
        facts, parts = encode_transition(found.plain)
        chosen = await self._weights(self._opened, given["weights"])
        await emulator.send("enter", parts, facts=facts, weights=str(chosen.path) if chosen else None)
        await self._notify("weights", label=chosen.label if chosen else None, key=chosen.key if chosen else None)

    async def _compare(self, emulator: Emulator, command: dict[str, Any]) -> None:
        given = _checked(command, {"run": str, "weights": str})
        opened = await self._open_run(given["run"])
        chosen = await self._weights(opened, given["weights"])
        if chosen is None:
            raise Refusal(404, f"The run {opened.name} has no weights yet.")
        await emulator.send("compare", run=str(opened.run.path), weights=str(chosen.path))

    async def _weights(self, opened: OpenRun, key: str) -> Weights | None:
        """Return the weights with this key, the newest for an empty one; None if the run has none yet."""
        known = await opened.do(weights_of, opened.run)
        if not key:
            return known[0] if known else None
        for weights in known:
            if weights.key == key:
                return weights
        raise Refusal(404, f"The run {opened.name} does not have weights {key!r:.40}.")

    async def _notify(self, event: str, **facts: Any) -> None:
        try:
            await self._websocket.send_bytes(pack({"event": event} | facts))
        except (WebSocketDisconnect, RuntimeError):
            return


def identity_of(text: str) -> int:
    """Parse the identity of a transition; raise Refusal if it cannot be one."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20) or int(text) >= 2**63:
        raise Refusal(400, f"{text!r:.40} does not identify a transition.")
    return int(text)


def _command(text: str) -> dict[str, Any]:
    try:
        command = json.loads(text)
    except (ValueError, RecursionError):
        command = None
    if not isinstance(command, dict):
        raise Refusal(400, "A command is a JSON object.")
    return command


def _checked(given: dict[str, Any], wanted: dict[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """Return the arguments of a command; raise Refusal unless they are exactly those that it takes."""
    if given.keys() != wanted.keys():
        raise Refusal(400, f"The command takes {', '.join(wanted) or 'no arguments'}.")
    for name, kind in wanted.items():
        value = given[name]
        is_wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        if is_wrong or (name in WORDS and value not in WORDS[name]):
            raise Refusal(400, f"{name} cannot be {value!r:.40}.")
    return given
