"""CartPole that actors play at walking pace until a file named `go` is there: a run that lasts as long as a test needs.

Copied to where commands are run, as a user's own environment would be.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dpsr_apex.envs.classic import ClassicControl, StepResult

STEP_SECONDS = 0.05


class Gated(ClassicControl):
    """The same task with the same snapshots."""

    def __init__(self) -> None:
        super().__init__("CartPole-v1")

    def step(self, action: int) -> StepResult:
        if "actor" in sys.argv and not Path("go").exists():
            time.sleep(STEP_SECONDS)
        return super().step(action)
