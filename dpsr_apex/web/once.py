"""`dpsr-apex ui --export`: the page of one run, without a server."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dpsr_apex.files import ensure_usable, write_atomically
from dpsr_apex.web import Refusal, WebError
from dpsr_apex.web.export import export_page
from dpsr_apex.web.pool import Pool
from dpsr_apex.web.runs import Runs
from dpsr_apex.web.state import State


def export_once(folder: Path, file: Path) -> int:
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
    desk = await state.desk(runs.root.name)
    try:
        described = await state.described(desk)
        return await desk.do(export_page, desk, described, "")
    finally:
        await state.pool.close()
        desk.close()
