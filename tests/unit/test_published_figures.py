"""The numbers in the documents are the published results of `make bench`."""

import json
from pathlib import Path

import pytest

from benchmarks.explorer import BY_PLOTLY, CLICK, FIRST, SPEED, WHOLE, compare_speeds, compare_views
from benchmarks.measure import plain_values
from benchmarks.publish import BENCHMARKS, DOCUMENTS, PUBLISHED, SEPARATE, comparisons_of, explorer, fill_in

RESULTS = json.loads((PUBLISHED / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_show_the_published_results(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert "<!-- bench: " in text
    assert fill_in(text, RESULTS) == text


def test_the_figures_of_the_explorer_are_described_once_they_are_measured() -> None:
    times = {FIRST: [512.4], WHOLE: [1_812.0], BY_PLOTLY: [3_624.0], CLICK: [148.0]}
    views = [plain_values(line) for line in compare_views(times)]
    speeds = plain_values(compare_speeds({"watched": [97.0], "unwatched": [100.0], SPEED: [0.97]}))
    measured = {"explorer_views": {"comparisons": views}, "explorer_watching": {"comparisons": [speeds]}}
    found = explorer({"benchmarks": measured})
    assert [figure in found for figure in ("512 ms", "1,812 ms", "148 ms", "97.0%")] == [True] * 4
    assert explorer({"benchmarks": {}}) == ""


def test_every_benchmark_is_published_with_quartiles() -> None:
    comparisons = comparisons_of(RESULTS)
    assert set(BENCHMARKS) <= RESULTS["benchmarks"].keys() <= {*BENCHMARKS, *SEPARATE}
    assert all(line.ratio.low <= line.ratio.median <= line.ratio.high for line in comparisons)
