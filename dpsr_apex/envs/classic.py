"""Gymnasium's environments with snapshots: of their state for three control tasks, of their history for any other.

Observations, rewards and time limits are Gymnasium's own.
"""

from __future__ import annotations

import inspect
import struct
import warnings
from array import array
from collections.abc import Mapping
from typing import Any, SupportsFloat
from zlib import crc32

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from numpy.typing import NDArray

from dpsr_apex.envs.arguments import refuse_unknown, require_positive
from dpsr_apex.envs.compression import DamagedSnapshot, SnapshotCodec

EXACT = {"CartPole-v1": 4, "MountainCar-v0": 2, "Acrobot-v1": 4}  # size of the state, a vector
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

# Of a history: seed, number of the episode since that seed, checksum of all that was observed. The actions follow.
_HISTORY = struct.Struct("<QQI")
RESERVED = frozenset(("score", "game_over", "new_game"))  # names in `info` with a meaning of `Environment`
MOST_ACTIONS = 0xFFFF  # that can be recorded in a history


def make_registered(name: str, **arguments: Any) -> gymnasium.Env[Any, Any]:
    """Create a registered Gymnasium environment; besides those of its constructor, it takes `max_episode_steps`."""
    entry_point = gymnasium.spec(name).entry_point
    if entry_point is not None:
        create = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        refuse_unknown(name, create, arguments, additional=("max_episode_steps",))
        arguments = {**_rendering(create), **arguments}
    require_positive("max_episode_steps", arguments.get("max_episode_steps", 1))
    with warnings.catch_warnings():
        if name in _made:  # Gymnasium warns of an outdated version whenever one is made
            warnings.simplefilter("ignore")
        _made.add(name)
        return _PlainInfo(gymnasium.make(name, disable_env_checker=True, **arguments))


class _PlainInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment of another package, whose `info` may use names that have a meaning here, for something else.

    A `score`, for example, is often the total of an episode. Without these names, a score is the sum of the rewards.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, _without_reserved(info)

    def step(self, action: Any) -> StepResult:
        """Take one step."""
        observation, reward, terminal, truncated, info = self.env.step(action)
        return observation, reward, terminal, truncated, _without_reserved(info)


def _without_reserved(info: dict[str, Any]) -> dict[str, Any]:
    return info if RESERVED.isdisjoint(info) else {key: info[key] for key in info if key not in RESERVED}


def _rendering(create: Any) -> dict[str, str]:
    """Return the argument with which an environment can be rendered as RGB arrays; nothing if it has none."""
    modes = getattr(create, "metadata", {}).get("render_modes") or ()
    has_mode = "rgb_array" in modes and "render_mode" in inspect.signature(create).parameters
    return {"render_mode": "rgb_array"} if has_mode else {}


class ClassicControl(gymnasium.Wrapper[Vector, int, Vector, int]):
    """CartPole, MountainCar or Acrobot with its time limit. A snapshot is the exact state."""

    def __init__(self, name: str, **arguments: Any) -> None:
        task = make_registered(name, **arguments)
        super().__init__(task.unwrapped)
        self.action_names = ACTION_NAMES[name]
        self._task: Any = task.unwrapped
        self._size = EXACT[name]
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
        """Return to the state of `snapshot`; raise DamagedSnapshot, without a change, if it cannot be one."""
        try:
            elapsed, fallen, kind = _HEADER.unpack_from(snapshot)
            state = np.frombuffer(snapshot, np.dtype(chr(kind)), offset=_HEADER.size).copy()
        except (struct.error, TypeError, ValueError) as error:
            raise DamagedSnapshot(f"damaged snapshot: {error}") from error
        if state.dtype.kind != "f" or state.size != self._size:
            raise DamagedSnapshot("damaged snapshot, or one of another task")
        self._elapsed, self._task.state = elapsed, state
        if hasattr(self._task, "steps_beyond_terminated"):
            self._task.steps_beyond_terminated = None if fallen < 0 else fallen


