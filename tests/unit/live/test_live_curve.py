from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from dpsr_apex.live.curve import draw_curve

ROWS: list[dict[str, Any]] = [
    {"t": t, "return_mean": None if t % 3 else t / 10, "epsilon": 1 - t / 100, "fill": t / 100, "loss": 1 / t}
    for t in range(1, 101)
]
EVALUATIONS: list[dict[str, Any]] = [
    {"t": 50, "scores": [1.0, 5.0]},
    {"t": 100, "scores": [7.0]},
    {"t": 101, "scores": []},
]
SILENT: list[dict[str, Any]] = [{"t": 1, "return_mean": None, "loss": None}]


def colours(path: Path) -> set[int]:
    pixels = (imread(path)[..., :3] * 255).round().astype(int)
    return set(np.unique(pixels @ [0x10000, 0x100, 1]).tolist())


@pytest.mark.parametrize(
    ("rows", "evaluations"),
    [(ROWS, EVALUATIONS), (ROWS, []), (ROWS[:3], []), ([], EVALUATIONS), (SILENT, []), ([], [])],
)
def test_every_run_gets_a_picture(
    tmp_path: Path, rows: list[dict[str, Any]], evaluations: list[dict[str, Any]]
) -> None:
    path = tmp_path / "curve.png"
    draw_curve(rows, evaluations, path, "CartPole · dpsr · seed 0")
    assert imread(path).shape[:2] == (780, 1080)
    assert list(tmp_path.iterdir()) == [path]


def test_returns_and_evaluations_are_drawn(tmp_path: Path) -> None:
    blue, red = 0x2166AC, 0xD6604D
    draw_curve(ROWS, EVALUATIONS, tmp_path / "all.png", "")
    assert {blue, red} <= colours(tmp_path / "all.png")
    draw_curve(ROWS, [], tmp_path / "returns.png", "")
    assert red not in colours(tmp_path / "returns.png")
    draw_curve(SILENT, [], tmp_path / "none.png", "")
    assert blue not in colours(tmp_path / "none.png")


def test_random_play_is_a_line_of_its_own(tmp_path: Path) -> None:
    without, beside = tmp_path / "without.png", tmp_path / "beside.png"
    draw_curve(ROWS, EVALUATIONS, without, "")
    draw_curve(ROWS, EVALUATIONS, beside, "", random_play=0.5)
    assert (imread(without) != imread(beside)).any()


def test_a_picture_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "curve.png").mkdir()
    with pytest.raises(OSError, match="directory"):
        draw_curve(ROWS, [], tmp_path / "curve.png", "")
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def test_no_display_is_needed() -> None:
    code = "import sys, dpsr_apex.live.curve; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
