"""Run the benchmarks of `make bench` one after the other, and write a table of the results.

Each benchmark runs in its own process, so that none warms a cache or holds memory for another. Output: `results.json`
with all numbers and a description of the machine, `results.md` with the table, and the plots. If only some benchmarks
are run, the table still includes the newest results of the others.
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
from benchmarks.publish import BENCHMARKS, SEPARATE, comparisons_of, full_table, machine


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"benchmarks to run (default: all of {', '.join(BENCHMARKS)})"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="output folder (default: %(default)s)")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"unknown benchmark: {', '.join(sorted(unknown))}; choose from {', '.join(BENCHMARKS)}")
    return arguments


class ProgressDisplay:
    """Shows progress: a bar below the benchmarks' output, or plain lines without a terminal."""

    def __init__(self, names: Sequence[str]) -> None:
        self.console = Console()
        self._names = names
        self._started = time.monotonic()
        # Once a second: more frequent drawing would disturb the measurements.
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.progress = Progress(
            *columns, console=self.console, refresh_per_second=1, disable=not self.console.is_terminal
        )
        self._task = self.progress.add_task("", total=len(names))

    def start(self, index: int) -> None:
        """Show that benchmark number `index` (from 0) is running."""
        name, minutes = self._names[index], (time.monotonic() - self._started) / 60
        self.progress.update(self._task, completed=index, description=name)
        self.print(f"== {index + 1} of {len(self._names)}: {name}, after {minutes:.1f} minutes")

    def finish(self) -> None:
        """Fill the bar."""
        self.progress.update(self._task, completed=len(self._names), description="done")

    def print(self, text: str) -> None:
        """Print text that may contain ANSI colours."""
        self.console.print(Text.from_ansi(text), soft_wrap=True)

    def run(self, command: Sequence[str | Path]) -> int:
        """Run a command, show its output above the bar, and return its exit code."""
        if not self.console.is_terminal:
            return subprocess.run(command, check=False).returncode
        terminal = {"FORCE_COLOR": "1", "COLUMNS": str(self.console.width), "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | terminal
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                self.print(line.rstrip("\n"))
        return process.returncode


def run(name: str, out: Path, display: ProgressDisplay) -> bool:
    """Run one benchmark and return whether it wrote its results file."""
    results, started = results_of(name, out), time.monotonic()
    results.unlink(missing_ok=True)
    code = display.run([sys.executable, "-m", f"benchmarks.{name}", "--json", results, "--plots", out])
    if code or not results.exists():
        return False
    content = json.loads(results.read_text(encoding="utf-8"))
    content["minutes"] = round((time.monotonic() - started) / 60, 1)
    results.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return True


def results_of(name: str, out: Path) -> Path:
    return out / f"{name}.json"


def gather(out: Path) -> dict[str, Any]:
    """Collect the newest results of every benchmark in this folder."""
    paths = {name: results_of(name, out) for name in (*BENCHMARKS, *SEPARATE)}
    results = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}
    return {"machine": describe_machine(), "benchmarks": results}


def main() -> int:
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = arguments.names or BENCHMARKS
    display = ProgressDisplay(names)
    failed = []
    with display.progress:
        for index, name in enumerate(names):
            display.start(index)
            if not run(name, arguments.out, display):
                failed.append(name)
        display.finish()
    content = gather(arguments.out)
    comparisons = comparisons_of(content)
    (arguments.out / "results.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    table = f"{machine(content)}\n\n{full_table(comparisons)}\n"
    (arguments.out / "results.md").write_text(table, encoding="utf-8")
    show_table(comparisons)
    print(f"written to {arguments.out}/results.md and results.json")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
