"""Environments with snapshots for a user's own code: `make_env` and `make_vec`, as Gymnasium's Env and VectorEnv."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from dpsr_apex.api import checks
from dpsr_apex.checksums import add_checksum
from dpsr_apex.envs.compression import DamagedSnapshot, verify_checksum
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.errors import UserError
from dpsr_apex.replay.transitions import Stack

Observation = NDArray[Any]

_BARE, _WITH_OBSERVATION = b"\x00", b"\x01"  # first byte of a snapshot
_SIZE: Final = struct.Struct("<I")  # of a compressed frame


def make_env(
    name: str, *, stack: int | None = None, training: bool = True, wrappers: Sequence[str] = (), **arguments: Any
) -> SnapshotEnv:
    """Create an environment whose state can be saved and restored exactly, by replaying its history if need be.

    `name` is that of a config: "Breakout" and any other ALE game, "MinAtar/Breakout", a Gymnasium id, "module:Class",
    "module:function". `stack`: frames per observation (default: 4 for grey frames, else 1). `training` only affects
    Atari, where it clips rewards to their sign; a lost life ends an episode, and the next `reset` continues the game.
    `wrappers` are names of Gymnasium wrappers, "module:Class". `arguments` are those of the environment's constructor.
    As in Gymnasium, episodes are random until `reset` is given a seed.
    """
    if stack is not None:
        checks.positive(stack, "stack")
    if isinstance(wrappers, str) or not all(isinstance(wrapper, str) for wrapper in wrappers):
        raise UserError(f"wrappers must be a list of names 'module:Class' (got {wrappers!r})")
    seed = random.SystemRandom().randrange(2**31)
    return SnapshotEnv(make_stacked(name, arguments, training, stack, seed, wrappers, by_history=True))


def make_vec(
    name: str,
    num_envs: int,
    *,
    stack: int | None = None,
    training: bool = True,
    wrappers: Sequence[str] = (),
    **arguments: Any,
) -> SnapshotVectorEnv:
    """Create `num_envs` environments that are stepped together; the other arguments are those of `make_env`."""
    count = checks.positive(num_envs, "num_envs")
    options: dict[str, Any] = {"stack": stack, "training": training, "wrappers": wrappers, **arguments}
    return SnapshotVectorEnv([make_env(name, **options) for _ in range(count)])


class RefusedSnapshot(UserError, DamagedSnapshot):
    """Raised for a snapshot that is damaged, or of another environment."""


class SnapshotEnv(gymnasium.Env[Observation, Any]):
    """A Gymnasium environment with `snapshot` and `restore`; observations are stacked frames, or vectors."""

    observation_space: spaces.Box
    action_space: spaces.Discrete

    def __init__(self, env: StackedEnv) -> None:
        self.stacked = env
        inner = env.frame_space
        self._is_stacked = env.observation_shape[0] > 1
        shape = env.observation_shape if self._is_stacked else env.observation_shape[1:]
        low, high = (np.broadcast_to(getattr(inner, side), shape) for side in ("low", "high"))
        dtype: Any = env.codec.dtype  # typed by gymnasium as that of the bounds
        self.observation_space = spaces.Box(low, high, shape, dtype)
        self.action_space = spaces.Discrete(env.actions)
        self.metadata = getattr(env.env, "metadata", {})
        self.render_mode = getattr(env.env, "render_mode", None)

    @property
    def observation(self) -> Observation:
        """The current observation; a copy."""
        frames = self.stacked.frames if self._is_stacked else self.stacked.frames[0]
        return frames.copy()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; with a seed, also a new game."""
        own = None if seed is None else checks.integer(seed, "seed", 0)
        super().reset(seed=own, options=options)
        self.stacked.reset(own)
        return self.observation, {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one action. `info` has `score`, unclipped, and `game_over`, False if only a life was lost."""
        step = self.stacked.step(checks.action(action, self.stacked.actions))
        info = {"score": step.score, "game_over": step.game_over}
        return self.observation, step.reward, step.terminal, step.truncated, info

    def snapshot(self, with_observation: bool = True) -> bytes:
        """Serialize the state. Without the observation it is smaller, and `restore` needs the observation."""
        state = self.stacked.snapshot()
        if not state:
            raise UserError(f"{self.stacked.description}: it cannot be restored; implement snapshot() and restore()")
        if not with_observation:
            return _BARE + state
        frames = b"".join(_SIZE.pack(len(frame)) + frame for frame in self.stacked.stack)
        return _WITH_OBSERVATION + add_checksum(frames + state)

    def restore(self, snapshot: bytes, observation: Any = None) -> Observation:
        """Return to the state of `snapshot` and return its observation; every later step is the same as it was then.

        `observation`: that of the state, needed if the snapshot was taken without it.
        """
        stack, state = _parse(snapshot, self.stacked.observation_shape[0])
        if observation is not None:
            frames = checks.observations(
                observation, "observation", self.observation_space.shape or (), self.stacked.codec.dtype
            ).reshape(self.stacked.observation_shape)
            stack = tuple(self.stacked.codec.compress(frame) for frame in frames)
        if not stack:
            raise UserError("this snapshot was taken without its observation; pass it as `observation`")
        try:
            self.stacked.restore(state, stack)
        except DamagedSnapshot as error:
            raise RefusedSnapshot(f"snapshot: {error}") from error
        return self.observation

    def render(self) -> Any:
        """Return the environment's own rendering."""
        return self.stacked.render()

    def close(self) -> None:
        """Close the environment."""
        self.stacked.close()


class SnapshotVectorEnv(VectorEnv[Observation, NDArray[Any], NDArray[Any]]):
    """Environments that are stepped together in this process; each lane has `snapshot` and `restore`.

    A lane whose episode ends is reset in the same step; `infos["final_obs"]` has its last observation.
    """

    single_observation_space: spaces.Box
    single_action_space: spaces.Discrete

    def __init__(self, envs: Sequence[SnapshotEnv]) -> None:
        first = envs[0]
        self.envs = list(envs)
        self.num_envs = len(envs)
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = first.render_mode
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, len(envs))
        self.action_space = batch_space(first.action_space, len(envs))

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Reset every lane; with one seed, lane i gets `seed` + i."""
        for env, own in zip(self.envs, self._seeds(seed), strict=True):
            env.reset(seed=own, options=options)
        return self._observations(), {}

    def step(
        self, actions: Any
    ) -> tuple[Observation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Take one action in each lane."""
        chosen = checks.actions(actions, self.envs[0].stacked.actions, (self.num_envs,))
        final: NDArray[np.object_] = np.full(self.num_envs, None, dtype=object)
        outcomes = []
        for lane, (env, action) in enumerate(zip(self.envs, chosen.tolist(), strict=True)):
            observation, *outcome = env.step(action)
            outcomes.append(outcome)
            if outcome[1] or outcome[2]:
                final[lane] = observation
                env.reset()
        rewards, terminated, truncated, infos = zip(*outcomes, strict=True)
        gathered: dict[str, Any] = {key: np.array([info[key] for info in infos]) for key in infos[0]}
        ended = np.array(terminated) | np.array(truncated)
        if ended.any():
            gathered |= {"final_obs": final, "_final_obs": ended}
        return self._observations(), np.array(rewards), np.array(terminated), np.array(truncated), gathered

    def snapshot(self, lane: int, with_observation: bool = True) -> bytes:
        """Serialize the state of one lane; see `SnapshotEnv.snapshot`."""
        return self._lane(lane).snapshot(with_observation)

    def snapshots(self) -> list[bytes]:
        """Return a snapshot of each lane without its observation, for `ReplayBuffer.add`."""
        return [env.snapshot(with_observation=False) for env in self.envs]

    def restore(self, lane: int, snapshot: bytes, observation: Any = None) -> Observation:
        """Return one lane to the state of a snapshot of any lane; see `SnapshotEnv.restore`."""
        return self._lane(lane).restore(snapshot, observation)

    def render(self) -> tuple[Any, ...]:
        """Return the rendering of each lane."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **_kwargs: Any) -> None:
        """Close the environments; called by `close`."""
        for env in self.envs:
            env.close()

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + lane for lane in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise UserError(f"seed must be a number, or one for each of the {self.num_envs} lanes (got {len(seed)})")
        return [None if own is None else checks.integer(own, "seed") for own in seed]

    def _lane(self, lane: int) -> SnapshotEnv:
        if not 0 <= checks.integer(lane, "lane") < self.num_envs:
            raise UserError(f"lane must be between 0 and {self.num_envs - 1} (got {lane})")
        return self.envs[lane]

    def _observations(self) -> Observation:
        return np.stack([env.observation for env in self.envs])


def _parse(snapshot: bytes, depth: int) -> tuple[Stack, bytes]:
    """Return the frames of a snapshot, none if it was taken without its observation, and the environment's state."""
    if not isinstance(snapshot, bytes):
        raise UserError(f"snapshot must be bytes (got {type(snapshot).__name__})")
    kind, rest = snapshot[:1], snapshot[1:]
    if kind == _BARE:
        return (), rest
    if kind != _WITH_OBSERVATION:
        raise RefusedSnapshot("damaged snapshot: it does not begin as one")
    try:
        body = verify_checksum(rest)
    except DamagedSnapshot as error:
        raise RefusedSnapshot(f"{error}") from error
    frames = []
    for _ in range(depth):
        if len(body) < _SIZE.size:
            raise RefusedSnapshot("damaged snapshot, or one of another environment")
        end = _SIZE.size + _SIZE.unpack_from(body)[0]
        frames.append(body[_SIZE.size : end])
        body = body[end:]
    return tuple(frames), body
