"""Publish results of `make bench` in the documents: run `python -m benchmarks.publish` after a run on an idle machine.

Results and plots are copied to `docs/bench/`. The marked parts of README.md and of some pages in `docs/` are
regenerated from them and from `docs/scaling/`. With `docs/bench` itself as the folder, only the documents are written;
with `--add`, the results of single benchmarks join those that are published. Benchmarks that are not part of
`make bench` keep their results. Numbers in marked parts are never edited by hand; a test compares them.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import frame_sizes, scaling, sizing
from benchmarks.measure import Comparison, Spread, comparison_from, markdown_table

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "docs" / "bench"
BENCHMARKS = (
    *("core", "buffer", "memory", "frame_sizes", "atari_throughput", "replay_traffic", "key_costs", "journal"),
    *("pipeline", "learner", "whole_system", "startup"),
)
# Too long for `make bench`, or in need of a browser; their results are included if there are any.
SEPARATE = ("time_to_score", "explorer_views", "explorer_watching")
DOCUMENTS = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("performance", "scaling", "durability", "explorer", "machines", "experiments")
    ),
)


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


def brief(results: Mapping[str, Any]) -> str:
    """Return one line about memory and about the replay over sockets, for the README."""
    benchmarks = results["benchmarks"]
    memory = comparison_from(benchmarks["memory"]["comparisons"][0])
    ratios = [
        line.ratio.median
        for line in map(comparison_from, benchmarks["replay_traffic"]["comparisons"])
        if line.goal is not None and line.baseline.startswith("Reverb")
    ]
    return (
        f"- **Small and fast.** A transition of Breakout takes {memory.ours.median:,.0f} bytes with its snapshot,\n"
        f"  and the replay over sockets is {min(ratios):.1f} to {max(ratios):.1f} times as fast as Reverb."
    )


def frames(results: Mapping[str, Any]) -> str:
    """Return the bytes of frames, snapshots and transitions of different games, in Markdown."""
    return markdown_table(
        frame_sizes.HEADER, frame_sizes.rows_of(results["benchmarks"]["frame_sizes"]["figures"]["bytes"])
    )


def growth(results: Mapping[str, Any]) -> str:
    """Return how the costs of the replay grow with its size and with the number of actors, in one paragraph."""
    core, traffic = (results["benchmarks"][name]["figures"] for name in ("core", "replay_traffic"))
    insertion, sampling = (
        core[f"growth: {task}, N = 10000000"]["ours"]["cpu"]["median"]
        / core[f"growth: {task}, N = 10000"]["ours"]["cpu"]["median"]
        for task in ("insert", "sample_update")
    )
    rates = [rate["cpu"]["median"] for rate in traffic["transitions per second by actors"].values()]
    text = (
        f"From ten thousand slots to ten million, an insertion becomes {insertion:.1f} times as expensive, and "
        f"sampling with an update of priorities {sampling:.1f} times: the trees become two to four levels deeper, and "
        "a smaller part of them fits into the caches. The number of actors, each with its own socket, hardly matters "
        f"to the replay process: {min(rates):,.0f} to {max(rates):,.0f} transitions per second of its CPU time with "
        "N = 50,000."
    )
    return textwrap.fill(text, 120)


def durability(results: Mapping[str, Any]) -> str:
    """Return what the journal and the state of the learner cost, in Markdown."""
    figures = results["benchmarks"]["journal"]["figures"]
    load, recovery, state = figures["load"], figures["recovery"], figures["learner state"]
    names = ("none", "process", "power")
    rows = [
        [f"{what}, {unit}", *(Spread(**load[name][column]).show(1) for name in names)]
        for what, unit, column in (
            ("CPU time of the replay process", "% of a core", "% of a core at 12,500/s"),
            ("acknowledgements (p50)", "ms", "p50, ms"),
            ("acknowledgements (p99)", "ms", "p99, ms"),
        )
    ]
    costs = [line for line in map(comparison_from, results["benchmarks"]["journal"]["comparisons"]) if "%" in line.unit]
    rows.insert(1, ["of it the journal, % of a core", "", *(line.ours.show(1) for line in costs)])
    limits = " and ".join(f"{line.peer.median:g}%" for line in costs)
    save, update = (Spread(**state[what]["cpu"]).median for what in ("save", "update"))
    return f"""{markdown_table(("", *(f'`"{name}"`' for name in names)), rows)}

