"""Environments as users write them, in a file beside their configs; it is copied to where a command is run."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class Line(gymnasium.Env[Any, Any]):
    """A walk on a line: the reward is the position. Its snapshot is complete."""

    def __init__(self, length: int = 20) -> None:
        self.length = length
        self.observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self.place, self.steps = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.place, self.steps = float(self.np_random.random()), 0
        return self.see(), {}

    def step(self, action: int) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        self.place += 0.1 if action else -0.1
        self.steps += 1
        return self.see(), self.reward(), self.steps >= self.length, False, {}

    def see(self) -> Vector:
        return np.array([self.place, min(self.steps / 20, 1)], np.float32)

    def reward(self) -> float:
        return self.place

    def snapshot(self) -> bytes:
        return np.array([self.place, self.steps]).tobytes()

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:  # noqa: ARG002 -- the state is complete
        place, steps = np.frombuffer(snapshot)
        self.place, self.steps = float(place), int(steps)


class Forgetful(Line):
    """An environment whose snapshot lacks the position."""

    def snapshot(self) -> bytes:
        return np.array([0.0, self.steps]).tobytes()


class NoSnapshot(Line):
    """An environment without snapshot() and restore()."""

    snapshot = None  # type: ignore[assignment]  # hides the method of Line
    restore = None  # type: ignore[assignment]  # likewise


class Unrepeatable(NoSnapshot):
    """An environment without snapshots whose rewards do not depend on the seed of an episode."""

    def reward(self) -> float:
        return random.random()


def make_line() -> gymnasium.Env[Any, Any]:
    """Return an environment without snapshots."""
    return NoSnapshot()


class NanReward(Line):
    """Divides by zero at some step."""

    def reward(self) -> float:
        return float("nan") if self.steps == 7 else 1.0


class LateNan(Line):
    """An environment whose reward becomes NaN after many episodes."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        self.episodes += 1
        return super().reset(seed=seed, options=options)

    def reward(self) -> float:
        return float("nan") if self.episodes > 16 else 1.0


class LateError(LateNan):
    """An environment that raises an exception after many episodes."""

    def reward(self) -> float:
        return 1 / 0 if self.episodes > 16 else 1.0


class Colourful(Line):
    """An environment whose observations do not fit its observation_space."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class OneButton(Line):
    """An environment with a single action."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(1)


class Hanging(Line):
    """An environment whose step never returns once a file named `hang` exists; it then creates `hanging`."""

    def step(self, action: int) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        if Path("hang").exists():
            Path("hanging").touch()
            while True:
                time.sleep(0.01)
        return super().step(action)


class Endless(Line):
    """An environment whose episodes never end; it creates the file `long_episode` after 2,000 steps of one."""

    def __init__(self) -> None:
        super().__init__(length=10**9)

    def step(self, action: int) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        if self.steps == 2000:
            Path("long_episode").touch()
        return super().step(action)


class Raising(Line):
    """Its own code raises, in a function with a name of its own."""

    def step(self, action: int) -> Any:
        return self._faulty_lookup({action: "found"})

    def _faulty_lookup(self, table: dict[Any, str]) -> Any:
        return table["missing"]


class RaisingRestore(Line):
    """Its restore() raises."""

    def restore(self, snapshot: bytes, frames: Any) -> None:  # noqa: ARG002 -- the names of the interface
        raise RuntimeError("no such state")
