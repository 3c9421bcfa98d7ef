"""Environments as users write them, in a file of their own beside their configs: copied to where a command is run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class Line(gymnasium.Env[Any, Any]):
    """A walk on a line: the reward is the place. Everything is in its snapshot."""

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

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:  # noqa: ARG002 -- the state says it all
        place, steps = np.frombuffer(snapshot)
        self.place, self.steps = float(place), int(steps)


class Forgetful(Line):
    """Its snapshot does not hold the place."""

    def snapshot(self) -> bytes:
        return np.array([0.0, self.steps]).tobytes()


class NoWayBack(Line):
    """Has neither snapshot() nor restore()."""

    snapshot = None  # type: ignore[assignment]  # takes away what Line has
    restore = None  # type: ignore[assignment]  # likewise


class NanReward(Line):
    """Divides by zero at some step."""

    def reward(self) -> float:
        return float("nan") if self.steps == 7 else 1.0


class LateNan(Line):
    """The same, but only after many episodes."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        self.episodes += 1
        return super().reset(seed=seed, options=options)

    def reward(self) -> float:
        return float("nan") if self.episodes > 11 else 1.0


class Colourful(Line):
    """Shows what no network here takes."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class OneButton(Line):
    """Leaves nothing to choose."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(1)


class Hanging(Line):
    """Never comes back from a step once there is a file named `hang`."""

    def step(self, action: int) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        if Path("hang").exists():
            print("hanging", flush=True)  # noqa: T201
            while True:
                time.sleep(0.01)
        return super().step(action)


class Endless(Line):
    """Its games never end; says so when one has gone on for long."""

    def __init__(self) -> None:
        super().__init__(length=10**9)

    def step(self, action: int) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        if self.steps == 2000:
            print("a long game", flush=True)  # noqa: T201
        return super().step(action)
