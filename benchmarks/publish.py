"""Publish results of `make bench` in the documents: run `python -m benchmarks.publish` after a run on an idle machine.

Results and plots are copied to `docs/bench/`. The marked parts of README.md, docs/performance.md and docs/scaling.md
are regenerated from them and from `docs/scaling/`. With `docs/bench` itself as the folder, only the documents are
written. Numbers in marked parts are never edited by hand; a test compares them.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import scaling
from benchmarks.measure import Comparison, comparison_from, markdown_table

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "docs" / "bench"
BENCHMARKS = ("core", "memory", "atari_throughput", "replay_traffic", "learner", "whole_system")
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "performance.md", ROOT / "docs" / "scaling.md")


def comparisons_of(results: Mapping[str, Any]) -> list[Comparison]:
    """Return the comparisons of all benchmarks."""
    return [comparison_from(line) for found in results["benchmarks"].values() for line in found["comparisons"]]


def full_table(comparisons: Sequence[Comparison]) -> str:
    """Return every comparison, with quartiles, in Markdown."""
    rows = []
    for line in comparisons:
        goal = "" if line.goal is None else f"{line.goal:g}: {'reached' if line.reached else '**missed**'}"
        rows.append((line.work, line.baseline, line.unit, line.ours.show(), line.peer.show(), line.ratio.show(2), goal))
    return markdown_table(("task", "baseline", "unit", "ours", "theirs", "speed-up", "goal"), rows)


def headline(comparisons: Sequence[Comparison]) -> str:
    """Return every task that has a goal with its strongest baseline, and the missed goals, in Markdown."""
    works: dict[str, list[Comparison]] = {}
    for line in comparisons:
        if line.goal is not None:
            works.setdefault(line.work, []).append(line)
    strongest = {work: min(lines, key=lambda line: line.ratio.median) for work, lines in works.items()}
    rows = [(work, line.baseline, line.ratio.show(2)) for work, line in strongest.items()]
    table = markdown_table(("task", "strongest baseline", "speed-up"), rows)
    missed = [
        f"- {line.work}, vs {line.baseline}: {line.ratio.median:.2f} (goal {line.goal:g})"
        for line in comparisons
        if not line.reached
    ]
    return "\n".join([table, "", "Missed goals:", "", *missed]) if missed else table


def machine(results: Mapping[str, Any]) -> str:
    """Describe the machine and the versions in one sentence."""
    facts = dict(results["machine"])
    cpu, cores = facts.pop("cpu"), facts.pop("cores")
    versions = ", ".join(f"{name} {version}" for name, version in facts.items() if name != "system")
    minutes = sum(found["minutes"] for found in results["benchmarks"].values())
    return f"{cpu}, {cores} cores, {facts['system']}; {versions}. Duration: {minutes:.0f} minutes."


def fill_in(document: str, results: Mapping[str, Any]) -> str:
    """Return the document with each marked part regenerated; raise ValueError if it has none."""
    comparisons = comparisons_of(results)
    parts = {"table": full_table(comparisons), "headline": headline(comparisons), "machine": machine(results)}
    parts |= scaling.parts(results)

    def regenerate(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- bench: {name} -->\n{parts[name]}\n<!-- end of bench -->"

    marked = r"<!-- bench: (?P<name>\w+) -->\n.*?<!-- end of bench -->"
    filled, count = re.subn(marked, regenerate, document, flags=re.DOTALL)
    if not count:
        raise ValueError("the document has no part marked with <!-- bench: NAME -->")
    return filled


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.publish", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/bench"), help="(default: %(default)s)")
    folder = parser.parse_args().folder
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    if missing := sorted(set(BENCHMARKS) - results["benchmarks"].keys()):
        parser.error(f"results are missing for {', '.join(missing)}: run make bench")
    PUBLISHED.mkdir(exist_ok=True)
    for path in (folder / "results.json", *folder.glob("*.png")):
        if folder.resolve() != PUBLISHED:
            shutil.copy(path, PUBLISHED)
    for document in DOCUMENTS:
        document.write_text(fill_in(document.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
