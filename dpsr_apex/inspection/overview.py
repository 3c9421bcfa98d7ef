"""Print an overview of a run's replay: statistics, tables of notable transitions, and the command to play from one.

Nothing is changed, and torch is not imported.
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

from dpsr_apex.envs.snapshot import UnusableEnvironment
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.files import ensure_usable
from dpsr_apex.formatting import duration, number, pasteable, signed
from dpsr_apex.inspection.opening import OpenedRun, checkpoint_age, open_run
from dpsr_apex.inspection.sheet import save_sheet
from dpsr_apex.inspection.stored import (
    Group,
    StoredTransition,
    action_name,
    notable_groups,
    summarize_recycled,
)
from dpsr_apex.live.console import make_console
from dpsr_apex.record.provenance import provenance_lines
from dpsr_apex.record.quarantine import quarantine_lines
from dpsr_apex.replay.replay import Replay
from dpsr_apex.roles.build import build_env

MIN_WIDTH = 120  # characters: a narrower terminal wraps lines, so that no number is truncated

COLUMNS = ("identity", "priority", "age", "action", "reward", "n", "terminal", "gain", "depth", "snapshot")


def inspect_run(path: Path, count: int, sheet: Path | None, checkpoint: Path | None) -> int:
    """Print notable transitions of a run's replay, and draw them to `sheet` (default: `replay.png` in the run)."""
    if sheet:
        ensure_usable(sheet, ".png")
    opened = open_run(path, checkpoint)
    picture = sheet or path / "replay.png"
    console = _console()
    summary = summary_lines(opened.replay)
    bad = quarantine_lines(opened.run.quarantine)
    for line in (title_line(opened) + _age_note(opened), *summary, *bad, *provenance_lines(opened.run)):
        _print_line(console, line)
    env, problem = _environment(opened)
    groups = notable_groups(opened.replay, count)
    for group in groups:
        if group.transitions:
            console.print(Text.assemble("\n", (group.title, "bold"), f"  {group.description}"))
            console.print(transition_table(group.transitions, env))
    if env:
        save_sheet(picture, title_line(opened), groups, env)
        env.close()
        _print_line(console, f"Pictures: {picture}")
    else:
        _print_line(console, f"No pictures: {problem}")
    _print_line(console, play_from_line(opened, groups, checkpoint))
    return 0


def title_line(opened: OpenedRun) -> str:
    """Return a line with the run, the clock t of its checkpoint, and the number of stored transitions."""
    replay = opened.replay
    return f"{opened.title} · t = {replay.t:,} · {replay.size:,} of {replay.config.capacity:,} stored"


def summary_lines(replay: Replay) -> list[str]:
    """Summarize the whole replay: priorities, ages, recycled transitions."""
    if not replay.size:
        return ["the replay is empty"]
    minimum, median, maximum = (number(value) for value in np.quantile(replay.priorities, (0, 0.5, 1)))
    ages = replay.t - replay.births
    recycled = summarize_recycled(replay)
    lines = [
        f"priorities: {minimum} to {maximum}, median {median}",
        f"ages: up to {ages.max():,} transitions, median {int(np.median(ages)):,}",
    ]
    if not recycled.stored:
        return [*lines, "recycled: none"]
    share = f"recycled: {recycled.stored:,} ({recycled.stored / replay.size:.0%} of the replay)"
    gains = f"mean gain {signed(recycled.mean_gain)}, positive for {recycled.positive_share:.0%}"
    return [*lines, f"{share}; {gains}", *_chain_lines(replay)]


def _chain_lines(replay: Replay) -> list[str]:
    """Summarize the chains of more than one step; no line if there are none."""
    counters, depths = replay.counters, replay.depths
    if not counters.chain_steps_stored:
        return []
    later = int(((depths > 0) & np.isnan(replay.gains)).sum())
    steps, reward = (number(total / counters.chains, 3) for total in (counters.chain_steps, counters.chain_reward))
    made = f"{counters.chains:,} made, of {steps} steps and reward {reward} on average"
    return [f"chains: {later:,} of their later steps stored, up to {depths.max()} steps from play; {made}"]


def transition_table(transitions: Sequence[StoredTransition], env: StackedEnv | None) -> Table:
    """Return a table with one row per transition, without the columns that would be empty."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="dim")
    rows = [_cells(transition, env) for transition in transitions]
    shown = [place for place in range(len(COLUMNS)) if any(row[place] for row in rows)]
    for place in shown:
        name = COLUMNS[place]
        table.add_column(name, justify="left" if name == "action" else "right", no_wrap=True)
    for transition, row in zip(transitions, rows, strict=True):
        table.add_row(*(row[place] for place in shown), style="cyan" if transition.depth else "")
    return table


def play_from_line(opened: OpenedRun, groups: Sequence[Group], checkpoint: Path | None) -> str:
    """Return the command that continues from one of these transitions, ready to paste."""
    transitions = [transition for group in reversed(groups) for transition in group.transitions]
    if not any(transition.snapshot for transition in transitions):
        return f"None can be restored: {opened.config.env.name} has no snapshot() and restore()." if transitions else ""
    example = next(transition for transition in transitions if transition.snapshot).identity
    options = ("--checkpoint", str(checkpoint)) if checkpoint else ()
    command = pasteable("inspect", opened.run.path, *options, "--enter", str(example), "--video", f"{example}.mp4")
    return f"To continue from one of them: {command}"


def _cells(transition: StoredTransition, env: StackedEnv | None) -> list[str]:
    return [
        str(transition.identity),
        number(transition.priority),
        f"{transition.age:,}",
        action_name(env, transition.action),
        f"{transition.reward:g}",
        str(transition.n_steps),
        "yes" if transition.terminal else "",
        "" if math.isnan(transition.gain) else signed(transition.gain),
        str(transition.depth or ""),
        f"{len(transition.snapshot):,} B" if transition.snapshot else "none",
    ]


def _environment(opened: OpenedRun) -> tuple[StackedEnv | None, str]:
    """Return the run's environment for action names and pictures, or None and the reason why it cannot be created."""
    try:
        return build_env(opened.config, 0, training=True), ""
    except UnusableEnvironment as problem:
        return None, str(problem)


def _console() -> Console:
    console = make_console()
    console.width = max(console.width, MIN_WIDTH)
    return console


def _print_line(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True)


def _age_note(opened: OpenedRun) -> str:
    age = checkpoint_age(opened)
    return "" if age is None else f" · saved {duration(age)} ago, run in progress"
