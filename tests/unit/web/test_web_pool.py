"""Emulator processes: limited in number, ended with their viewers, when idle and with the server; crashes stay apart.

The processes are small programs that answer like an emulator, because a real one takes seconds to start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from dpsr_apex.web import Refusal, play, pool
from dpsr_apex.web.app import build_app
from dpsr_apex.web.channel import BrokenChannel, unpack
from dpsr_apex.web.pool import Emulator, Pool
from dpsr_apex.web.runs import Runs
from dpsr_apex.web.security import Access
from dpsr_apex.web.state import State
from tests.unit.web.test_web_play import Viewer, viewing

PATIENCE = 60.0  # seconds for a process to end or to start on a busy machine

PROGRAM = """
import os, sys, time
from dpsr_apex.web.channel import BrokenChannel, Pipe
pipe = Pipe(0, 1)
pipe.send({"event": "ready"})
try:
    while True:
        command = pipe.receive(None).head
        if command["do"] == "step":
            pipe.send({"event": "frame", "pid": os.getpid()})
        elif command["do"] == "pause":
            os.abort()
        elif command["do"] == "save":
            print("no space left", file=sys.stderr)
            sys.exit(3)
        elif command["do"] == "try":
            while True:
                time.sleep(1)
        elif command["do"] == "open":
            pipe.send({"event": "opened", "shape": [4], "dtype": "float32"})
except BrokenChannel:
    pass