At most {limits} of a core, and 100 ms with `"power"`, were allowed.

- **Recovery**: 1,000,000 transitions and the {recovery["batches"]:,} batches of 512 sampled between them,
  {recovery["bytes"] / 1e6:,.0f} MB, took {recovery["wall"]:.1f} s ({recovery["cpu"]:.1f} s of CPU time);
  at most 30 s were allowed.
- **The learner's state**: one of the network of Breakout has {state["bytes"] / 1e6:.1f} MB and costs {save:.0f} ms
  of CPU time in both processes together, against {update:.0f} ms for one update of 32:
  {save / update / 10:.2f}% of the time of the 1,000 updates between two states."""


def explorer(results: Mapping[str, Any]) -> str:
    """Return how fast the explorer is and what it costs a run, in Markdown; empty if that has not been measured."""
    found = results["benchmarks"]
    if not {"explorer_views", "explorer_watching"} <= found.keys():
        return ""
    first, whole, frame = (comparison_from(line).ours.median for line in found["explorer_views"]["comparisons"])
    speed = comparison_from(found["explorer_watching"]["comparisons"][0]).ratio.median
    return f"""Without a graphics card, the map of 1,000,000 transitions has its first view {first:,.0f} ms after it was
opened and all points after {whole:,.0f} ms, and a moment shows its first frame {frame:,.0f} ms after the click. A run
that a page and a map follow has {speed:.1%} of the speed of one that nobody watches
([how this was measured](performance.md#all-comparisons))."""


def machine(results: Mapping[str, Any]) -> str:
    """Describe the machine and the versions in one sentence."""
    facts = dict(results["machine"])
    cpu, cores = facts.pop("cpu"), facts.pop("cores")
    versions = ", ".join(f"{name} {version}" for name, version in facts.items() if name != "system")
    minutes = sum(found.get("minutes", 0.0) for found in results["benchmarks"].values())
    return f"{cpu}, {cores} cores, {facts['system']}; {versions}. Duration: {minutes:.0f} minutes."


def fill_in(document: str, results: Mapping[str, Any]) -> str:
    """Return the document with each marked part regenerated; raise ValueError if it has none."""
    comparisons = comparisons_of(results)
    parts = {"table": full_table(comparisons), "headline": headline(comparisons)}
    parts |= {"machine": machine(results), "brief": brief(results), "durability": durability(results)}
    parts |= {"explorer": explorer(results), "frames": frames(results), "growth": growth(results)}
    parts |= {"sizing": sizing.sizing(results), "durations": sizing.durations(results)}
    parts |= scaling.parts(results)

    def regenerate(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- bench: {name} -->\n{parts[name]}\n<!-- end of bench -->"

    marked = r"<!-- bench: (?P<name>\w+) -->\n.*?<!-- end of bench -->"
    filled, count = re.subn(marked, regenerate, document, flags=re.DOTALL)
    if not count:
        raise ValueError("the document has no part marked with <!-- bench: NAME -->")
    return filled


def _separate() -> dict[str, Any]:
    """Return the published results of the benchmarks that `make bench` does not run."""
    found = json.loads((PUBLISHED / "results.json").read_text(encoding="utf-8"))["benchmarks"]
    return {name: found[name] for name in SEPARATE if name in found}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.publish", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/bench"), help="(default: %(default)s)")
    parser.add_argument(
        "--add",
        type=Path,
        nargs="+",
        default=(),
        metavar="FILE",
        help="results of single benchmarks, in place of older ones",
    )
    given = parser.parse_args()
    folder: Path = given.folder
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    for added in (json.loads(file.read_text(encoding="utf-8")) for file in given.add):
        results["benchmarks"][added["benchmark"]] = added
    results["benchmarks"] = _separate() | results["benchmarks"]
    if missing := sorted(set(BENCHMARKS) - results["benchmarks"].keys()):
        parser.error(f"results are missing for {', '.join(missing)}: run make bench")
    PUBLISHED.mkdir(exist_ok=True)
    (PUBLISHED / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if folder.resolve() != PUBLISHED:
        for path in folder.glob("*.png"):
            shutil.copy(path, PUBLISHED)
    for document in DOCUMENTS:
        document.write_text(fill_in(document.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
