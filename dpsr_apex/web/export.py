"""One self-contained page of a run: its map, its stars and their filmstrips, without a server and without a network."""

from __future__ import annotations

import asyncio
import html
import json
import sys
from base64 import b64encode
from importlib.resources import files
from pathlib import Path
from typing import Any

from dpsr_apex import __version__
from dpsr_apex.files import ensure_usable, write_atomically
from dpsr_apex.replay.survey import Survey
from dpsr_apex.web import Refusal, WebError
from dpsr_apex.web.analysis import png
from dpsr_apex.web.map_bytes import pack_survey
from dpsr_apex.web.open_run import STARRED, Described, OpenRun
from dpsr_apex.web.pictures import strip
from dpsr_apex.web.pool import Pool
from dpsr_apex.web.runs import Runs
from dpsr_apex.web.stars import list_stars
from dpsr_apex.web.state import State

MOST_POINTS = 200_000  # of the map; a larger replay is subsampled, and the page reports it

# Modules of the page, each after those that it imports.
_MODULES = (
    *("axes.js", "dom.js", "grid.js", "points.js", "survey.js", "gestures.js", "scatter.js", "filters.js", "tip.js"),
)

# The page may load nothing at all. Its modules import one another as data.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


def export_page(opened: OpenRun, described: Described, at: str) -> str:
    """Return the page as HTML."""
    label, survey = opened.survey(at)
    return render(opened, described, label, survey)


def render(opened: OpenRun, described: Described, label: str, survey: Survey) -> str:
    """Return the page of a survey from this source."""
    facts = {
        "run": opened.name,
        "environment": opened.config.env.name,
        "method": opened.config.replay.method,
        "seed": opened.config.run.seed,
        "source": label,
        "actions": described.facts["actions"],
        "floor": opened.config.replay.priority_floor,
        "version": __version__,
        "stars": [
            star | {"strip": _strip(opened, described, int(star["identity"]))} for star in list_stars(opened.run)
        ],
        "survey": b64encode(pack_survey(survey, MOST_POINTS)).decode(),
    }
    modules: dict[str, str] = {}
    for name in _MODULES:
        modules[f"./{name}"] = _as_data(_with_imports(_text(name), modules))
    page = _with_imports(_text("exported.js"), modules)
    return _PAGE.format(
        policy=_POLICY,
        title=html.escape(f"{opened.config.env.name} · {opened.config.replay.method} · {opened.name}"),
        style=_text("style.css"),
        facts=_json_in_html(facts),
        script=page.replace("</script", "<\\/script"),
    )


def _strip(opened: OpenRun, described: Described, identity: int) -> str:
    found = opened.find(STARRED, [identity])[identity]
    return b64encode(png(strip(found.plain, described.codec))).decode()


def _text(name: str) -> str:
    return files("dpsr_apex.web").joinpath("static", name).read_text(encoding="utf-8")


def _as_data(script: str) -> str:
    return f"data:text/javascript;base64,{b64encode(script.encode()).decode()}"


def _with_imports(script: str, modules: dict[str, str]) -> str:
    for name, address in modules.items():
        script = script.replace(f'"{name}"', f'"{address}"')
    return script


def _json_in_html(facts: dict[str, Any]) -> str:
    """Return JSON that cannot end the element which contains it."""
    return json.dumps(facts, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# `dpsr-apex ui --export`.


def export_run(folder: Path, file: Path) -> int:
    """Write the page of the run in `folder`; return the exit code."""
    ensure_usable(file, ".html")
    runs = Runs(folder)
    if not runs.is_single:
        raise WebError(f"{folder} is not a run directory: --export needs one run")
    try:
        page = asyncio.run(_page(runs))
    except Refusal as refusal:
        raise WebError(refusal.reason) from refusal
    write_atomically(file, page)
    sys.stdout.write(f"{file}: {len(page):,} bytes\n")
    return 0


async def _page(runs: Runs) -> str:
    state = State(runs, Pool(1))
    opened = await state.open_run(runs.root.name)
    try:
        described = await state.described(opened)
        return await opened.do(export_page, opened, described, "")
    finally:
        await state.pool.close()
        opened.close()


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body class="exported">
<main id="page"></main>
<script type="application/json" id="facts">{facts}</script>
<script type="module">{script}</script>
</body>
</html>
"""
