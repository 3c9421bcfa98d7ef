"""The scripts in `examples/` run."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(("method", "recycles"), [("dpsr", True), ("per", False)])
def test_the_single_file_dqn_trains(
    method: str, recycles: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps", "1000", "--capacity", "300", "--recycle-period", "100", "--learning-starts", "800"]
    monkeypatch.setattr(sys, "argv", ["dqn_dpsr.py", "--method", method, *options])
    runpy.run_path(str(EXAMPLES / "dqn_dpsr.py"), run_name="__main__")
    found = re.search(r"step 1,000: mean score ([\d.]+) .* (\d+) transitions recycled", capsys.readouterr().out)
    assert found
    assert float(found[1]) > 0
    assert (int(found[2]) > 0) == recycles


def test_the_dqn_of_stable_baselines3_trains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sb3_dqn.py", "--steps", "2100", "--capacity", "1000"])
    runpy.run_path(str(EXAMPLES / "sb3_dqn.py"), run_name="__main__")
    found = re.search(r"mean score ([\d.]+) .* (\d+) transitions recycled", capsys.readouterr().out)
    assert found
    assert float(found[1]) > 0
    assert int(found[2]) > 0
