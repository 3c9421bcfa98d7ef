"""The numbers in the documents are the published results of `make bench`."""

import json
from pathlib import Path

import pytest

from benchmarks.publish import BENCHMARKS, DOCUMENTS, PUBLISHED, comparisons_of, fill_in

RESULTS = json.loads((PUBLISHED / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_show_the_published_results(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert "<!-- bench: " in text
    assert fill_in(text, RESULTS) == text


def test_every_benchmark_is_published_with_quartiles() -> None:
    comparisons = comparisons_of(RESULTS)
    assert set(BENCHMARKS) == RESULTS["benchmarks"].keys()
    assert all(line.ratio.low <= line.ratio.median <= line.ratio.high for line in comparisons)
