"""Consoles print what they are given: a name is no markup and no emoji, and no character ends a command."""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


def make_console(kind: type[Console] = Console) -> Console:
    """A console on standard output; what that cannot show becomes a question mark."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return kind(emoji=False, markup=False, highlight=False)


def make_progress(console: Console) -> Progress:
    """A bar that goes away when it is full; none where there is no terminal."""
    description = TextColumn("{task.description}", markup=False)  # its markup would be emoji too
    columns = (description, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
