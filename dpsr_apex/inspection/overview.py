"""What is in a run's replay, as tables for a person: the transitions that stand out, and how to enter one of them.

Nothing is changed and nothing is computed with a network, so it needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpsr_apex.console import make_console
from dpsr_apex.envs.snapshot import UnusableEnvironment
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.inspection.moments import (
    Kind,
    Moment,
    action_name,
    choose_kinds,
    number,
    signed,
    sum_up_recycled,
)
from dpsr_apex.inspection.opening import Opened, open_run, seconds_behind
from dpsr_apex.inspection.sheet import draw_sheet, ensure_drawable
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.roles.build import build_env
from dpsr_apex.run.typed import pasteable

WIDTH = 100  # characters at least: in a narrow terminal lines are broken, and no number is cut

COLUMNS = ("identity", "priority", "age", "born at t", "action", "reward", "n", "end", "gain", "snapshot")


def inspect_run(path: Path, count: int, sheet: Path | None, checkpoint: Path | None) -> int:
    """Print the transitions that stand out in a run's replay, and draw them into a sheet (by default in the run)."""
    if sheet:
        ensure_drawable(sheet)
    opened = open_run(path, checkpoint)
    picture = sheet or path / "replay.png"
    console = _console()
    for line in (head_line(opened) + _lateness(opened), *summary_lines(opened.replay)):
        _say(console, line)
    env, problem = _environment(opened)
    kinds = choose_kinds(opened.replay, count)
    for kind in kinds:
        if kind.moments:
            console.print(Text.assemble("\n", (kind.title, "bold"), f"  {kind.meaning}"))
            console.print(moment_table(kind.moments, env))
    if env:
        draw_sheet(picture, head_line(opened), kinds, env)
        env.close()
        _say(console, f"sheet {picture}")
    else:
        _say(console, f"no sheet: {problem}")
    _say(console, enter_line(opened, kinds, checkpoint))
    return 0


def head_line(opened: Opened) -> str:
    """The run, the clock of its checkpoint, and how much is stored."""
    replay = opened.replay
    return f"{opened.title} · t = {replay.t:,} · {replay.size:,} of {replay.config.capacity:,} stored"


def summary_lines(replay: DpsrReplay) -> list[str]:
    """The whole replay in a few numbers."""
    if not replay.size:
        return ["nothing is stored yet"]
    least, middle, greatest = (number(share) for share in np.quantile(replay.priorities, (0, 0.5, 1)))
    ages = replay.t - replay.births
    recycled = sum_up_recycled(replay)
    lines = [
        f"priorities: {least} to {greatest}, median {middle}",
        f"ages: up to {ages.max():,} transitions, median {int(np.median(ages)):,}",
    ]
    if not recycled.stored:
        return [*lines, "recycled: none of those stored"]
    share = f"recycled: {recycled.stored:,}, {recycled.stored / replay.size:.0%} of those stored"
    return [*lines, f"{share}; mean gain {signed(recycled.mean_gain)}, {recycled.gaining:.0%} gained something"]


def moment_table(moments: Sequence[Moment], env: StackedEnv | None) -> Table:
    """One line for each transition."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="dim")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "action" else "right", no_wrap=True)
    for moment in moments:
        table.add_row(*_cells(moment, env), style="cyan" if moment.recycled else "")
    return table


def enter_line(opened: Opened, kinds: Sequence[Kind], checkpoint: Path | None) -> str:
    """The command that enters one of these transitions, as it can be pasted."""
    moments = [moment for kind in reversed(kinds) for moment in kind.moments]
    if not any(moment.snapshot for moment in moments):
        return f"None can be entered: {opened.config.env.name} has no snapshot() and restore()." if moments else ""
    example = next(moment for moment in moments if moment.snapshot).identity
    which = ("--checkpoint", str(checkpoint)) if checkpoint else ()
    command = pasteable("inspect", opened.run.path, *which, "--enter", str(example), "--video", f"{example}.mp4")
    return f"To play on from one of them: {command}"


def _cells(moment: Moment, env: StackedEnv | None) -> list[str]:
    return [
        str(moment.identity),
        number(moment.priority),
        f"{moment.age:,}",
        f"{moment.birth:,}",
        action_name(env, moment.action),
        f"{moment.reward:g}",
        str(moment.n_steps),
        "yes" if moment.terminal else "",
        "" if math.isnan(moment.gain) else signed(moment.gain),
        f"{len(moment.snapshot):,} B" if moment.snapshot else "none",
    ]


def _environment(opened: Opened) -> tuple[StackedEnv | None, str]:
    """The run's environment, for names and pictures; None, and why, where it cannot be made here."""
    try:
        return build_env(opened.config, 0, training=True), ""
    except UnusableEnvironment as problem:
        return None, str(problem)


def _console() -> Console:
    console = make_console()
    console.width = max(console.width, WIDTH)
    return console


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True)


def _lateness(opened: Opened) -> str:
    behind = seconds_behind(opened)
    return "" if behind is None else f" · saved {_duration(behind)} ago, and the run goes on"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
