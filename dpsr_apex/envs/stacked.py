"""An environment with frame stacking, validation, and saving and restoring of its state, as the roles use it.

All outputs of the environment are validated here, so that no invalid number reaches the replay. Nothing here uses
random numbers of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dpsr_apex.envs.compression import FrameCodec, raising_damage
from dpsr_apex.envs.keys import coarse_key_for, hash_key
from dpsr_apex.envs.observations import conversion_for, describe
from dpsr_apex.envs.snapshot import (
    Environment,
    Frame,
    Restorable,
    UnusableEnvironment,
    is_restorable,
    optional,
)
from dpsr_apex.files import to_json
from dpsr_apex.replay.layout import Layout
from dpsr_apex.replay.transitions import Stack
from dpsr_apex.state import State


class Step(NamedTuple):
    """Outcome of one action; the next observation is in the environment's `frames` and `stack`."""

    reward: float  # for training: clipped if the environment clips rewards
    terminal: bool
    truncated: bool
    score: float  # unclipped; includes what was scored while the next life was started
    game_over: bool  # False if the episode ended with a lost life and the next `reset` continues the game


class StackedEnv:
    """A frame-stacked environment, reset with `seed` on construction.

    `stack`: frames per observation; None = 4 for grey frames, 1 for planes and vectors. `name` appears in messages.
    Consecutive observations share their compressed frames.
    """

    frames: NDArray[Any]
    """Current observation, shape (stack, *frame shape), newest frame last; a new array at every step."""
    stack: Stack
    """Current observation as a tuple of compressed frames."""
    conversion: str
    """What is converted into frames, such as "Discrete(16) -> 16 numbers"; "" if the observations are frames."""

    def __init__(self, env: Environment, stack: int | None, seed: int, name: str = "") -> None:
        self.env = env
        self._name = name or type(env).__name__
        self.frame_space, self._convert, self.conversion = conversion_for(self._name, env.observation_space)
        is_image = self.frame_space.dtype == np.uint8
        self.codec = FrameCodec(self.frame_space.shape, np.uint8 if is_image else np.float32)
        self.actions = _count_actions(self._name, env.action_space)
        depth = stack or (4 if len(self.codec.shape) == 2 else 1)
        self.observation_shape = (depth, *self.codec.shape)
        # Checked once: that takes longer than some snapshots.
        self._restorable = cast(Restorable, env) if is_restorable(env) else None
        self._own_key: Callable[[], bytes] | None = optional(env, "state_key")
        self._coarse_key = coarse_key_for(self.frame_space)
        self.reward_limit = math.inf  # greatest absolute reward of a step
        self.game_score = 0.0  # sum of unclipped rewards since the start of the game, across lost lives
        self.game_steps = 0  # agent steps since the start of the game, across lost lives
        self._life_lost = False  # the episode has ended, the game has not
        self.reset(seed)

    @property
    def restorable(self) -> bool:
        """Whether its state can be saved and restored."""
        return self._restorable is not None

    @property
    def shows_pixels(self) -> bool:
        """Whether its frames are images (uint8)."""
        return self.codec.dtype == np.uint8

    @property
    def layout(self) -> Layout:
        """What all of its transitions have in common."""
        return Layout(self.actions, self.observation_shape[0], self.codec.frame_bytes, not self.shows_pixels)

    @property
    def description(self) -> str:
        """Text that must be equal in all processes that share transitions; includes the environment's `fingerprint`."""
        spaces_text = f"{self._name}, {self.codec.dtype}{self.observation_shape}, {self.actions} actions"
        fingerprint = optional(self.env, "fingerprint", "")
        return f"{spaces_text}, {fingerprint}" if fingerprint else spaces_text

    def reset(self, seed: int | None = None) -> None:
        """Start the next episode, with a new game if a seed is given; the stack is filled with its first frame."""
        observation, info = self.env.reset(seed=seed)
        depth = self.observation_shape[0]
        frame = self._checked(observation)
        self.frames = np.repeat(frame[np.newaxis], depth, axis=0)
        self.stack = (self.codec.compress(frame),) * depth
        if seed is not None or not self._life_lost or info.get("new_game", False):
            self.game_score = self._finite(float(info.get("score", 0.0)), "score")
            self.game_steps = 0
        self._life_lost = False

    def step(self, action: int) -> Step:
        """Take one action. After a terminal or truncated step, `reset` must be called."""
        observation, reward, terminal, truncated, info = self.env.step(action)
        frame = self._checked(observation)
        self.frames = np.concatenate((self.frames[1:], frame[np.newaxis]))
        self.stack = (*self.stack[1:], self.codec.compress(frame))
        finite_reward = self._finite(float(reward), "reward")
        if abs(finite_reward) > self.reward_limit:
            problem = f"its reward is {finite_reward}, and env.reward_limit is {self.reward_limit:g}"
            raise self._unusable(problem, "If the reward is right, raise env.reward_limit")
        score = self._finite(float(info.get("score", finite_reward)), "score")
        game_over = bool(truncated or info.get("game_over", terminal))
        self.game_score += score
        self.game_steps += 1
        self._life_lost = bool(terminal) and not game_over
        return Step(finite_reward, bool(terminal), bool(truncated), score, game_over)

    def snapshot(self) -> bytes:
        """Serialize the environment's state; b"" for an environment that cannot be restored."""
        if self._restorable is None:
            return b""
        snapshot = self._restorable.snapshot()
        if not isinstance(snapshot, bytes) or not snapshot:
            raise self._unusable(
                f"snapshot() returned {type(snapshot).__name__} ({snapshot!r:.40})", "It must return non-empty bytes"
            )
        return snapshot

    def state_key(self) -> int:
        """Return a 64-bit key of the current state: equal for states that count as the same place."""
        return hash_key(self._own_key() if self._own_key else self._coarse_key(self.frames[-1]))

    def restore(self, snapshot: bytes, stack: Stack, frames: NDArray[Any] | None = None) -> None:
        """Return to the state of `snapshot`, where the observation was `stack`. `game_score` is not restored.

        `frames` is the decompressed `stack`, if the caller has it already; it must not be changed afterwards. Raise
        DamagedSnapshot for a state that the environment does not restore, whatever it raises.
        """
        if self._restorable is None:
            raise self._unusable("it cannot be restored", "Implement snapshot() and restore()")
        with raising_damage():
            frames = self.codec.decompress_stack(stack) if frames is None else frames
            self._restorable.restore(snapshot, frames)
        self.frames, self.stack = frames, stack
        self._life_lost = False

    def begin_at(self, snapshot: bytes, stack: Stack) -> None:
        """Begin an episode in the state of `snapshot`, where the observation was `stack`; its score begins with 0."""
        self.restore(snapshot, stack)
        self.game_score, self.game_steps = 0.0, 0

    def save(self) -> State:
        """Return everything that the next steps and resets depend on, without changing anything."""
        generator = self._generator()
        facts = {
            "generator": None if generator is None else to_json(generator.bit_generator.state),
            "game_score": self.game_score,
            "game_steps": self.game_steps,
            "life_lost": self._life_lost,
        }
        snapshot = np.frombuffer(self.snapshot(), np.uint8)
        return State(facts, {"snapshot": snapshot, "frames": self.frames.copy()})

    def load(self, state: State) -> None:
        """Continue from a state returned by `save`; an environment that cannot be restored starts a new game."""
        frames = state.arrays["frames"]
        if frames.shape != self.observation_shape or frames.dtype != self.codec.dtype:
            raise self._unusable(
                f"the saved observation is {frames.dtype}{frames.shape}, "
                f"expected {self.codec.dtype}{self.observation_shape}",
                "Use the environment with which it was saved",
            )
        if self.restorable:
            self.restore(state.arrays["snapshot"].tobytes(), tuple(self.codec.compress(frame) for frame in frames))
        self._set_generator(state.facts["generator"])
        if not self.restorable:
            self._life_lost = False
            self.reset()
            return
        self.game_score = float(state.facts["game_score"])
        self.game_steps = int(state.facts["game_steps"])
        self._life_lost = bool(state.facts.get("life_lost", False))

    def render(self) -> Any:
        """Return the environment's own rendering."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _checked(self, observation: Any) -> Frame:
        frame = self._converted(observation)
        fits = frame.dtype == np.uint8 if self.shows_pixels else frame.dtype.kind == "f"
        if frame.shape != self.codec.shape or not fits:
            raise self._unusable(
                f"its observation is {frame.dtype}{frame.shape} but its observation_space is "
                f"{self.codec.dtype}{self.codec.shape}",
                "Make the two agree",
            )
        if self.shows_pixels:
            return frame
        frame = frame.astype(self.codec.dtype)
        if not np.isfinite(frame).all():
            raise self._unusable(f"its observation is {frame}", "Observations must be finite; look for a division by 0")
        return frame

    def _converted(self, observation: Any) -> Frame:
        try:
            return self._convert(observation)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            problem = f"its observation does not fit its observation_space ({type(error).__name__}: {error})"
            raise self._unusable(problem, "Make the two agree") from error

    def _finite(self, value: float, name: str) -> float:
        if not math.isfinite(value):
            raise self._unusable(f"its {name} is {value}", f"A {name} must be finite; look for a division by 0")
        return value

    def _generator(self) -> np.random.Generator | None:
        generator = getattr(getattr(self.env, "unwrapped", self.env), "np_random", None)
        return generator if isinstance(generator, np.random.Generator) else None

    def _set_generator(self, state: dict[str, Any] | None) -> None:
        generator = self._generator()
        if generator is not None and state is not None:
            generator.bit_generator.state = state

    def _unusable(self, problem: str, remedy: str) -> UnusableEnvironment:
        return UnusableEnvironment(self._name, problem, f"{remedy}.")


def _count_actions(name: str, space: spaces.Space[Any]) -> int:
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return int(space.n)
    raise UnusableEnvironment(
        name,
        f"its action_space is {describe(space)}",
        "DQN needs a Discrete action space that starts at 0; wrap the environment to provide one.",
    )
