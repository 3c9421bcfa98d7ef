"""The protocol of an environment whose state can be saved and restored exactly.

Any Gymnasium environment can implement it with two more methods. They must guarantee that after `restore(snapshot,
frames)` every `step(action)` returns exactly what it would have returned when `snapshot()` was called: the same
observation, reward, terminal and truncated flags. `dpsr-apex check` verifies this.
"""

from __future__ import annotations

from typing import Any, Protocol, SupportsFloat, runtime_checkable

from gymnasium import spaces
from numpy.typing import NDArray

from dpsr_apex.errors import UserError

Frame = NDArray[Any]
"""An environment's observation at one step, before stacking.

uint8 of shape (height, width), uint8 of shape (planes, height, width), or float32 of shape (size,).
"""


class Environment(Protocol):
    """The part of the Gymnasium interface that is used. The observation of one step is one frame.

    The `info` of a step may contain `score` (unclipped) and `game_over` (False if only a life was lost: the next
    `reset` continues the game unless its `info` has `new_game` set). Without them the score is the reward, and the end
    of an episode is the end of the game; a truncated episode always is. The `info` of a `reset` that starts a new game
    may contain its `score` so far. An episode's score is the sum of these, across lost lives.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode and return (observation, info)."""
        ...

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take one step and return (observation, reward, terminal, truncated, info)."""
        ...

    def render(self) -> Any:
        """Return an image of the current state (RGB, uint8), if the environment supports it."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


@runtime_checkable
class Restorable(Protocol):
    """The methods that an environment adds so that its transitions can be recycled."""

    def snapshot(self) -> bytes:
        """Serialize everything that the next steps depend on, in a few bytes."""
        ...

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:
        """Return to the state at which `snapshot` was taken.

        `frames` is the observation of that state, shape (stack, *frame shape), newest frame last, for environments
        whose steps depend on earlier observations. Most can ignore it.
        """
        ...


def is_restorable(env: Any) -> bool:
    """Whether the class of an environment has the two methods.

    Those that a wrapper finds in what it wraps do not count: they would not restore the wrapper's own state.
    """
    return all(callable(getattr(type(env), method, None)) for method in ("snapshot", "restore"))


def optional(env: Any, name: str, default: Any = None) -> Any:
    """Return an optional attribute of an environment, or else that of the environment that it wraps."""
    while not hasattr(env, name):
        if (env := getattr(env, "env", None)) is None:
            return default
    return getattr(env, name)


class UnusableEnvironment(UserError, ValueError):
    """Raised for an environment that cannot be used: its name, the problem, and what to do about it."""

    def __init__(self, name: str, problem: str, remedy: str, trace: str = "") -> None:
        self.trace = trace
        self.reason = f"{problem.rstrip('.')}. {remedy}"
        super().__init__(f"{name}: {self.reason}")
