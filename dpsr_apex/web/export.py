"""One self-contained page of a run: its map, its stars and their filmstrips, without a server and without a network."""

from __future__ import annotations

import html
import json
from base64 import b64encode
from importlib.resources import files
from typing import Any

from dpsr_apex import __version__
from dpsr_apex.replay.survey import Survey
from dpsr_apex.web.analysis import png
from dpsr_apex.web.desk import STARRED, Described, Desk
from dpsr_apex.web.map_bytes import pack_survey
from dpsr_apex.web.pictures import strip
from dpsr_apex.web.stars import list_stars

MOST_POINTS = 200_000  # of the map; a larger replay is subsampled, and the page reports it

# Modules of the page, each after those that it imports.
_MODULES = ("axes.js", "dom.js", "grid.js", "points.js", "survey.js", "scatter.js")

# The page may load nothing at all. Its modules import one another as data.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


def export_page(desk: Desk, described: Described, at: str) -> str:
    """Return the page as HTML."""
    label, survey = desk.survey(at)
    return render(desk, described, label, survey)


def render(desk: Desk, described: Described, label: str, survey: Survey) -> str:
    """Return the page of a survey from this source."""
    facts = {
        "run": desk.name,
        "environment": desk.config.env.name,
        "method": desk.config.replay.method,
        "seed": desk.config.run.seed,
        "source": label,
        "actions": described.facts["actions"],
        "floor": desk.config.replay.priority_floor,
        "version": __version__,
        "stars": [star | {"strip": _strip(desk, described, int(star["identity"]))} for star in list_stars(desk.run)],
        "survey": b64encode(pack_survey(survey, MOST_POINTS)).decode(),
    }
    modules: dict[str, str] = {}
    for name in _MODULES:
        modules[f"./{name}"] = _as_data(_with_imports(_text(name), modules))
    page = _with_imports(_text("exported.js"), modules)
    return _PAGE.format(
        policy=_POLICY,
        title=html.escape(f"{desk.config.env.name} · {desk.config.replay.method} · {desk.name}"),
        style=_text("style.css"),
        facts=_json_in_html(facts),
        script=page.replace("</script", "<\\/script"),
    )


def _strip(desk: Desk, described: Described, identity: int) -> str:
    found = desk.find(STARRED, [identity])[identity]
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