class ByHistory(gymnasium.Wrapper[Any, int, Any, int]):
    """Any deterministic Gymnasium environment with Discrete actions, restored by replaying its episode.

    A snapshot is how the episode was seeded and the actions since; its size and the time to restore grow with the
    episode. All randomness must come from what `reset(seed=...)` seeds: every episode is started with a seed of its
    own. A snapshot also has a checksum of all observations and rewards since, so that an environment that behaves
    differently when it is replayed is noticed. Wrappers inside are replayed with the environment.

    In a config: `name = "dpsr_apex.envs.classic:ByHistory"`, `arguments = {env = "LunarLander-v3"}`.
    """

    def __init__(self, env: gymnasium.Env[Any, int] | str, **arguments: Any) -> None:
        made = make_registered(env, **arguments) if isinstance(env, str) else env
        super().__init__(made)
        if not can_replay(made):
            raise ValueError(f"a history needs Discrete actions, at most {MOST_ACTIONS:,} (got {made.action_space})")
        actions: Any = made.action_space
        count = int(actions.n)
        self._typecode, self._next_life = ("B", 0xFF) if count <= 0xFF else ("H", 0xFFFF)
        self._count = count
        self._codec = SnapshotCodec()
        self._seed = self._episode = self._checksum = 0
        self._actions = array(self._typecode)  # since the start of the game; `_next_life` stands for a reset
        self._life_lost = False  # the episode has ended, the game has not

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode: a new history, except after a lost life. The seed is 0 until one is given."""
        if seed is None and self._life_lost:
            self._actions.append(self._next_life)
            return self._reset(None, options)
        self._seed, self._episode = (self._seed, self._episode + 1) if seed is None else (seed, 0)
        return self._start(options)

    def step(self, action: int) -> StepResult:
        """Take one step and add it to the history."""
        self._actions.append(int(action))
        observation, reward, terminal, truncated, info = self.env.step(action)
        self._observe((observation, float(reward), bool(terminal), bool(truncated)))
        self._life_lost = bool(terminal) and not truncated and not info.get("game_over", True)
        return observation, reward, terminal, truncated, info

    def snapshot(self) -> bytes:
        """Serialize how the episode was seeded, and every action since."""
        return self._codec.compress(_HISTORY.pack(self._seed, self._episode, self._checksum) + self._actions.tobytes())

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:  # noqa: ARG002 -- the history is complete
        """Replay the episode up to the state of `snapshot`; raise DamagedSnapshot if it does not lead there."""
        history = self._codec.decompress(snapshot)
        actions = array(self._typecode)
        try:
            seed, episode, checksum = _HISTORY.unpack_from(history)
            actions.frombytes(history[_HISTORY.size :])
        except (struct.error, ValueError) as error:
            raise DamagedSnapshot(f"damaged snapshot: {error}") from error
        if any(action >= self._count and action != self._next_life for action in actions):
            raise DamagedSnapshot("damaged snapshot: it has unknown actions")
        self._seed, self._episode = seed, episode
        self._start(None)
        ended = self._replay(actions)
        if ended or self._checksum != checksum:
            raise DamagedSnapshot(
                "replaying its history led to another state: it has randomness that reset(seed=...) does not control"
            )

    def _replay(self, actions: array[int]) -> bool:
        """Repeat the actions of a game; return whether it ended before the last one."""
        ended = False
        for action in actions:
            if ended and not (action == self._next_life and self._life_lost):
                return True
            if action == self._next_life:
                self.reset()
                ended = False
            else:
                _, _, terminal, truncated, _ = self.step(action)
                ended = terminal or truncated
        return False

    def _start(self, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        self._checksum = 0
        del self._actions[:]
        return self._reset(_seed_of(self._seed, self._episode), options)

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._life_lost = False
        self._observe(observation)
        return observation, info

    def _observe(self, observed: Any) -> None:
        self._checksum = _crc(observed, self._checksum)


def can_replay(env: Any) -> bool:
    """Whether the history of an environment can be recorded: Gymnasium's own interface, and actions to be numbered."""
    if not isinstance(env, gymnasium.Env) or not isinstance(env.action_space, spaces.Discrete):
        return False
    return bool(env.action_space.start == 0 and env.action_space.n <= MOST_ACTIONS)


def _seed_of(seed: int, episode: int) -> int:
    """Return the seed of an episode: `seed` itself for the first one."""
    if episode == 0:
        return seed
    return int(np.random.SeedSequence([seed, episode]).generate_state(1)[0]) >> 1  # Gymnasium accepts 31 bits


def _crc(value: Any, start: int) -> int:
    """Return the CRC-32 of an observation of any kind, continued from `start`."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for part in value:
            start = _crc(part, start)
        return start
    data = np.asarray(value)
    return crc32(repr(value).encode() if data.dtype.hasobject else data.tobytes(), start)
