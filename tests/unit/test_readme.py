"""What the README shows must work as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpsr_apex.cli import parser
from dpsr_apex.envs.check import check_reentry

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_example_environment_can_be_left_and_re_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "ladder.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = check_reentry("ladder:Ladder", moments=50)
    assert result.passed, result.problem
    assert result.game_ends > 0


@pytest.mark.parametrize("line", re.findall(r"^(?:\.venv/bin/)?dpsr-apex (.+)$", README, re.MULTILINE))
def test_every_command_can_be_typed_as_it_stands(line: str) -> None:
    words = line.split("  #")[0].split()
    if "--help" not in words:
        assert callable(parser().parse_args(words).command)
