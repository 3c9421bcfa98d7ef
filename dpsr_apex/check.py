"""`dpsr-apex check`: check that environments can be saved and restored exactly, and print a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpsr_apex.envs.check import Result, check_restore
from dpsr_apex.formatting import counted
from dpsr_apex.live.console import make_console, make_progress


def check_command(
    names: list[str],
    moments: int = 300,
    arguments: Mapping[str, Any] | None = None,
    stack: int | None = None,
    wrappers: Sequence[str] = (),
) -> int:
    """Check environments one after the other and print a table; return the exit code, 0 if all passed."""
    console = make_console()
    results = [_watched(console, name, moments, arguments, stack, wrappers) for name in names]
    console.print(_table(results))
    for result in results:
        notes = (f"Observations: {result.conversion}" if result.conversion else "", result.history_cost)
        for note in filter(None, notes):
            console.print(f"{result.name}: {note}", soft_wrap=True)
        if not result.passed:
            console.print(result.trace, end="", soft_wrap=True)
            console.print(f"{result.name}: {result.problem or 'no state could be checked'}", soft_wrap=True)
    passed = sum(result.passed for result in results)
    console.print(f"{passed} of {counted(len(results), 'environment')} can be saved and restored exactly")
    return 0 if passed == len(results) else 1


def _watched(
    console: Console,
    name: str,
    moments: int,
    arguments: Mapping[str, Any] | None,
    stack: int | None,
    wrappers: Sequence[str],
) -> Result:
    with make_progress(console) as progress:
        task = progress.add_task(name, total=moments)
        return check_restore(
            name,
            arguments,
            moments,
            stack=stack,
            progress=lambda done: progress.update(task, completed=done),
            wrappers=wrappers,
        )


def _table(results: list[Result]) -> Table:
    table = Table(
        title="States restored in a second environment and continued in both",
        caption="resets, lives, ends, limits: resets, lost lives, ends of episodes and time limits among them; "
        "depth: most agent steps since the start of a game; bytes: mean size of a snapshot; wrong: states that "
        "continued differently",
        caption_justify="left",
        box=box.SIMPLE,
        pad_edge=False,
        padding=0,
    )
    table.add_column("environment", no_wrap=True)
    for heading in ("states", "resets", "lives", "ends", "limits", "depth", "bytes", "wrong"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        covered = (result.moments, result.first_steps, result.lost_lives, result.game_ends, result.time_limits)
        verdict = Text("0", "green") if result.passed else Text(str(result.mismatches or "error"), "red")
        table.add_row(result.name, *map(str, covered), str(result.deepest), f"{result.snapshot_bytes:.0f}", verdict)
    return table
