"""The tutorial notebook runs from top to bottom in a real kernel."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.documents import ROOT

NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path: Path) -> None:
    notebook = nbformat.reads(NOTEBOOK.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    NotebookClient(
        notebook, timeout=300, coalesce_streams=True, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sum("image/png" in output.get("data", {}) for cell in code for output in cell.outputs) == 2
    printed = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    assert "evaluation at t = 1,000" in printed
    assert "left  right" in printed
