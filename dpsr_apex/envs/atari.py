"""Atari games as the paper plays them, over the emulator itself. The only module that imports ale_py.

One step holds an action for four frames and shows one grey 84x84 frame; stacking is done outside. The emulator never
sees bytes whose checksum was not verified first.
"""

from __future__ import annotations

import hashlib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import ale_py
import gymnasium
import numpy as np
from ale_py import roms
from gymnasium import spaces
from numpy.typing import NDArray

from dpsr_apex.envs.compression import DamagedSnapshot, SnapshotCodec, seal, unseal
from dpsr_apex.envs.shrink import Shrinker
from dpsr_apex.envs.snapshot import UnusableEnvironment

SIDE = 84  # pixels of a frame's edge
SKIP = 4  # emulator frames that one action is held for
MOST_NOOPS = 30  # emulator frames without action after a reset
MAX_FRAMES = 108_000  # emulator frames of one game: half an hour of play
KEYFRAME_STEPS = 8  # agent steps for which one emulator state serves, with the actions since

_NOOP = 0

Seen = NDArray[np.uint8]

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


class Start(NamedTuple):
    """A new game once its no-ops and its opening have been played."""

    state: ale_py.ALEState
    frame: Seen


class Atari(gymnasium.Env[Seen, Any]):
    """One game. A lost life ends an episode, and the next `reset` plays on; in training rewards are clipped to signs.

    `info["score"]` is the step's unclipped reward; `info["game_over"]` is True only where the whole game has ended.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 -- declared so by gymnasium
    render_mode = "rgb_array"

    def __init__(self, game: str, training: bool = True, max_frames: int = MAX_FRAMES) -> None:
        if max_frames < 10 * MOST_NOOPS:
            raise ValueError(f"max_frames is {max_frames}; a game takes at least {10 * MOST_NOOPS} frames")
        self._training = training
        self._ale = _load(find_rom(game), max_frames)
        self._ale.reset_game()
        # Equal in every process that loads this game, so nobody has to ship it.
        self._first_state = self._ale.cloneState()
        first = self._first_state.serialize()
        self._codec = SnapshotCodec(first)
        self.fingerprint = hashlib.sha256(first).hexdigest()[:12]
        self._actions = self._ale.getMinimalActionSet()
        self.action_names = [action.name for action in self._actions]
        self._opening = _opening(self._actions)
        self._starts: dict[int, Start | None] = {}  # by the number of no-ops; None where the game ended in its opening
        self._screen = self._ale.getScreen()
        self._shrinker = Shrinker(self._screen, self._ale.getScreenGrayscale, SIDE)
        self._lives = 0
        self._life_lost = False
        self._keyframe = b""
        self._actions_since = bytearray()
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, dict[str, Any]]:
        """Plays on after a lost life; otherwise, and whenever a seed is given, a new game.

        In training, what `render` shows of a new game is stale until the next step.
        """
        super().reset(seed=seed, options=options)
        plays_on = self._life_lost and seed is None and self._plays_on()
        frame = self._shrinker.frame() if plays_on else self._new_game()
        self._lives = self._ale.lives()
        self._life_lost = False
        self._keyframe = b""
        self._actions_since.clear()
        return frame, {"lives": self._lives, "new_game": not plays_on}

    def step(self, action: int) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """Hold the action for four frames, or until the game ends."""
        score = float(self._hold(self._actions[action]))
        self._actions_since.append(action)
        lives = self._ale.lives()
        over = self._ale.game_over(with_truncation=False)
        truncated = self._ale.game_truncated()
        # Some games show 0 lives for a while before they are over: only the game itself ends the last life.
        self._life_lost = 0 < lives < self._lives and not (over or truncated)
        self._lives = lives
        info = {"score": score, "game_over": over or truncated, "lives": lives}
        reward = float(np.sign(score)) if self._training else score
        return self._shrinker.frame(), reward, over or self._life_lost, truncated, info

    def snapshot(self) -> bytes:
        """The emulator's state, at most a few steps ago, and the actions since.

        Taking the state is as dear as an emulator frame and every step of a run is kept, but few are ever re-entered.
        """
        if not self._keyframe or len(self._actions_since) >= KEYFRAME_STEPS:
            state = self._ale.cloneState().serialize() + bytes((self._life_lost,))
            self._keyframe = self._codec.squeeze(state)
            self._actions_since.clear()
        return seal(bytes((len(self._actions_since),)) + self._actions_since + self._keyframe)

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:  # noqa: ARG002 -- the emulator says it all
        """Back to that moment. What `render` shows is stale until the next step."""
        body = unseal(snapshot)
        actions, keyframe = body[1 : 1 + body[0]], body[1 + body[0] :]
        self._restore_state(self._codec.inflate(keyframe))
        self._keyframe = keyframe
        self._actions_since.clear()
        for action in actions:
            self.step(action)

    def render(self) -> NDArray[np.uint8]:
        """The screen as a player sees it, RGB."""
        return self._ale.getScreenRGB()

    def _restore_state(self, state: bytes) -> None:
        try:
            self._ale.restoreState(ale_py.ALEState(state[:-1]))
        except RuntimeError as error:
            raise DamagedSnapshot(f"the emulator refuses the snapshot: {error}") from error
        self._life_lost = bool(state[-1])
        self._lives = self._ale.lives()

    def _plays_on(self) -> bool:
        """Begin the next life; False if the game ended meanwhile."""
        self._hold(_NOOP)
        return self._opened()

    def _new_game(self) -> Seen:
        """Begin one, and give its first frame.

        There are no more beginnings than numbers of no-ops. Each is played once and re-entered afterwards: resetting an
        emulator takes as long as twenty steps.
        """
        while True:
            no_ops = int(self.np_random.integers(1, MOST_NOOPS + 1))
            # An emulator shows its old screen until it draws again, and evaluations are filmed: they play every one.
            if no_ops not in self._starts or not self._training:
                self._starts[no_ops] = self._play_start(no_ops)
            if start := self._starts[no_ops]:
                self._ale.restoreState(start.state)
                return start.frame.copy()

    def _play_start(self, no_ops: int) -> Start | None:
        """At least one frame is drawn: straight after a reset a snapshot of Qbert or Tetris does not restore."""
        # Most of a state is the emulator's random generator, which resets move on until nothing squeezes well any more.
        self._ale.restoreState(self._first_state)
        self._ale.reset_game()
        for _ in range(no_ops):
            self._ale.act(_NOOP)
        for place in range(2):
            self._look(place)
        return Start(self._ale.cloneState(), self._shrinker.frame()) if self._opened() else None

    def _opened(self) -> bool:
        """False if the game ended meanwhile."""
        for action in self._opening:
            self._hold(action)
        return not self._ale.game_over()

    def _hold(self, action: Any) -> int:
        """Sum of rewards over the skip. An emulator whose game has ended stands still: its last screen shows alone."""
        act = self._ale.act
        reward = 0
        for _ in range(SKIP - 2):
            reward += act(action)
        for place in range(2):
            reward += act(action)
            self._look(place)
        return reward

    def _look(self, place: int) -> None:
        """The screen of now as one of the two that a frame is made of."""
        self._ale.getScreen(self._screen)
        self._shrinker.take(place, self._screen)


def find_rom(game: str) -> Path:
    """The ROM of a game given as "MsPacman", "mspacman" or "ms_pacman"."""
    by_name = {_plain(rom): rom for rom in roms.get_all_rom_ids()}
    rom = by_name.get(_plain(game))
    if rom is None:
        close = [by_name[name].title().replace("_", "") for name in get_close_matches(_plain(game), by_name)]
        remedy = f"Did you mean {' or '.join(close)}?" if close else "Atari games are named as in Gymnasium: MsPacman."
        raise UnusableEnvironment(game, "there is no environment of this name", remedy)
    path = roms.get_rom_path(rom)
    # Loading a ROM that the emulator does not know would end the process.
    if path is None or ale_py.ALEInterface.isSupportedROM(path) is None:
        raise UnusableEnvironment(game, "the emulator has no single-player form of this game", "Choose another one.")
    return path


def _plain(game: str) -> str:
    return game.replace("_", "").lower()


def _load(rom: Path, max_frames: int) -> ale_py.ALEInterface:
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("max_num_frames_per_episode", max_frames)
    ale.setInt("random_seed", 0)
    ale.loadROM(rom)
    return ale


def _opening(actions: list[ale_py.Action]) -> list[ale_py.Action]:
    """FIRE and the action after it, held once each where the game has FIRE second: several wait for them to begin."""
    return actions[1:3] if len(actions) >= 3 and actions[1] == ale_py.Action.FIRE else []
