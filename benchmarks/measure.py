"""What all benchmarks share: two clocks, medians with their spread, goals, tables and JSON.

Whatever is compared is interleaved in one run (ours, peer, ours, peer ...), so that a machine that is busy for a while
slows both. Ratios are taken repetition by repetition. CPU time decides, because other work on the machine adds to wall
time but not to it; wall time is written to the JSON file beside it.
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

REPETITIONS = 9
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
APEX_ACTORS, APEX_IN, APEX_OUT = 360, 12_500, 19  # Ape-X as published: transitions in, batches of 512 out, per second
PACKAGES = ("numpy", "numba", "torch", "gymnasium", "ale-py", "opencv-python-headless", "lz4")


class Elapsed(NamedTuple):
    """Seconds that some work took."""

    cpu: float
    wall: float

    def per(self, count: int) -> Elapsed:
        """The same for one of `count` equal pieces of work."""
        return Elapsed(self.cpu / count, self.wall / count)


class Timer:
    """Holds the `elapsed` time once its block has been left."""

    elapsed = Elapsed(0.0, 0.0)


@contextmanager
def timed() -> Iterator[Timer]:
    """Time a block; the garbage collector runs before it, not in it."""
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
    """CPU seconds of another process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def interleave(works: Mapping[str, Callable[[], Elapsed]], repetitions: int = REPETITIONS) -> dict[str, list[Elapsed]]:
    """Every work once, then every work again ...; a first round, in which caches fill, is thrown away."""
    for work in works.values():
        work()
    rounds = [{name: work() for name, work in works.items()} for _ in range(repetitions)]
    return {name: [done[name] for done in rounds] for name in works}


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    low: float
    high: float

    def show(self, digits: int | None = None) -> str:
        """The median, and behind it the interquartile range, if there is one; large numbers need no digits."""
        digits = int(self.median < 1_000) if digits is None else digits
        middle, low, high = (f"{value:,.{digits}f}" for value in self)
        return middle if self.low == self.high else f"{middle} ({low} – {high})"


def spread(values: Sequence[float]) -> Spread:
    low, median, high = np.percentile(values, (25, 50, 75)).tolist()
    return Spread(median, low, high)


def ratio(ours: Sequence[Elapsed], peer: Sequence[Elapsed]) -> Spread:
    """How many times faster ours is, in CPU time."""
    return spread([theirs.cpu / own.cpu for own, theirs in zip(ours, peer, strict=True)])


class Comparison(NamedTuple):
    """One work, done by us and by a peer in the same run: a line of the table that `make bench` makes."""

    work: str
    beside: str  # the peer; for work that it cannot do, the nearest thing that can be built from it
    unit: str  # of the two figures
    ours: Spread
    peer: Spread
    ratio: Spread  # how many times better ours is
    goal: float | None  # the least ratio wanted; None where only the best of several peers counts

    @property
    def reached(self) -> bool:
        """Whether there is no goal, or the median of the ratio has it."""
        return self.goal is None or self.ratio.median >= self.goal


@dataclass
class Report:
    """The figures of one benchmark: tables for a reader, and the same as plain values for a program."""

    name: str
    figures: dict[str, Any] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    load_at_start: tuple[float, ...] = field(default_factory=os.getloadavg)

    def record(self, work: str, times: Mapping[str, Sequence[Elapsed]], scale: float, unit: str) -> None:
        """Keep CPU and wall times (seconds times `scale`, which is `unit`) of a work, by who did it."""
        self.figures[work] = {"unit": unit} | {
            who: {clock: spread([getattr(one, clock) * scale for one in done])._asdict() for clock in Elapsed._fields}
            for who, done in times.items()
        }

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print one table; the first column is words, the others are figures."""
        print_table(title, columns, rows)

    def compare(self, comparison: Comparison) -> None:
        """Add a line to the table of all benchmarks, and print it."""
        self.comparisons.append(comparison)
        verdict = "" if comparison.goal is None else f"; goal {comparison.goal:g}: {_verdict(comparison)}"
        print(f"{comparison.work}, beside {comparison.beside}: {comparison.ratio.show(2)} times{verdict}")

    def finish(self, path: Path | None) -> int:
        """Describe the machine, and write the figures to `path` if there is one.

        The exit code that is returned is 0 whether goals were reached or not: the table tells that.
        """
        machine = describe_machine() | {"load_at_start": self.load_at_start[0], "load_at_end": os.getloadavg()[0]}
        print(*(f"{key}: {value}" for key, value in machine.items()), sep="; ")
        if path:
            lines = [plain_values(line) for line in self.comparisons]
            content = {"benchmark": self.name, "machine": machine, "figures": self.figures, "comparisons": lines}
            path.write_text(json.dumps(content, indent=2) + "\n")
        return 0


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """To the terminal; the first column is words, the others are figures."""
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    # A pipe has no width of its own, and figures must not be cut.
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same for a document."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, ["---"] * len(columns), *rows))


def show_table(comparisons: Sequence[Comparison]) -> None:
    """All comparisons for a reader at a terminal."""
    rows = [
        [
            f"{line.work}\n  beside {line.beside}",
            f"{line.ours.show()}\n{line.peer.show()}",
            line.unit,
            line.ratio.show(2),
            "" if line.goal is None else f"{line.goal:g} {_verdict(line)}",
        ]
        for line in comparisons
    ]
    print_table(
        "Ours beside what a user would pick instead", ("work", "ours, peer", "unit", "times better", "goal"), rows
    )


def plain_values(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain values, spreads included."""
    return {
        name: value._asdict() if isinstance(value, Spread) else value for name, value in comparison._asdict().items()
    }


def comparison_from(plain: Mapping[str, Any]) -> Comparison:
    """What `plain_values` was given."""
    values: dict[str, Any] = {
        name: Spread(**value) if isinstance(value, dict) else value for name, value in plain.items()
    }
    return Comparison(**values)


def _verdict(comparison: Comparison) -> str:
    return "reached" if comparison.reached else "MISSED"


def describe_machine() -> dict[str, Any]:
    """What the figures depend on."""
    info = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.system(),
        "python": platform.python_version(),
    } | {name: importlib.metadata.version(name) for name in PACKAGES}


@dataclass(frozen=True)
class Options:
    """What every benchmark can be told."""

    json: Path | None
    plots: Path | None  # a folder


def parse_options(description: str | None) -> Options:
    """From the command line."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the plots there, if this one has any")
    return Options(**vars(parser.parse_args()))
