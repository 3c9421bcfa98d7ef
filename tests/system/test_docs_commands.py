"""Commands in the documentation, run as a reader would: those that take seconds on an idle machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import PAGES, blocks_of, save_files

BIN = Path(sys.executable).parent
LONGEST = 600.0  # seconds; only a command that hangs takes so long

RUN = [page for page in PAGES if any(block.is_run for block in blocks_of(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_commands_of_a_page_work_one_after_the_other(page: Path, tmp_path: Path) -> None:
    save_files(page, tmp_path)
    typing = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    for block in (block for block in blocks_of(page) if block.is_run):
        shell = ["bash", "-eu", "-c", block.text]
        ended = subprocess.run(shell, cwd=tmp_path, env=typing, capture_output=True, text=True, timeout=LONGEST)
        assert ended.returncode == 0, f"{block.title}: {ended.stdout}{ended.stderr}"
