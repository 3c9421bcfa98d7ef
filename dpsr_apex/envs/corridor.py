"""The paper's motivating example: a safe corridor to the right, and a treasure deep in the left one.

The first action commits to a side. Right: reward 1 per step for 500 steps. Left: reward -1 per step, and 1000 at the
step that reaches the treasure, so that left is better exactly if the treasure is at most 500 steps deep. Inside a
corridor the other action ends the episode with reward 0.
"""

from __future__ import annotations

import struct
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dpsr_apex.envs.arguments import require_positive
from dpsr_apex.envs.compression import DamagedSnapshot

LEFT, RIGHT = 0, 1
RIGHT_LENGTH = 500  # steps
TREASURE = 1000.0

_STATE = struct.Struct("<bI")
_PICTURE_WIDTH = 256  # pixels of each corridor


class Corridor(gymnasium.Env[NDArray[np.float32], Any]):
    """The corridor task. An observation is (side: -1, 0 or 1; position: steps into the corridor / 500)."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 -- declared so by gymnasium
    render_mode = "rgb_array"
    action_names = ("left", "right")

    def __init__(self, depth: int = 100) -> None:
        require_positive("depth", depth)
        self.depth = depth
        longest = max(1.0, depth / RIGHT_LENGTH)
        self.observation_space = spaces.Box(np.array((-1, 0), np.float32), np.array((1, longest), np.float32))
        self.action_space = spaces.Discrete(2)
        self._side = 0
        self._position = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start a new episode between the two corridors."""
        super().reset(seed=seed, options=options)
        self._side = self._position = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Advance one step, or end the episode if the action points back."""
        direction = 1 if action == RIGHT else -1
        if self._side == -direction:
            return self._observation(), 0.0, True, False, {}
        self._side = direction
        self._position += 1
        arrived = self._position == self._length(direction)
        reward = 1.0 if direction > 0 else TREASURE if arrived else -1.0
        return self._observation(), reward, arrived, False, {}

    def snapshot(self) -> bytes:
        """Serialize side and position."""
        return _STATE.pack(self._side, self._position)

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:  # noqa: ARG002 -- the state is complete
        """Return to the state of `snapshot`; raise DamagedSnapshot, without a change, if it cannot be one."""
        try:
            side, position = _STATE.unpack(snapshot)
        except struct.error as error:
            raise DamagedSnapshot(f"damaged snapshot: {error}") from error
        if (side, position) != (0, 0) and not (side in (-1, 1) and 1 <= position <= self._length(side)):
            raise DamagedSnapshot(f"damaged snapshot: there is no position {position} on side {side}")
        self._side, self._position = side, position

    def state_key(self) -> bytes:
        """Return side and position, which a rounded observation would not distinguish."""
        return self.snapshot()

    def render(self) -> NDArray[np.uint8]:
        """Render both corridors from above: the treasure in yellow on the left, the agent in white."""
        picture = np.full((32, 2 * _PICTURE_WIDTH + 1, 3), 40, np.uint8)
        picture[8:24, :8] = (230, 190, 40)
        picture[8:24, _PICTURE_WIDTH + 1 :, 1] = 110
        agent = _PICTURE_WIDTH + round(self._side * self._position / self._length(self._side) * (_PICTURE_WIDTH - 4))
        picture[12:20, max(agent - 4, 0) : agent + 4] = 255
        return picture

    def _length(self, side: int) -> int:
        return RIGHT_LENGTH if side > 0 else self.depth

    def _observation(self) -> NDArray[np.float32]:
        return np.array((self._side, self._position / RIGHT_LENGTH), np.float32)
