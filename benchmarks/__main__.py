"""Everything that `make bench` measures, one benchmark after the other, and the table that comes of it.

Each benchmark is a process of its own, so that none warms a cache or holds memory for another. What is written:
`results.json` with every figure and the machine's description, `results.md` with the table, and the plots. When only
some are run, the table still has the newest results of the others.
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
from benchmarks.publish import BENCHMARKS, comparisons_of, full_table, machine


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these; all are {', '.join(BENCHMARKS)}")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"), help="where to write to (default: %(default)s)")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    return arguments


def run(name: str, out: Path) -> bool:
    """Run one benchmark, which leaves its results in a file; whether it did."""
    results, began = results_of(name, out), time.monotonic()
    results.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--json", results, "--plots", out], check=False)
    if done.returncode or not results.exists():
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
    began = time.monotonic()
    broken = []
    for place, name in enumerate(names, start=1):
        print(f"== {place} of {len(names)}: {name}, after {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
        if not run(name, arguments.out):
            broken.append(name)
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
