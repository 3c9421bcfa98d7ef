"""Shared code of the benchmarks: CPU and wall clocks, medians with quartiles, goals, tables and JSON.

Compared tasks are interleaved in one run (ours, peer, ours, peer ...), so that a temporarily busy machine slows both.
Ratios are computed per repetition. CPU time is compared, because other work on the machine adds to wall time but not to
CPU time; wall time is also written to the JSON file.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from dpsr_apex.machine import cpu_model, usable_cores

REPETITIONS = 9
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
BREAKOUT = Path(__file__).with_name("breakout.toml")  # the config of all benchmarks that train

APEX_ACTORS, APEX_IN, APEX_OUT = (
    360,
    12_500,
    19,
)  # Ape-X's published load: actors, transitions and batches of 512 per second
PACKAGES = ("numpy", "numba", "torch", "gymnasium", "ale-py", "opencv-python-headless", "lz4")


class Elapsed(NamedTuple):
    """CPU and wall time in seconds."""

    cpu: float
    wall: float

    def per(self, count: int) -> Elapsed:
        """Return the time of one of `count` equal operations."""
        return Elapsed(self.cpu / count, self.wall / count)


class Timer:
    """Has the `elapsed` time after its block has ended."""

    elapsed = Elapsed(0.0, 0.0)


@contextmanager
def timed() -> Iterator[Timer]:
    """Time a block; the garbage collector runs before it and is disabled inside."""
    timer = Timer()
    gc.collect()
    gc.disable()
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        yield timer
    finally:
        timer.elapsed = Elapsed(time.process_time() - cpu, time.perf_counter() - wall)
        gc.enable()


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that another process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def interleave(tasks: Mapping[str, Callable[[], Elapsed]], repetitions: int = REPETITIONS) -> dict[str, list[Elapsed]]:
    """Run all tasks in turn, `repetitions` times, and return their times; a first warm-up round is discarded."""
    for task in tasks.values():
        task()
    rounds = [{name: task() for name, task in tasks.items()} for _ in range(repetitions)]
    return {name: [times[name] for times in rounds] for name in tasks}


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    low: float
    high: float

    def show(self, digits: int | None = None) -> str:
        """Format the median and, if it is not a single value, the quartiles; by default one decimal below 1,000."""
        digits = int(self.median < 1_000) if digits is None else digits
        median, low, high = (f"{value:,.{digits}f}" for value in self)
        return median if self.low == self.high else f"{median} ({low} – {high})"


def spread(values: Sequence[float]) -> Spread:
    """Compute median and quartiles."""
    low, median, high = np.percentile(values, (25, 50, 75)).tolist()
    return Spread(median, low, high)


def ratio(ours: Sequence[Elapsed], peer: Sequence[Elapsed]) -> Spread:
    """Return our speed-up over the peer in CPU time."""
    return spread([theirs.cpu / own.cpu for own, theirs in zip(ours, peer, strict=True)])


class Comparison(NamedTuple):
    """One task, measured for us and for a peer in the same run: a row of the table of `make bench`."""

    work: str
    baseline: str  # the peer; if it has no such operation, the nearest one that can be built from it
    unit: str  # of `ours` and `peer`
    ours: Spread
    peer: Spread
    ratio: Spread  # our speed-up, or how many times smaller ours is
    goal: float | None  # the minimum ratio; None if only the best of several peers has a goal

    @property
    def reached(self) -> bool:
        """Whether there is no goal, or the median ratio reaches it."""
        return self.goal is None or self.ratio.median >= self.goal


def at_most(work: str, unit: str, measured: Sequence[float], limit: float) -> Comparison:
    """Return the comparison of a cost with its upper limit; the ratio is how far below the limit it is, up to 100."""
    ratio = spread([limit / max(value, limit / 100) for value in measured])
    return Comparison(work, "its upper limit", unit, spread(measured), Spread(limit, limit, limit), ratio, 1.0)


@dataclass
class Report:
    """The results of one benchmark: tables for people, and the same numbers as plain values for programs."""

    name: str
    figures: dict[str, Any] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    load_at_start: tuple[float, ...] = field(default_factory=os.getloadavg)

    def record(self, work: str, times: Mapping[str, Sequence[Elapsed]], scale: float, unit: str) -> None:
        """Store the CPU and wall times of a task by implementation, in seconds times `scale` (the `unit`)."""
        self.figures[work] = {"unit": unit} | {
            name: {clock: spread([getattr(one, clock) * scale for one in many])._asdict() for clock in Elapsed._fields}
            for name, many in times.items()
        }

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print one table; the first column is text, the others are numbers."""
        print_table(title, columns, rows)

    def compare(self, comparison: Comparison) -> None:
        """Add a row to the table of all benchmarks, and print it."""
        self.comparisons.append(comparison)
        verdict = "" if comparison.goal is None else f" (goal {comparison.goal:g}: {_verdict(comparison)})"
        print(f"{comparison.work}, vs {comparison.baseline}: speed-up {comparison.ratio.show(2)}{verdict}")

    def finish(self, path: Path | None) -> int:
        """Describe the machine, and write the results to `path` if there is one.

        Return the exit code, which is 0 even if goals were missed; the table shows that.
        """
        machine = describe_machine() | {"load_at_start": self.load_at_start[0], "load_at_end": os.getloadavg()[0]}
        print(*(f"{key}: {value}" for key, value in machine.items()), sep="; ")
        if path:
            lines = [plain_values(line) for line in self.comparisons]
            content = {"benchmark": self.name, "machine": machine, "figures": self.figures, "comparisons": lines}
            path.write_text(json.dumps(content, indent=2) + "\n")
        return 0


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to the terminal; the first column is text, the others are numbers."""
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    # A pipe has no width, and numbers must not be truncated.
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *rows))


def show_table(comparisons: Sequence[Comparison]) -> None:
    """Print all comparisons to the terminal."""
    rows = [
        [
            f"{line.work}\n  vs {line.baseline}",
            f"{line.ours.show()}\n{line.peer.show()}",
            line.unit,
            line.ratio.show(2),
            "" if line.goal is None else f"{line.goal:g} {_verdict(line)}",
        ]
        for line in comparisons
    ]
    print_table("Compared with alternatives", ("task", "ours, theirs", "unit", "speed-up", "goal"), rows)


def plain_values(comparison: Comparison) -> dict[str, Any]:
    """Convert a comparison to plain values for JSON."""
    return {
        name: value._asdict() if isinstance(value, Spread) else value for name, value in comparison._asdict().items()
    }


def comparison_from(values: Mapping[str, Any]) -> Comparison:
    """Invert `plain_values`."""
    fields: dict[str, Any] = {
        name: Spread(**value) if isinstance(value, dict) else value for name, value in values.items()
    }
    return Comparison(**fields)


def _verdict(comparison: Comparison) -> str:
    return "reached" if comparison.reached else "MISSED"


def describe_machine() -> dict[str, Any]:
    """Describe the machine and the package versions that the results depend on."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "system": platform.system(),
        "python": platform.python_version(),
    } | {name: importlib.metadata.version(name) for name in PACKAGES}


@dataclass(frozen=True)
class Options:
    """Command-line options of every benchmark."""

    json: Path | None  # output file
    plots: Path | None  # output folder


def parse_options(description: str | None) -> Options:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the plots, if there are any, to this folder")
    return Options(**vars(parser.parse_args()))
