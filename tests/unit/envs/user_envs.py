"""Examples of users' environments: valid ones, and ones that must be refused."""

from __future__ import annotations

import random
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


class RaisingRestore(Good):
    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:  # noqa: ARG002
        raise KeyError("no such state")


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


class WidePixels(Good):
    """Its observations do not fit into the bytes of its space."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (8, 8), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        return np.full((8, 8), 256, np.uint16), {}


class FourAxes(Good):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (4, 8, 8, 3), np.uint8)


class WithText(Good):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(place=spaces.Discrete(3), told=spaces.Tuple((spaces.Text(5),)))


class Continuous(Good):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(np.arange(40, dtype=np.float32), np.full(40, 50, np.float32))


class Rooms(Good):
    """A walk whose observation is a Dict."""

    def __init__(self) -> None:
        super().__init__(length=9)
        place = spaces.Box(-100, 100, (1,), np.float64)
        self.observation_space = spaces.Dict(place=place, step=spaces.Discrete(10))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        place, info = super().reset(seed=seed, options=options)
        return {"place": place, "step": 0}, info

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        place, reward, terminal, truncated, info = super().step(action)
        return {"place": place, "step": self.steps}, reward, terminal, truncated, info


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


class Unrepeatable(NoSnapshot):
    """An environment that also depends on a generator that `reset` does not seed."""

    def reward(self) -> float:
        return self.place + random.random()


class OwnGenerator(NoSnapshot):
    """An environment with a generator of its own, which only `reset(seed=...)` seeds."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.own = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def reward(self) -> float:
        return float(self.own.random())


class RunningScore(NoSnapshot):
    """Its `info` has the total of the episode as its score, as in many packages."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed, options=options)[0], {"score": 100.0, "new_game": False}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminal, truncated, _ = super().step(action)
        return observation, 1.0, terminal, truncated, {"score": 100.0 + self.steps, "game_over": False, "kept": 7}


class Duck:
    """An environment that does not derive from gymnasium.Env."""

    def __init__(self) -> None:
        self.good = NoSnapshot()
        self.observation_space, self.action_space = self.good.observation_space, self.good.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.good.reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.good.step(action)


class Doubled(gymnasium.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> float:
        return 2 * float(reward)


class Tired(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper with a state of its own: every third step of an episode is paid nothing."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.taken = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.taken = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.taken += 1
        observation, reward, *rest = super().step(action)
        return observation, 0.0 if self.taken % 3 == 0 else reward, *rest


class Forwarding(Tired):
    """A wrapper that offers whatever the environment has, but the methods would not restore its own state."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)


class Greedy(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that cannot be created without another argument."""

    def __init__(self, env: gymnasium.Env[Any, Any], amount: int) -> None:
        super().__init__(env)
        self.amount = amount


calls: list[str] = []


def make_good(length: int = 20) -> gymnasium.Env[Any, Any]:
    return Good(length)


def make_wrapped() -> Doubled:
    return Doubled(NoSnapshot())


def make_nothing() -> gymnasium.Env[Any, Any]:
    return None  # type: ignore[return-value]


def make_secretly(length=20):  # type: ignore[no-untyped-def]
    calls.append("make_secretly")
    return Good(length)


def make_text() -> str:
    calls.append("make_text")
    return ""
