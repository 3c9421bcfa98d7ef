"""CartPole variants for tests of faults, in a file that is copied to where a run is started."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
from numpy.typing import NDArray
from torch import Tensor, nn

from dpsr_apex.envs.classic import ClassicControl, StepResult

HELD_SECONDS = 0.05  # of a step
DEADLY = b"deadly"  # a snapshot


class CartPole(ClassicControl):
    """CartPole that steps slowly while a file named `hold` exists, so that tests have time to observe."""

    def __init__(self) -> None:
        super().__init__("CartPole-v1")

    def step(self, action: int) -> StepResult:
        if Path("hold").exists():
            time.sleep(HELD_SECONDS)
        return super().step(action)


class Fragile(CartPole):
    """CartPole that raises in every actor after a few steps."""

    steps = 0

    def step(self, action: int) -> StepResult:
        self.steps += 1
        if sys.argv[1] == "actor" and self.steps > 30:
            raise RuntimeError("the pole is broken")
        return super().step(action)


class CrashingNetwork(nn.Module):
    """A linear network that raises in every learner."""

    def __init__(self, observation_shape: tuple[int, ...], actions: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(observation_shape), actions))

    def forward(self, observations: Tensor) -> Tensor:
        if sys.argv[1] == "learner":
            raise RuntimeError("the network is broken")
        outputs: Tensor = self.layers(observations)
        return outputs


class Crashing(CartPole):
    """CartPole with a snapshot that ends the process which restores it, as damaged bytes can end an emulator."""

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:
        if snapshot == DEADLY:
            os.kill(os.getpid(), signal.SIGSEGV)
        super().restore(snapshot, frames)


def crashing_breakout() -> gymnasium.Env[Any, Any]:
    """Breakout with a snapshot that ends the process which restores it."""
    from dpsr_apex.envs.atari import Atari  # here, because the emulator takes time to load

    class Breakout(Atari):
        def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:
            if snapshot == DEADLY:
                os.kill(os.getpid(), signal.SIGSEGV)
            super().restore(snapshot, frames)

    return Breakout("Breakout")
