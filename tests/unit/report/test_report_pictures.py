"""Pictures show all of their text."""

from __future__ import annotations

import pytest

from dpsr_apex.report.pictures import drawing, legend_below


@pytest.mark.parametrize("words", [1, 5, 20])
def test_a_legend_is_within_its_picture(words: int) -> None:
    with drawing(4.0) as figure:
        axes = figure.subplots()
        for method in ("dpsr", "per"):
            axes.plot([0, 1], label=f"{method} · {'learning_starts ' * words}")
        legend_below(figure, axes)
    (legend,) = figure.legends
    extent = legend.get_window_extent()
    assert figure.bbox.x0 <= extent.x0 < extent.x1 <= figure.bbox.x1
