"""Examples of users' environments: valid ones, and ones that must be refused."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class Good(gymnasium.Env[Any, Any]):
    """A walk on a line from a random start; the snapshot is complete."""

    def __init__(self, length: int = 20) -> None:
        self.length = length
        self.observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self.place = 0.0
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.place, self.steps = float(self.np_random.random()), 0
        return np.array([self.place]), {}

    def step(self, action: int) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        self.place += 1.0 if action else -0.9
        self.steps += 1
        return np.array([self.place]), self.reward(), self.steps == self.length, False, {}

    def reward(self) -> float:
        return self.place

    def snapshot(self) -> bytes:
        return np.array([self.place, self.steps]).tobytes()

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:  # noqa: ARG002
        place, steps = np.frombuffer(snapshot)
        self.place, self.steps = float(place), int(steps)


class OtherGenerator(Good):
    """Uses a generator whose state contains arrays."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        if seed is not None:
            self.np_random = np.random.Generator(np.random.Philox(seed))
        return super().reset(options=options)


class MissingCounter(Good):
    """Its snapshot lacks the step counter, which matters only at the end of an episode."""

    def snapshot(self) -> bytes:
        return np.array([self.place, 0]).tobytes()


class NoBytes(Good):
    def snapshot(self) -> bytes:
        return str(self.place)  # type: ignore[return-value]


class Raising(Good):
    def snapshot(self) -> bytes:
        raise RuntimeError("state is not available")


class BadReward(Good):
    def reward(self) -> float:
        return float("nan") if self.steps == 3 else 0.0


class BadObservation(Good):
    def step(self, action: int) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        return np.array([np.inf]), *super().step(action)[1:]


class WrongShape(Good):
    def step(self, action: int) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        return np.zeros(2), *super().step(action)[1:]


class ColoursLast(Good):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)


class MultiDiscreteActions(Good):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.MultiDiscrete([2, 2])


class ActionsFromOne(Good):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(2, start=1)


class NoSnapshot(Good):
    """An environment with neither of the two methods."""

    snapshot = None  # type: ignore[assignment]
    restore = None  # type: ignore[assignment]
