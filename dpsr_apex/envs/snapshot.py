"""The protocol of an environment that can be left and re-entered.

Any Gymnasium environment becomes one by two more methods. What they must keep is one promise: after
`restore(snapshot, frames)`, every `step(action)` gives exactly what it would have given at the moment of `snapshot()`:
the same observation, reward, end and truncation. `dpsr-apex check` proves it.
"""

from __future__ import annotations

from typing import Any, Protocol, SupportsFloat, runtime_checkable

from gymnasium import spaces
from numpy.typing import NDArray

Frame = NDArray[Any]
"""What an environment shows at one step.

uint8 of shape (height, width), uint8 of shape (planes, height, width), or float32 of shape (size,).
"""


class Environment(Protocol):
    """What is used of a Gymnasium environment. The observation of one step is one frame; stacking is done outside.

    `info` may carry `score` (the unclipped reward of this step) and `game_over` (False where only a life was lost:
    the next `reset` then plays on, unless its `info` says `new_game`). Without them the reward is the score and
    every end is a game's end.
    """

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode: (observation, info)."""
        ...

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """(observation, reward, terminal, truncated, info)."""
        ...

    def render(self) -> Any:
        """A picture of now (RGB, uint8) where the environment can draw one."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


@runtime_checkable
class Reentrant(Protocol):
    """What an environment adds so that its transitions can be recycled."""

    def snapshot(self) -> bytes:
        """Everything that the next steps depend on, in a few bytes."""
        ...

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:
        """Put the environment back to where `snapshot` was taken.

        `frames` is the observation of that moment, shape (stack, *frame shape), the newest frame last: for
        environments whose steps depend on what they showed before. Most can ignore it.
        """
        ...


class UnusableEnvironment(ValueError):
    """An environment that cannot be used as asked: which one, what is wrong, and what to do about it."""

    def __init__(self, name: str, problem: str, remedy: str) -> None:
        self.reason = f"{problem.rstrip('.')}. {remedy}"
        super().__init__(f"{name}: {self.reason}")
