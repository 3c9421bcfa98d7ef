"""One environment as the roles see it: a stack of frames, numbers that are sane, and a way back to any moment.

Everything that an environment says is checked here, so that no wrong number reaches the replay. Nothing here draws
random numbers of its own.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.envs.snapshot import Environment, Frame, Reentrant, UnusableEnvironment
from dpsr_apex.replay.transitions import Stack
from dpsr_apex.state import State


class Step(NamedTuple):
    """What one action led to; the observation is in the environment's `frames` and `stack`."""

    reward: float  # as it is to be learned: clipped, where the environment clips
    terminal: bool
    truncated: bool
    score: float  # the unclipped reward of this step
    game_over: bool  # False where an episode ended but the next `reset` plays on


class StackedEnv:
    """Starts with a reset by `seed`. Consecutive observations share their squeezed frames.

    `stack`: frames in an observation; None = 4 for grey frames, 1 for planes and vectors. `name` is for messages.
    """

    frames: NDArray[Any]
    """The observation of now, shape (stack, *frame shape), the newest frame last; a new array at every step."""
    stack: Stack
    """The same observation, squeezed."""

    def __init__(self, env: Environment, stack: int | None, seed: int, name: str = "") -> None:
        self.env = env
        self._name = name or type(env).__name__
        self.codec = _codec_for(self._name, env.observation_space)
        self.actions = _count_actions(self._name, env.action_space)
        depth = stack or (4 if len(self.codec.shape) == 2 else 1)
        self.observation_shape = (depth, *self.codec.shape)
        # Asked once: an instance check of a protocol takes longer than most snapshots.
        self._reentrant = env if isinstance(env, Reentrant) else None
        self.game_score = 0.0  # unclipped, of the game so far, over lost lives
        self.game_steps = 0
        self._game_over = True
        self._begin(seed)

    @property
    def reentrant(self) -> bool:
        """Whether it can be left and re-entered."""
        return self._reentrant is not None

    @property
    def shows_pixels(self) -> bool:
        """Whether its frames are pictures."""
        return self.codec.dtype == np.uint8

    @property
    def description(self) -> str:
        """What processes must agree on to share transitions; `fingerprint` is an environment's own word to that."""
        look = f"{self._name}, {self.codec.dtype}{self.observation_shape}, {self.actions} actions"
        own = getattr(self.env, "fingerprint", "")
        return f"{look}, {own}" if own else look

    def reset(self) -> None:
        """Begin the next episode; every frame of the stack is its first one."""
        self._begin(None)

    def step(self, action: int) -> Step:
        """One action; after an end, `reset` must follow."""
        observation, reward, terminal, truncated, info = self.env.step(action)
        frame = self._checked(observation)
        self.frames = np.concatenate((self.frames[1:], frame[np.newaxis]))
        self.stack = (*self.stack[1:], self.codec.squeeze(frame))
        gained = self._finite(float(reward), "reward")
        score = self._finite(float(info.get("score", gained)), "score")
        game_over = bool(info.get("game_over", terminal or truncated))
        self.game_score += score
        self.game_steps += 1
        self._game_over = game_over
        return Step(gained, bool(terminal), bool(truncated), score, game_over)

    def snapshot(self) -> bytes:
        """The moment of now as small bytes; b"" for an environment that cannot be re-entered."""
        if self._reentrant is None:
            return b""
        snapshot = self._reentrant.snapshot()
        if not isinstance(snapshot, bytes) or not snapshot:
            raise self._unusable(
                f"snapshot() returned {type(snapshot).__name__} ({snapshot!r:.40})", "Return bytes, at least one"
            )
        return snapshot

    def restore(self, snapshot: bytes, stack: Stack) -> None:
        """Go to the moment at which `snapshot` was taken and `stack` was seen. The game's score is not put back."""
        if self._reentrant is None:
            raise self._unusable("it cannot be re-entered", "Give it snapshot() and restore()")
        frames = self.codec.inflate_stack(stack)
        self._reentrant.restore(snapshot, frames)
        self.frames, self.stack = frames, stack
        self._game_over = False

    def save(self) -> State:
        """Everything that the next steps and resets depend on. Draws nothing and changes nothing."""
        generator = self._generator()
        facts = {
            "generator": None if generator is None else _plain(generator.bit_generator.state),
            "game_score": self.game_score,
            "game_steps": self.game_steps,
            "game_over": self._game_over,
        }
        snapshot = np.frombuffer(self.snapshot(), np.uint8)
        return State(facts, {"snapshot": snapshot, "frames": self.frames.copy()})

    def load(self, state: State) -> None:
        """Go on where `save` was called. An environment that cannot be re-entered begins a new game instead."""
        frames = state.arrays["frames"]
        if frames.shape != self.observation_shape or frames.dtype != self.codec.dtype:
            raise self._unusable(f"the saved observation is {frames.dtype}{frames.shape}", "Was another one saved?")
        if self.reentrant:
            self.restore(state.arrays["snapshot"].tobytes(), tuple(self.codec.squeeze(frame) for frame in frames))
        self._set_generator(state.facts["generator"])
        if not self.reentrant:
            self._game_over = True
            self.reset()
            return
        self.game_score = float(state.facts["game_score"])
        self.game_steps = int(state.facts["game_steps"])
        self._game_over = bool(state.facts["game_over"])

    def render(self) -> Any:
        """The environment's own picture."""
        return self.env.render()

    def close(self) -> None:
        """Let go of the environment."""
        self.env.close()

    def _begin(self, seed: int | None) -> None:
        observation, info = self.env.reset(seed=seed)
        depth = self.observation_shape[0]
        frame = self._checked(observation)
        self.frames = np.repeat(frame[np.newaxis], depth, axis=0)
        self.stack = (self.codec.squeeze(frame),) * depth
        if seed is not None or self._game_over or info.get("new_game", False):
            self.game_score, self.game_steps = 0.0, 0
        self._game_over = False

    def _checked(self, observation: Any) -> Frame:
        frame = np.asarray(observation)
        if frame.shape != self.codec.shape or frame.dtype.kind != self.codec.dtype.kind:
            raise self._unusable(
                f"it showed {frame.dtype}{frame.shape} but its observation_space says {self.codec.shape} of "
                f"{self.codec.dtype}",
                "Make the two agree",
            )
        if frame.dtype == np.uint8:
            return frame
        frame = frame.astype(self.codec.dtype)
        if not np.isfinite(frame).all():
            raise self._unusable(f"it showed {frame}", "Observations must be finite; look for a division by zero")
        return frame

    def _finite(self, number: float, what: str) -> float:
        if not math.isfinite(number):
            raise self._unusable(f"its {what} was {number}", f"A {what} must be finite; look for a division by zero")
        return number

    def _generator(self) -> np.random.Generator | None:
        return getattr(getattr(self.env, "unwrapped", self.env), "np_random", None)

    def _set_generator(self, state: dict[str, Any] | None) -> None:
        generator = self._generator()
        if generator is not None and state is not None:
            generator.bit_generator.state = state

    def _unusable(self, problem: str, remedy: str) -> UnusableEnvironment:
        return UnusableEnvironment(self._name, problem, f"{remedy}.")


