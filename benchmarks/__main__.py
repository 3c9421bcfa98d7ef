"""Everything that `make bench` measures, one benchmark after the other, and the table that comes of it.

Each benchmark is a process of its own, so that none warms a cache or holds memory for another. What is written:
`results.json` with every figure and the machine's description, `results.md` with the table, and the plots.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import describe_machine, show_table
from benchmarks.publish import comparisons_of, full_table, machine

BENCHMARKS = ("core", "memory", "atari_throughput", "replay_traffic", "learner", "whole_system")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these; all are {', '.join(BENCHMARKS)}")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="where to write to (default: %(default)s)")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    return arguments


def run(name: str, out: Path) -> dict[str, Any] | None:
    """The results of one benchmark; None if it broke."""
    results = out / f"{name}.json"
    results.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--json", results, "--plots", out], check=False)
    if done.returncode or not results.exists():
        return None
    found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
    return found


def main() -> int:
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = arguments.names or BENCHMARKS
    began = time.monotonic()
    found: dict[str, dict[str, Any]] = {}
    for place, name in enumerate(names, start=1):
        print(f"== {place} of {len(names)}: {name}, after {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
        if results := run(name, arguments.out):
            found[name] = results
    minutes = round((time.monotonic() - began) / 60, 1)
    content = {"machine": describe_machine(), "minutes": minutes, "benchmarks": found}
    comparisons = comparisons_of(content)
    (arguments.out / "results.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (arguments.out / "results.md").write_text(f"{machine(content)}\n\n{full_table(comparisons)}\n", encoding="utf-8")
    show_table(comparisons)
    print(f"{minutes:.1f} minutes; written to {arguments.out}/results.md and results.json")
    broken = [name for name in names if name not in found]
    if broken:
        print(f"these broke: {', '.join(broken)}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