"""


NEVER_READY = (sys.executable, "-c", "input()")


@pytest.fixture(autouse=True)
def quick_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-c", PROGRAM))
    monkeypatch.setattr(pool, "LEAVE", 0.5)
    monkeypatch.setattr(play, "CHECK_EVERY", 0.05)


@pytest.fixture
def client(trained: Path) -> Iterator[TestClient]:
    app = build_app(Runs(trained.parent), Access(8265), most_emulators=2)
    with TestClient(app, base_url="http://127.0.0.1:8265") as client:
        yield client
    assert pool_of(client).count == 0


def pool_of(client: TestClient) -> Pool:
    app: Any = client.app
    state: State = app.state.explorer
    return state.pool


def pid_of(viewer: Viewer) -> int:
    viewer.send("step")
    return int(viewer.hear("frame").head["pid"])


def await_end(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} has not ended"
        time.sleep(0.01)


def test_every_viewer_has_a_process_of_its_own_which_ends_with_it(client: TestClient) -> None:
    with viewing(client) as first, viewing(client) as second:
        pids = {pid_of(first), pid_of(second)}
        assert len(pids) == 2
    for pid in pids:
        await_end(pid)
    with viewing(client) as third:
        assert pid_of(third) not in pids


def test_there_are_never_more_processes_than_permitted(client: TestClient) -> None:
    with viewing(client) as first, viewing(client) as second:
        pid_of(first)
        pid_of(second)
        with viewing(client) as third:
            assert "All 2 emulators are in use" in third.hear("refused").head["reason"]
            with pytest.raises(WebSocketDisconnect):
                third.hear("frame")
        assert pool_of(client).count == 2
    with viewing(client) as fourth:  # waits for one that is ending
        pid_of(fourth)
        assert pool_of(client).count <= 2


@pytest.mark.parametrize(("command", "reason"), [("pause", "signal 6"), ("save", "exit code 3): no space left")])
def test_a_crash_is_reported_to_its_viewer_and_affects_no_other(client: TestClient, command: str, reason: str) -> None:
    with viewing(client) as viewer, viewing(client) as other:
        pid = pid_of(viewer)
        other.send(command)
        assert reason in other.hear("crashed").head["reason"]
        assert pid_of(viewer) == pid


def test_a_process_that_hangs_is_killed_when_its_viewer_leaves(client: TestClient) -> None:
    with viewing(client) as viewer:
        pid = pid_of(viewer)
        viewer.send("try")
    await_end(pid)


def test_a_viewer_that_does_nothing_loses_its_process(client: TestClient) -> None:
    with viewing(client) as viewer:
        pid = pid_of(viewer)
        pool_of(client).idle = 0.05
        assert "was not used" in viewer.hear("crashed").head["reason"]
        with pytest.raises(WebSocketDisconnect):
            viewer.hear("frame")
    pool_of(client).idle = 600.0
    await_end(pid)


def test_a_viewer_is_left_when_the_server_is_stopped_also_while_its_process_starts(client: TestClient) -> None:
    app: Any = client.app
    state: State = app.state.explorer
    with viewing(client) as viewer:
        pid = pid_of(viewer)
        assert client.portal is not None
        client.portal.call(state.ending.set)
        with pytest.raises(WebSocketDisconnect):
            viewer.hear("frame")
    await_end(pid)
    with viewing(client) as late, pytest.raises(WebSocketDisconnect):
        late.hear("frame")


def test_a_request_that_waits_for_a_process_is_refused_when_the_server_is_stopped(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "COMMAND", NEVER_READY)
    app: Any = client.app
    state: State = app.state.explorer
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(client.get, "/api/run/cart%20pole/environment")
        deadline = time.monotonic() + PATIENCE
        while not pool_of(client).count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert client.portal is not None
        client.portal.call(state.ending.set)
        assert waiting.result(PATIENCE).status_code == 503


# The pool by itself.


def run(work: Callable[[Pool], Awaitable[None]], most: int = 2) -> None:
    async def main() -> None:
        pool = Pool(most)
        try:
            await work(pool)
        finally:
            await pool.close()
        assert pool.count == 0

    asyncio.run(main())


def test_a_process_that_only_described_an_environment_is_used_again() -> None:
    async def work(pool: Pool) -> None:
        first = await pool.acquire()
        assert (await first.ask("open", "opened", run="x")).head["shape"] == [4]
        pool.release(first, is_clean=True)
        assert await pool.acquire() is first
        pool.release(first)
        second = await pool.acquire()
        assert second is not first

    run(work)


def test_one_that_is_ready_is_ended_when_nobody_wants_it_and_replaced_when_it_died() -> None:
    async def work(pool: Pool) -> None:
        pool.warm_up()
        emulator = await pool.acquire()
        pool.release(emulator, is_clean=True)
        await pool.end_idle()
        assert pool.count == 1
        pool.idle = 0.0
        await asyncio.sleep(0)
        await pool.end_idle()
        assert pool.count == 0
        assert not emulator.is_alive
        pool.warm_up()
        spare = await pool.acquire()
        pool.release(spare, is_clean=True)
        os.kill(spare.pid, signal.SIGKILL)
        while spare.is_alive:
            await asyncio.sleep(0.01)
        fresh = await pool.acquire()
        assert fresh.is_alive

    run(work)


def test_a_process_that_does_not_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "COMMAND", (sys.executable, "-c", "raise SystemExit('torch is missing')"))

    async def work(pool: Pool) -> None:
        for _ in range(3):
            with pytest.raises(Refusal, match="torch is missing"):
                await pool.acquire()

    run(work)


def test_a_viewer_that_leaves_while_its_process_starts_leaves_nothing_behind() -> None:
    async def work(pool: Pool) -> None:
        acquiring = asyncio.create_task(pool.acquire())
        await asyncio.sleep(0.01)
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        emulator = await pool.acquire()
        assert emulator.is_alive

    run(work, most=1)


def test_a_process_that_is_not_ready_yet_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "COMMAND", NEVER_READY)

    async def work(pool: Pool) -> None:
        pool.warm_up()
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            await pool.close()

    run(work)


def test_an_answer_is_awaited_and_a_problem_is_a_refusal() -> None:
    async def work(pool: Pool) -> None:
        emulator: Emulator = await pool.acquire()
        assert (await emulator.ask("step", "frame")).head["pid"] == emulator.pid
        with pytest.raises(Refusal, match="signal 6"):
            await emulator.ask("pause", "paused")
        with pytest.raises(BrokenChannel):
            unpack(await emulator.receive())
        await emulator.send("step")  # is ignored

    run(work)
