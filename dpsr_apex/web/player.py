"""Play from a stored moment, step by step, with a trained agent or by hand; any earlier frame can be continued.

The rules are those of an evaluation: unclipped rewards, `evaluation.epsilon`, and a lost life does not end the game.
The agent alone continues a moment exactly as `dpsr-apex inspect --enter` does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Agent
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.inspection.pictures import frame_picture
from dpsr_apex.inspection.rendering import Picture, render_current
from dpsr_apex.replay.transitions import Stack

MOST_FRAMES = 20_000  # of one play, in all branches
OBSERVATION_SIDE = 168  # pixels, where an observation is shown in place of a screen


class GameOver(Exception):
    """Raised for a step after the end of the game, or beyond the limit of frames."""


class Shot(NamedTuple):
    """One player's view of one frame: a state, how it was reached, and what the agent expects there."""

    screen: Picture
    is_screen: bool  # False: the agent's observation, because the environment cannot show the state
    frames: NDArray[Any]  # the agent's observation
    q_values: list[float]
    action: int | None  # that led here; None for the first frame
    by: str  # "agent", "you", or "stored" for the first frame
    reward: float
    score: float  # since the moment
    life_lost: bool
    over: bool
    snapshot: bytes
    stack: Stack


class Frame(NamedTuple):
    """One frame of a play: the view of each player, and the frame before it."""

    number: int
    parent: int | None  # None for the moment itself
    step: int  # steps since the moment
    shots: list[Shot]

    @property
    def is_over(self) -> bool:
        """Whether the game is over for all players."""
        return all(shot.over for shot in self.shots)


class Player:
    """Plays in `env`, which has the rules of an evaluation, with `agent`; `seed` determines its random actions."""

    def __init__(self, env: StackedEnv, agent: Agent, epsilon: float, seed: int) -> None:
        self.env = env
        self.agent = agent
        self._epsilon = epsilon
        self._seed = seed
        self._rng = np.random.default_rng(seed)

    def begin(self, snapshot: bytes, stack: Stack) -> Shot:
        """Restore the state of a moment."""
        self._rng = np.random.default_rng(self._seed)
        self.env.restore(snapshot, stack)
        return self._shot(None, "stored", 0.0, 0.0, False, False)

    def step(self, last: Shot, action: int | None) -> Shot:
        """Take an action, or the agent's for None, after the last shot; after the end nothing changes any more."""
        if last.over:
            return last
        by = "agent" if action is None else "you"
        chosen = self._choose(last) if action is None else action
        step = self.env.step(chosen)
        lost = step.terminal and not step.game_over
        if lost:
            self.env.reset()  # continues the game
        return self._shot(chosen, by, step.score, last.score + step.score, lost, step.game_over)

    def return_to(self, shot: Shot) -> None:
        """Restore the state of an earlier shot."""
        if not shot.over:
            self.env.restore(shot.snapshot, shot.stack)

    def _choose(self, last: Shot) -> int:
        random_action = int(self._rng.integers(self.env.actions))
        explores = self._rng.random() < self._epsilon
        return random_action if explores else int(np.argmax(last.q_values))

    def _shot(self, action: int | None, by: str, reward: float, score: float, lost: bool, over: bool) -> Shot:
        screen = render_current(self.env)
        q_values: NDArray[Any] = self.agent.q_values(self.env.frames[np.newaxis])[0]
        return Shot(
            screen=frame_picture(self.env.frames[-1], OBSERVATION_SIDE) if screen is None else screen,
            is_screen=screen is not None,
            frames=self.env.frames,
            q_values=q_values.astype(float).tolist(),
            action=action,
            by=by,
            reward=reward,
            score=score,
            life_lost=lost,
            over=over,
            snapshot=b"" if over else self.env.snapshot(),
            stack=self.env.stack,
        )


class Play:
    """A tree of frames from one moment on: all players can continue from any of them, in step."""

    def __init__(self, players: list[Player], snapshot: bytes, stack: Stack) -> None:
        self.players = players
        self.frames = [Frame(0, None, 0, [player.begin(snapshot, stack) for player in players])]
        self.current = self.frames[0]

    def step(self, action: int | None) -> Frame:
        """Let all players take an action, or each its agent's for None; raise GameOver after the end."""
        if self.current.is_over:
            raise GameOver("The game is over. Return to an earlier frame to continue from there.")
        if len(self.frames) >= MOST_FRAMES:
            raise GameOver(f"{MOST_FRAMES:,} frames are the limit. Open the moment again to continue.")
        last = self.current
        pairs = zip(self.players, last.shots, strict=True)
        shots = [player.step(shot, action) for player, shot in pairs]
        self.current = Frame(len(self.frames), last.number, last.step + 1, shots)
        self.frames.append(self.current)
        return self.current

    def go_to(self, number: int) -> Frame:
        """Return to a frame, to continue from there; raise ValueError if there is no such frame."""
        if not 0 <= number < len(self.frames):
            raise ValueError(f"there is no frame {number}")
        self.current = self.frames[number]
        for player, shot in zip(self.players, self.current.shots, strict=True):
            player.return_to(shot)
        return self.current

    def path(self) -> list[Frame]:
        """Return the frames from the moment to the current one."""
        path = [self.current]
        while (parent := path[-1].parent) is not None:
            path.append(self.frames[parent])
        return path[::-1]
