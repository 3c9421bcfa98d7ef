"""Gymnasium's classic control tasks with snapshots: of their state where that restores exactly, else of their history.

Observations, rewards and time limits are Gymnasium's own.
"""

from __future__ import annotations

import json
import struct
import warnings
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from gymnasium.utils import seeding
from numpy.typing import NDArray

from dpsr_apex.envs.arguments import refuse_unknown, require_positive
from dpsr_apex.envs.compression import DamagedSnapshot, SnapshotCodec

EXACT = ("CartPole-v1", "MountainCar-v0", "Acrobot-v1")
BY_HISTORY = ("LunarLander-v3",)
ACTION_NAMES = {
    "CartPole-v1": ("left", "right"),
    "MountainCar-v0": ("left", "none", "right"),
    "Acrobot-v1": ("−1 N m", "none", "+1 N m"),
}

Vector = NDArray[np.float32]
StepResult = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]

_made: set[str] = set()  # names of the registered environments that this process has created

# Elapsed steps, CartPole's `steps_beyond_terminated` (-1 for None), dtype character of the state; the state follows.
_HEADER = struct.Struct("<IiB")


def make_registered(name: str, **arguments: Any) -> gymnasium.Env[Any, Any]:
    """Create a registered Gymnasium environment; besides those of its constructor, it takes `max_episode_steps`."""
    entry_point = gymnasium.spec(name).entry_point
    if entry_point is not None:
        create = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        refuse_unknown(name, create, arguments, additional=("max_episode_steps",))
    require_positive(arguments, "max_episode_steps")
    with warnings.catch_warnings():
        if name in _made:  # Gymnasium warns of an outdated version whenever one is made
            warnings.simplefilter("ignore")
        _made.add(name)
        return gymnasium.make(name, disable_env_checker=True, **arguments)


class ClassicControl(gymnasium.Wrapper[Vector, int, Vector, int]):
    """CartPole, MountainCar or Acrobot with its time limit. A snapshot is the exact state."""

    def __init__(self, name: str, **arguments: Any) -> None:
        task = make_registered(name, **{"render_mode": "rgb_array", **arguments})
        super().__init__(task.unwrapped)
        self.action_names = ACTION_NAMES[name]
        self._task: Any = task.unwrapped
        default = gymnasium.spec(name).max_episode_steps or np.iinfo(np.int32).max
        self._limit = int(arguments.get("max_episode_steps", default))
        self._elapsed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Start a new episode."""
        self._elapsed = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: int) -> StepResult:
        """Take one step; truncate the episode at the time limit."""
        observation, reward, terminal, _, info = self.env.step(action)
        self._elapsed += 1
        return observation, reward, terminal, self._elapsed >= self._limit, info

    def snapshot(self) -> bytes:
        """Serialize the state in its own precision: Acrobot starts in single precision and continues in double."""
        state = np.asarray(self._task.state)
        fallen = getattr(self._task, "steps_beyond_terminated", None)
        return _HEADER.pack(self._elapsed, -1 if fallen is None else fallen, ord(state.dtype.char)) + state.tobytes()

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:  # noqa: ARG002 -- the state is complete
        """Return to the state of `snapshot`."""
        self._elapsed, fallen, kind = _HEADER.unpack_from(snapshot)
        self._task.state = np.frombuffer(snapshot, np.dtype(chr(kind)), offset=_HEADER.size).copy()
        if hasattr(self._task, "steps_beyond_terminated"):
            self._task.steps_beyond_terminated = None if fallen < 0 else fallen


class ByHistory(gymnasium.Wrapper[Any, int, Any, int]):
    """Any deterministic Gymnasium environment with up to 256 actions, restored by replaying its episode.

    A snapshot is the random generator's state before the reset and the actions since; its size and the time to restore
    grow with the episode. All randomness must come from the environment's own `np_random`. In a config:
    `name = "dpsr_apex.envs.classic:ByHistory"`, `arguments = {env = "LunarLander-v3"}`.
    """

    def __init__(self, env: gymnasium.Env[Any, int] | str, **arguments: Any) -> None:
        made = make_registered(env, **arguments) if isinstance(env, str) else env
        super().__init__(made)
        self._codec = SnapshotCodec()
        self._origin: dict[str, Any] = {}
        self._actions = bytearray()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode with an empty history."""
        if seed is not None:
            self.env.unwrapped.np_random = seeding.np_random(seed)[0]
        self._origin = dict(self.env.unwrapped.np_random.bit_generator.state)
        self._actions.clear()
        return self.env.reset(options=options)

    def step(self, action: int) -> StepResult:
        """Take one step and add it to the history."""
        self._actions.append(int(action))
        return self.env.step(action)

    def snapshot(self) -> bytes:
        """Serialize the random generator's state at the start of the episode, and every action since."""
        return self._codec.compress(json.dumps(self._origin).encode() + b"\n" + self._actions)

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:  # noqa: ARG002 -- the history is complete
        """Replay the episode up to the state of `snapshot`."""
        origin, newline, actions = self._codec.decompress(snapshot).partition(b"\n")
        if not newline:
            raise DamagedSnapshot("damaged snapshot: it contains no history")
        self.env.unwrapped.np_random.bit_generator.state = json.loads(origin)
        self.reset()
        for action in actions:
            self.step(action)