def _plain(value: Any) -> Any:
    """A generator's state with lists and Python's integers where numpy's were (in Philox, SFC64, Mersenne Twister)."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _codec_for(name: str, space: spaces.Space[Any]) -> FrameCodec:
    if isinstance(space, spaces.Box):
        if space.dtype == np.uint8 and (len(space.shape) == 2 or _has_planes(space.shape)):
            return FrameCodec(space.shape, np.uint8)
        if space.dtype is not None and space.dtype.kind == "f" and len(space.shape) == 1:
            return FrameCodec(space.shape, np.float32)
    raise UnusableEnvironment(
        name,
        f"its observations are {space}",
        "Supported are Box of uint8 with two axes (one grey frame) or three (planes, height, width: planes first), "
        "and Box of floats with one axis (a vector); wrap the environment so that it shows one of them.",
    )


def _has_planes(shape: tuple[int, ...]) -> bool:
    """Whether these are planes and then two sides; colours that come last would pass for a very narrow picture."""
    return len(shape) == 3 and not (shape[2] <= 4 < min(shape[:2]))


def _count_actions(name: str, space: spaces.Space[Any]) -> int:
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return int(space.n)
    raise UnusableEnvironment(
        name,
        f"its actions are {space}",
        "DQN needs Discrete actions that start at 0; wrap the environment to give them.",
    )
