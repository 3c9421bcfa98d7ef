"""Handlers for transitions: maps, pictures, moments, stars, exports, and the connection to an emulator."""

from __future__ import annotations

import contextlib
import math
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from dpsr_apex.web import Refusal
from dpsr_apex.web.analysis import png
from dpsr_apex.web.export import export_page
from dpsr_apex.web.map_bytes import pack_survey
from dpsr_apex.web.open_run import LIVE
from dpsr_apex.web.pictures import frames_of, replaced, states_of, strip, thumb
from dpsr_apex.web.play import Viewer, identity_of
from dpsr_apex.web.run_pages import RUN
from dpsr_apex.web.security import int_of
from dpsr_apex.web.stars import add_star, change_note, export_stars, list_stars, remove_star
from dpsr_apex.web.state import body_of, open_run_of, source_of, state_of


def routes() -> list[Route | WebSocketRoute]:
    """Return the routes of this module."""
    return [
        Route(f"{RUN}/map", _map),
        Route(f"{RUN}/strip/{{id}}", _strip),
        Route(f"{RUN}/thumb/{{id}}", _thumb),
        Route(f"{RUN}/moment/{{id}}", _moment),
        Route(f"{RUN}/stars", _stars),
        Route(f"{RUN}/stars/file", _star_file),
        Route(f"{RUN}/stars/{{id}}", _star, methods=["POST", "DELETE"]),
        Route(f"{RUN}/export", _export),
        WebSocketRoute(f"{RUN}/play", _play),
    ]


async def _map(request: Request) -> Response:
    """Send a survey of the replay; with `most`, at most that many transitions spread over it."""
    opened = await open_run_of(request)
    most = _most_of(request)

    def survey() -> tuple[str, bytes]:
        label, found = opened.survey(source_of(request))
        return label, pack_survey(found, most)

    label, content = await opened.do(survey)
    return Response(content, media_type="application/octet-stream", headers={"x-source": label})


def _most_of(request: Request) -> int | None:
    text = request.query_params.get("most")
    if text is None:
        return None
    if not 0 < int_of(text) < 2**31:
        raise Refusal(400, f"most must be a whole number of at least 1 (got {text!r:.40}).")
    return int(text)


async def _picture(request: Request, draw: Callable[..., Any]) -> Response:
    opened = await open_run_of(request)
    described = await state_of(request).described(opened)
    identity = identity_of(request.path_params["id"].removesuffix(".png"))

    def drawn() -> tuple[bytes, bool]:
        try:
            _, found = opened.find_one(source_of(request), identity)
        except Refusal:
            if source_of(request) != LIVE:
                raise
            return png(replaced()), False  # replaced since the map was read, or the run has ended
        return png(draw(found.plain, described.codec)), True

    picture, is_stored = await opened.do(drawn)
    # An identity is never reused within a source, so that its picture never changes.
    headers = {"cache-control": "private, max-age=3600"} if source_of(request) and is_stored else {}
    return Response(picture, media_type="image/png", headers=headers)


async def _strip(request: Request) -> Response:
    return await _picture(request, strip)


async def _thumb(request: Request) -> Response:
    return await _picture(request, thumb)


async def _moment(request: Request) -> Response:
    """Send everything that is stored about one transition."""
    opened = await open_run_of(request)
    described = await state_of(request).described(opened)
    identity = identity_of(request.path_params["id"])

    def moment() -> dict[str, Any]:
        label, found = opened.find_one(source_of(request), identity)
        plain = found.plain
        s_tm1, s_t = states_of(plain, described.codec)
        facts = {name: value for name, value in plain._asdict().items() if name not in ("s_tm1", "s_t", "snapshot")}
        facts |= {
            "identity": str(plain.identity),
            "origin": str(plain.origin),
            "gain": plain.gain if math.isfinite(plain.gain) else None,
        }
        starred = {one["identity"]: one["note"] for one in list_stars(opened.run)}
        return facts | {
            "source": label,
            "snapshot_bytes": len(plain.snapshot),
            "frames": [b64encode(frame).decode() for frame in frames_of(s_tm1)],
            "next": [b64encode(frame).decode() for frame in frames_of(s_t)],
            "vectors": None if described.codec.dtype == "uint8" else [s_tm1.tolist(), s_t.tolist()],
            "note": starred.get(str(plain.identity)),
        }

    return JSONResponse(await opened.do(moment))


# Stars.


async def _stars(request: Request) -> Response:
    opened = await open_run_of(request)
    return JSONResponse({"stars": await opened.do(list_stars, opened.run)})


async def _star(request: Request) -> Response:
    opened = await open_run_of(request)
    identity = identity_of(request.path_params["id"])
    if request.method == "DELETE":
        await opened.do(remove_star, opened.run, identity)
    else:
        given = await body_of(request)
        note, at = given.get("note", ""), given.get("at", "")
        if not isinstance(note, str) or not isinstance(at, str):
            raise Refusal(400, "note and at must be texts.")
        described = await state_of(request).described(opened)

        def star() -> None:
            if str(identity) in [one["identity"] for one in list_stars(opened.run)]:
                change_note(opened.run, identity, note)
                return
            _, found = opened.find_one(at, identity)
            add_star(opened.run, described.facts["description"], found.plain.birth + found.plain.age, found, note)

        await opened.do(star)
    return JSONResponse({"stars": await opened.do(list_stars, opened.run)})


async def _star_file(request: Request) -> Response:
    """Send the starred moments, or some of them, as a file for `eval --from` and `train --start-from`."""
    opened = await open_run_of(request)
    chosen = [identity_of(text) for text in request.query_params.getlist("id")] or None
    content = await opened.do(export_stars, opened.run, chosen)
    return Response(content, headers=_download(f"{Path(opened.name).name}-moments.safetensors"))


async def _export(request: Request) -> Response:
    opened = await open_run_of(request)
    described = await state_of(request).described(opened)
    page = await opened.do(export_page, opened, described, source_of(request))
    return Response(page, headers=_download(f"{Path(opened.name).name}.html"))


def _download(name: str) -> dict[str, str]:
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return {"content-disposition": f'attachment; filename="{safe}"', "content-type": "application/octet-stream"}


async def _play(websocket: WebSocket) -> None:
    state = state_of(websocket)
    try:
        opened = await state.open_run(websocket.path_params["run"])
    except Refusal as refusal:
        await websocket.close(1008, refusal.reason)
        return
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it was closed meanwhile
        await Viewer(websocket, opened, state).serve()
