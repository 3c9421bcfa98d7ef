"""CartPole that actors step slowly until a file named `go` exists: a run that lasts as long as a test needs.

The file is copied to where commands are run, as a user's own environment would be.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dpsr_apex.envs.classic import ClassicControl, StepResult

STEP_SECONDS = 0.05


class Gated(ClassicControl):
    """CartPole with its usual snapshots, slow while the file is missing."""

    def __init__(self) -> None:
        super().__init__("CartPole-v1")

    def step(self, action: int) -> StepResult:
        if "actor" in sys.argv and not Path("go").exists():
            time.sleep(STEP_SECONDS)
        return super().step(action)
