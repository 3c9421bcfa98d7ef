"""Everything that `make bench` measures, one benchmark after the other, and the table that comes of it.

Each benchmark is a process of its own, so that none warms a cache or holds memory for another. What is written:
`results.json` with every figure and the machine's description, `results.md` with the table, and the plots. When only
some are run, the table still has the newest results of the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from benchmarks.measure import describe_machine, show_table
from benchmarks.publish import BENCHMARKS, comparisons_of, full_table, machine


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these; all are {', '.join(BENCHMARKS)}")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="where to write to (default: %(default)s)")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    return arguments


class Screen:
    """How far the benchmarks are: a bar below what they print, and plain lines where there is no terminal."""

    def __init__(self, names: Sequence[str]) -> None:
        self.console = Console()
        self._names = names
        self._began = time.monotonic()
        # Once a second: what draws more often is in the way of what is measured.
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.progress = Progress(
            *columns, console=self.console, refresh_per_second=1, disable=not self.console.is_terminal
        )
        self._task = self.progress.add_task("", total=len(names))

    def begin(self, place: int) -> None:
        """Say that this one, counted from 0, is being measured."""
        name, minutes = self._names[place], (time.monotonic() - self._began) / 60
        self.progress.update(self._task, completed=place, description=name)
        self.say(f"== {place + 1} of {len(self._names)}: {name}, after {minutes:.1f} minutes")

    def end(self) -> None:
        """Fill the bar."""
        self.progress.update(self._task, completed=len(self._names), description="done")

    def say(self, text: str) -> None:
        """Print what may have colours already."""
        self.console.print(Text.from_ansi(text), soft_wrap=True)

    def call(self, command: Sequence[str | Path]) -> int:
        """Run a command, with what it prints above the bar; its exit code."""
        if not self.console.is_terminal:
            return subprocess.run(command, check=False).returncode
        as_here = {"FORCE_COLOR": "1", "COLUMNS": str(self.console.width), "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | as_here
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                self.say(line.rstrip("\n"))
        return process.returncode


def run(name: str, out: Path, screen: Screen) -> bool:
    """Run one benchmark, which leaves its results in a file; whether it did."""
    results, began = results_of(name, out), time.monotonic()
    results.unlink(missing_ok=True)
    code = screen.call([sys.executable, "-m", f"benchmarks.{name}", "--json", results, "--plots", out])
    if code or not results.exists():
        return False
    content = json.loads(results.read_text(encoding="utf-8"))
    content["minutes"] = round((time.monotonic() - began) / 60, 1)
    results.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return True


def results_of(name: str, out: Path) -> Path:
    return out / f"{name}.json"


def gather(out: Path) -> dict[str, Any]:
    """The newest results of every benchmark that was run into this folder."""
    found = {name: results_of(name, out) for name in BENCHMARKS}
    there = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in found.items() if path.exists()}
    return {"machine": describe_machine(), "benchmarks": there}


def main() -> int:
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = arguments.names or BENCHMARKS
    screen = Screen(names)
    broken = []
    with screen.progress:
        for place, name in enumerate(names):
            screen.begin(place)
            if not run(name, arguments.out, screen):
                broken.append(name)
        screen.end()
    content = gather(arguments.out)
    comparisons = comparisons_of(content)
    (arguments.out / "results.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    table = f"{machine(content)}\n\n{full_table(comparisons)}\n"
    (arguments.out / "results.md").write_text(table, encoding="utf-8")
    show_table(comparisons)
    print(f"written to {arguments.out}/results.md and results.json")
    if broken:
        print(f"these broke: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
