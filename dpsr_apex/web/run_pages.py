"""Handlers for runs: the table, curves, facts, news, logs, and changes of a running run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from dpsr_apex import timeouts
from dpsr_apex.files import to_json
from dpsr_apex.processes.control import address_of
from dpsr_apex.processes.statistics import ask_stats
from dpsr_apex.record.provenance import provenance_lines
from dpsr_apex.record.run_directory import title_of
from dpsr_apex.web import Refusal
from dpsr_apex.web.curves import KINDS, MOST_RUNS, overlaid
from dpsr_apex.web.feed import Reader
from dpsr_apex.web.state import body_of, open_run_of, state_of
from dpsr_apex.web.weights import weights_of
from dpsr_apex.wire.messages import SetActors, SetRate

TABLE_EVERY = 2.0  # seconds between two reads of all runs
BATCH = 25  # lines of the table that are sent together
LOG_BYTES = 64 * 1024  # of the end of a log
STREAMS = 64  # viewers of tables and runs at the same time
RUN = "/api/run/{run:path}"


def routes() -> list[Route]:
    """Return the routes of this module."""
    return [
        Route("/api/runs", _table),
        Route("/api/curves", _curves),
        Route(f"{RUN}/facts", _facts),
        Route(f"{RUN}/environment", _environment),
        Route(f"{RUN}/live", _live),
        Route(f"{RUN}/log/{{file}}", _log),
        Route(f"{RUN}/rate", _set_rate, methods=["POST"]),
        Route(f"{RUN}/actors", _set_actors, methods=["POST"]),
    ]


def _stream(request: Request, events: AsyncIterator[dict[str, Any]]) -> Response:
    state = state_of(request)
    if state.streams >= STREAMS:
        raise Refusal(503, f"{STREAMS} pages are open already. Close some of them.")

    async def encoded() -> AsyncIterator[str]:
        state.streams += 1
        try:
            async for event in events:
                yield f"data: {json.dumps(to_json(event), allow_nan=False)}\n\n"
        finally:
            state.streams -= 1

    return StreamingResponse(encoded(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def _table(request: Request) -> Response:
    """Stream the table of runs: all of them in batches, then those that have changed."""
    state = state_of(request)

    async def events() -> AsyncIterator[dict[str, Any]]:
        sent: dict[str, dict[str, Any]] = {}
        while not state.ending.is_set():
            lines = state.runs.lines()
            present = set()
            while batch := await asyncio.to_thread(_take, lines, BATCH):
                changed = [line for line in batch if sent.get(line["run"]) is not line]
                sent |= {line["run"]: line for line in changed}
                present |= {line["run"] for line in batch}
                if changed:
                    yield {"lines": changed}
            gone = sorted(sent.keys() - present)
            for name in gone:
                del sent[name]
            yield {"lines": [], "gone": gone, "complete": True, "count": len(present)}
            await state.pause(TABLE_EVERY)

    return _stream(request, events())


def _take(lines: Any, count: int) -> list[dict[str, Any]]:
    return [line for _, line in zip(range(count), lines, strict=False)]


async def _curves(request: Request) -> Response:
    names, kind = request.query_params.getlist("run"), request.query_params.get("kind", "evaluation")
    if kind not in KINDS or not 0 < len(names) <= MOST_RUNS:
        raise Refusal(400, f"Select 1 to {MOST_RUNS} runs, and {' or '.join(KINDS)} as the kind.")
    runs = state_of(request).runs
    paths = [(await asyncio.to_thread(runs.open, name)).path for name in dict.fromkeys(names)]
    return JSONResponse(await asyncio.to_thread(overlaid, paths, kind))


async def _facts(request: Request) -> Response:
    opened = await open_run_of(request)

    def facts() -> dict[str, Any]:
        config = opened.config
        return {
            "run": opened.name,
            "title": title_of(config, Path(opened.name)),
            "environment": config.env.name,
            "method": config.replay.method,
            "agent": config.learner.agent,
            "seed": config.run.seed,
            "capacity": config.replay.capacity,
            "floor": config.replay.priority_floor,
            "total_steps": config.run.total_steps,
            "n_steps": config.actor.n_steps,
            "steps_per_update": config.learner.steps_per_update,
            "has_head": config.system.actors != 0,
            "config": opened.run.config.read_text(encoding="utf-8"),
            "provenance": provenance_lines(opened.run),
            "logs": sorted(path.name for path in opened.run.logs.glob("*.log*")) if opened.run.logs.is_dir() else [],
            "sources": opened.sources(),
            "weights": [weights._asdict() | {"path": None} for weights in weights_of(opened.run)],
        }

    return JSONResponse(await opened.do(facts))


async def _environment(request: Request) -> Response:
    opened = await open_run_of(request)
    return JSONResponse((await state_of(request).described(opened)).facts)


async def _live(request: Request) -> Response:
    """Stream what is new in one run."""
    state, opened = state_of(request), await open_run_of(request)

    async def events() -> AsyncIterator[dict[str, Any]]:
        reader, last = Reader(), None
        while not state.ending.is_set():
            news = await opened.news()
            if news is not last:
                last = news
                yield reader.take(news)
            await state.pause(1.0 if news.line["state"] == "running" else 3.0)

    return _stream(request, events())


async def _log(request: Request) -> Response:
    """Send the end of a log file."""
    opened = await open_run_of(request)
    name = request.path_params["file"]
    path = await asyncio.to_thread(state_of(request).runs.inside, opened.run, opened.run.logs.name, name)

    def tail() -> bytes:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - LOG_BYTES, 0))
            return file.read(LOG_BYTES)

    return PlainTextResponse((await opened.do(tail)).decode(errors="replace"))


async def _number_in(request: Request, name: str, least: int) -> int:
    """Return an integer of the JSON object in a request."""
    given = await body_of(request)
    value = given.get(name)
    if type(value) is not int or not least <= value < 2**31:
        raise Refusal(400, f"{name} must be a whole number of at least {least}.")
    return value


async def _set_rate(request: Request) -> Response:
    return await _change(request, SetRate(await _number_in(request, "steps_per_update", 0)))


async def _set_actors(request: Request) -> Response:
    return await _change(request, SetActors(await _number_in(request, "actors", 1)))


async def _change(request: Request, change: SetRate | SetActors) -> Response:
    """Change a running run."""
    opened = await open_run_of(request)
    stats = await asyncio.to_thread(lambda: ask_stats(address_of(opened.run), change, timeouts.CONTROL_ANSWER))
    planned, steps = stats.planned_actors, stats.rate.steps_per_update
    return JSONResponse({"t": stats.t, "planned_actors": planned, "steps_per_update": steps})
