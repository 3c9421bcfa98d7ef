"""Consoles that print text literally, without markup and emoji, in any encoding of the terminal."""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


def make_console(kind: type[Console] = Console) -> Console:
    """Return a console on standard output; a character that cannot be encoded becomes a question mark.

    A notebook gets plain lines: its kernel claims to be a colour terminal, but nothing can be drawn over there.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = kind(emoji=False, markup=False, highlight=False)
    if console.is_jupyter:
        return kind(emoji=False, markup=False, highlight=False, force_jupyter=False, force_terminal=False, width=120)
    return console


def make_progress(console: Console) -> Progress:
    """Return a progress bar that disappears when it is full; it shows nothing without a terminal."""
    description = TextColumn("{task.description}", markup=False)  # markup would also enable emoji
    columns = (description, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
