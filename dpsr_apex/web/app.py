"""The web application: routes, static files and error responses."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dpsr_apex.errors import UserError
from dpsr_apex.web import Refusal, moment_pages, run_pages
from dpsr_apex.web.pool import Pool
from dpsr_apex.web.runs import Runs
from dpsr_apex.web.security import Access, Guard
from dpsr_apex.web.state import State, state_of

STATIC = Path(__file__).with_name("static")


def build_app(runs: Runs, access: Access, most_emulators: int, *, is_warm: bool = False) -> Starlette:
    """Return the application for these runs; with `is_warm`, it starts a process before the first viewer needs it."""
    state = State(runs, Pool(most_emulators))

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        ending = asyncio.create_task(_end_idle_processes(state.pool))
        if is_warm:
            state.pool.warm_up()
        try:
            yield
        finally:
            ending.cancel()
            await state.pool.close()
            for opened in state.open_runs.values():
                opened.close()

    app = Starlette(
        routes=[
            *(Route(path, _shell) for path in ("/", "/compare", "/run/{run:path}")),
            Route("/static/plotly.js", _plotly),
            Route("/static/{file}", _static),
            Route("/api/session", _session),
            *run_pages.routes(),
            *moment_pages.routes(),
            Route("/{path:path}", _missing),
        ],
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={Refusal: _refused, UserError: _failed, HTTPException: _http_error},
        lifespan=lifespan,
    )
    app.state.explorer = state
    return app


async def _end_idle_processes(pool: Pool) -> None:
    while True:
        await asyncio.sleep(min(pool.idle, 10.0))
        await pool.end_idle()


# Errors: one line of text.


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return PlainTextResponse(error.reason, error.status)


async def _failed(_request: Request, error: Exception) -> Response:
    return PlainTextResponse(" ".join(str(error).split()), 409)


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(str(error.detail), error.status_code)


# Pages and files.


async def _shell(_request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})


async def _missing(request: Request) -> Response:
    """Send the application, which reports an unknown page itself; refuse unknown addresses of data and files."""
    if request.url.path.startswith(("/api/", "/static/")):
        raise Refusal(404, "Not found.")
    return FileResponse(STATIC / "index.html", 404, headers={"cache-control": "no-cache"})


async def _static(request: Request) -> Response:
    name = request.path_params["file"]
    path = STATIC / name
    if name not in {file.name for file in STATIC.iterdir()}:
        raise Refusal(404, "No such file.")
    return FileResponse(path, headers={"cache-control": "no-cache"})


async def _plotly(_request: Request) -> Response:
    """Send plotly.js from the wheel of plotly, so that nothing is loaded from another host."""
    found = importlib.util.find_spec("plotly")
    assert found is not None
    assert found.origin is not None
    path = Path(found.origin).parent / "package_data" / "plotly.min.js"
    return FileResponse(path, media_type="text/javascript", headers={"cache-control": "max-age=86400"})


async def _session(request: Request) -> Response:
    state = state_of(request)
    return JSONResponse(
        {
            "root": state.runs.root.name,
            "single": state.runs.root.name if state.runs.is_single else None,
            "may_change": request.state.has_token,
        }
    )
