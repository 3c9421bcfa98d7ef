"""CartPole as tests of faults need it, in a file of its own beside a run: copied to where the run is started."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dpsr_apex.envs.classic import ClassicControl, StepResult

HELD_SECONDS = 0.05  # of a step


class CartPole(ClassicControl):
    """Hardly moves while there is a file named `hold`, so that there is time for what is to be seen."""

    def __init__(self) -> None:
        super().__init__("CartPole-v1")

    def step(self, action: int) -> StepResult:
        if Path("hold").exists():
            time.sleep(HELD_SECONDS)
        return super().step(action)


class Fragile(CartPole):
    """Breaks in every actor after a few steps."""

    steps = 0

    def step(self, action: int) -> StepResult:
        self.steps += 1
        if sys.argv[1] == "actor" and self.steps > 30:
            raise RuntimeError("the pole is broken")
        return super().step(action)
