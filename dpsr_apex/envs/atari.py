"""Atari games with the paper's preprocessing, on top of the emulator itself. The only module that imports ale_py.

One step repeats an action for four emulator frames and returns one grey 84x84 frame; frames are stacked elsewhere.
Bytes are passed to the emulator only after their checksum has been verified.
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

from dpsr_apex.checksums import add_checksum
from dpsr_apex.envs.compression import DamagedSnapshot, SnapshotCodec, verify_checksum
from dpsr_apex.envs.downsample import Downsampler
from dpsr_apex.envs.generators import GENERATOR_BYTES, pack_generator, set_generator
from dpsr_apex.envs.snapshot import UnusableEnvironment

FRAME_SIDE = 84  # pixels
FRAME_SKIP = 4  # emulator frames for which one action is repeated
MAX_NOOPS = 30  # emulator frames without action after a reset
MAX_FRAMES = 108_000  # emulator frames per game (time limit): half an hour of play
KEYFRAME_STEPS = 8  # agent steps between two serialized emulator states; snapshots in between add the actions taken

EMULATOR_ERRORS = (RuntimeError, SystemError, ValueError, IndexError)  # what ale_py raises for damaged states
_NOOP = ale_py.Action.NOOP
_NEVER = (1.0,) * FRAME_SKIP  # instead of random numbers, without sticky actions

GreyFrame = NDArray[np.uint8]

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


class Start(NamedTuple):
    """Emulator state, first frame and score of a new game, after its no-ops and its FIRE actions."""

    state: ale_py.ALEState
    frame: GreyFrame
    score: float


class NextLife(NamedTuple):
    """The next life of a game, already started: its first frame, and the last screen of the lost life (RGB)."""

    frame: GreyFrame
    last_screen: NDArray[np.uint8]


class Atari(gymnasium.Env[GreyFrame, Any]):
    """One Atari game as a Gymnasium environment.

    Losing a life ends the training episode, and the next `reset` continues the same game. With `training`, rewards are
    clipped to their sign. `info["score"]` is what the emulator has paid since the last `info`, unclipped;
    `info["game_over"]` is True only when the whole game has ended.

    The next life is started in the step that loses one: its no-op and FIRE actions can score and can end the game. Both
    are part of that step's `info`. They are not part of its reward, because the agent did not choose these actions.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 -- declared so by gymnasium
    render_mode = "rgb_array"

    def __init__(
        self,
        game: str,
        training: bool = True,
        max_frames: int = MAX_FRAMES,
        repeat_action_probability: float = 0.0,
        full_action_space: bool = False,
        mode: int | None = None,
        difficulty: int | None = None,
    ) -> None:
        """Load the game; `mode` and `difficulty` are switches of the console (None = the game's default).

        `repeat_action_probability`: of repeating the action of the previous emulator frame (sticky actions).
        """
        _check_arguments(max_frames, repeat_action_probability, full_action_space)
        self._training = training
        self._sticky = float(repeat_action_probability)
        self._ale = _load(find_rom(game), max_frames)
        _set_switches(self._ale, mode, difficulty)
        self._ale.reset_game()
        # Identical in every process that loads this game, so it is a compression dictionary that need not be sent.
        self._first_state = self._ale.cloneState()
        first = self._first_state.serialize()
        self._codec = SnapshotCodec(first)
        minimal = self._ale.getMinimalActionSet()
        self._actions = self._ale.getLegalActionSet() if full_action_space else minimal
        self.fingerprint = _fingerprint(first, self._sticky, full_action_space)
        self.action_names = [action.name for action in self._actions]
        self._start_actions = _start_actions(minimal)
        self._previous = _NOOP  # action of the last emulator frame, which a sticky action repeats
        self._starts: dict[int, Start | None] = {}  # by number of no-ops; None if the game ended during them
        self._screen = self._ale.getScreen()
        self._downsampler = Downsampler(self._screen, self._ale.getScreenGrayscale, FRAME_SIDE)
        self._lives = 0
        self._next_life: NextLife | None = None  # between a lost life and the reset after it
        self._keyframe = b""
        self._actions_since = bytearray()
        self.screen_is_current = True  # False until the next step where the emulator still shows an earlier screen
        self.observation_space = spaces.Box(0, 255, (FRAME_SIDE, FRAME_SIDE), np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[GreyFrame, dict[str, Any]]:
        """Continue the game after a lost life; otherwise, or when a seed is given, start a new game.

        In training, `render` shows the previous screen until the first step of a new game.
        """
        super().reset(seed=seed, options=options)
        next_life = self._next_life if seed is None else None
        frame, score = (next_life.frame, 0.0) if next_life else self._new_game()
        self._lives = self._ale.lives()
        self._next_life = None
        self._keyframe = b""
        self._actions_since.clear()
        return frame, {"score": score, "lives": self._lives, "new_game": next_life is None}

    def step(self, action: int) -> tuple[GreyFrame, float, bool, bool, dict[str, Any]]:
        """Repeat the action for four emulator frames, or until the game ends; start the next life if one was lost."""
        paid = float(self._repeat(self._actions[action], self._sticky))
        self.screen_is_current = True
        self._actions_since.append(action)
        frame = self._downsampler.frame()
        lives = self._ale.lives()
        over = self._ale.game_over(with_truncation=False)
        truncated = self._ale.game_truncated()
        # Some games report 0 lives for a while before game over: the last life ends with the game, not before.
        life_lost = 0 < lives < self._lives and not (over or truncated)
        self._lives = lives
        self._next_life = None
        score = paid + self._start_next_life() if life_lost else paid
        info = {"score": score, "game_over": self._ale.game_over(), "lives": lives}
        return frame, float(np.sign(paid)) if self._training else paid, over or life_lost, truncated, info

    def snapshot(self) -> bytes:
        """Serialize the latest keyframe (an emulator state at most `KEYFRAME_STEPS` old) and the actions taken since.

        Serializing the emulator costs as much as an emulator frame, and a snapshot is taken at every step of a run,
        while only few are ever restored.
        """
        if not self._keyframe or len(self._actions_since) >= KEYFRAME_STEPS:
            next_frame = self._next_life.frame.tobytes() if self._next_life else b""
            state = self._ale.cloneState().serialize() + next_frame + bytes((self._next_life is not None,))
            if self._sticky:
                state += pack_generator(self.np_random) + bytes((self._previous.value,))
            self._keyframe = self._codec.compress(state)
            self._actions_since.clear()
        return add_checksum(bytes((len(self._actions_since),)) + self._actions_since + self._keyframe)

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:  # noqa: ARG002 -- the emulator state is complete
        """Return to the state of `snapshot`. `render` may show the previous screen until the next step."""
        body = verify_checksum(snapshot)
        actions, keyframe = body[1 : 1 + body[0]], body[1 + body[0] :]
        state = self._codec.decompress(keyframe)
        try:
            self._restore_state(state)
            self._keyframe = keyframe
            self.screen_is_current = False
            self._actions_since.clear()
            for action in actions:
                self.step(action)
        except EMULATOR_ERRORS as error:
            raise DamagedSnapshot(f"the emulator rejected the snapshot: {error}") from error

    def render(self) -> NDArray[np.uint8]:
        """Return the full-size screen, RGB."""
        return self._next_life.last_screen if self._next_life else self._ale.getScreenRGB()

    def _restore_state(self, state: bytes) -> None:
        """Restore what `snapshot` put into a keyframe."""
        if self._sticky:
            generator, self._previous = state[-1 - GENERATOR_BYTES : -1], ale_py.Action(state[-1])
            set_generator(self.np_random, generator)
            state = state[: -1 - GENERATOR_BYTES]
        life_lost = bool(state[-1])
        end = -1 - FRAME_SIDE**2 * life_lost
        self._ale.restoreState(ale_py.ALEState(state[:end]))
        next_frame = np.frombuffer(state[end:-1], np.uint8).copy()
        self._next_life = (
            NextLife(next_frame.reshape(FRAME_SIDE, FRAME_SIDE), self._ale.getScreenRGB()) if life_lost else None
        )
        self._lives = self._ale.lives()

    def _start_next_life(self) -> float:
        """Start the next life and return its score so far. `_next_life` stays None if the game ended in the process."""
        last_screen = self._ale.getScreenRGB()
        score = self._repeat(_NOOP) + self._play_start_actions()
        if not self._ale.game_over():
            self._next_life = NextLife(self._downsampler.frame(), last_screen)
        return score

    def _new_game(self) -> tuple[GreyFrame, float]:
        """Start a new game; return its first frame, and its score so far.

        A start depends only on the number of no-ops. Each one is played once and restored afterwards, because resetting
        the emulator takes as long as twenty steps.
        """
        while True:
            no_ops = int(self.np_random.integers(1, MAX_NOOPS + 1))
            # Restoring does not update the emulator's screen. Evaluations record videos, so they play every start.
            if no_ops not in self._starts or not self._training:
                self._starts[no_ops] = self._play_start(no_ops)
            if start := self._starts[no_ops]:
                self._ale.restoreState(start.state)
                self.screen_is_current = not self._training
                self._previous = self._start_actions[-1] if self._start_actions else _NOOP
                return start.frame.copy(), start.score

    def _play_start(self, no_ops: int) -> Start | None:
        """Play `no_ops` >= 1 no-ops: directly after a reset, a snapshot of Qbert or Tetris does not restore exactly.

        Return None if the game ended in the process.
        """
        # Most of an emulator state is its random generator. Every reset advances it away from the state that serves as
        # the compression dictionary, so it is put back first.
        self._ale.restoreState(self._first_state)
        self._ale.reset_game()
        score = sum(self._ale.act(_NOOP) for _ in range(no_ops))
        for index in range(2):
            self._capture_screen(index)
        score += self._play_start_actions()
        if self._ale.game_over():
            return None
        return Start(self._ale.cloneState(), self._downsampler.frame(), float(score))

    def _play_start_actions(self) -> int:
        """Play the FIRE actions that start a game or a life, if it needs them; return the reward sum.

        They are never sticky: the agent does not choose them, and a start must depend on its no-ops only.
        """
        return sum(self._repeat(action) for action in self._start_actions)

    def _repeat(self, action: Any, sticky: float = 0.0) -> int:
        """Repeat an action for `FRAME_SKIP` emulator frames, capture the last two screens, and return the reward sum.

        With probability `sticky`, a frame repeats the action of the frame before it, as in the emulator. The emulator's
        own sticky actions are not used, because its serialized state does not contain that action. After game over the
        emulator ignores actions, so that both captured screens are the last one.
        """
        act = self._ale.act
        reward = 0
        for frame, chance in enumerate(self.np_random.random(FRAME_SKIP) if sticky else _NEVER):
            if chance >= sticky:
                self._previous = action
            reward += act(self._previous)
            if frame >= FRAME_SKIP - 2:
                self._capture_screen(frame - (FRAME_SKIP - 2))
        return reward

    def _capture_screen(self, index: int) -> None:
        """Use the current screen as screen 0 or 1 of the two whose maximum becomes the next frame."""
        self._ale.getScreen(self._screen)
        self._downsampler.set_screen(index, self._screen)


def find_rom(game: str) -> Path:
    """Return the path of the ROM of a game named as "MsPacman", "mspacman" or "ms_pacman"."""
    by_name = {_normalized(rom): rom for rom in roms.get_all_rom_ids()}
    rom = by_name.get(_normalized(game))
    if rom is None:
        close = [_title(by_name[name]) for name in get_close_matches(_normalized(game), by_name)]
        remedy = f"Did you mean {' or '.join(close)}?" if close else "Atari games are named as in Gymnasium: MsPacman."
        raise UnusableEnvironment(game, "there is no environment of this name", remedy)
    path = roms.get_rom_path(rom)
    if path is None or not _is_playable(path):
        raise UnusableEnvironment(game, "the emulator has no single-player mode of this game", "Choose another game.")
    return path


def games() -> list[str]:
    """Return the names of all games that `find_rom` finds."""
    names = {_title(rom): roms.get_rom_path(rom) for rom in sorted(roms.get_all_rom_ids())}
    return [name for name, path in names.items() if _is_playable(path)]


def _is_playable(rom: Path | None) -> bool:
    """Whether the emulator supports a ROM; loading an unsupported one would end the process."""
    return rom is not None and ale_py.ALEInterface.isSupportedROM(rom) is not None


def _title(rom: str) -> str:
    return rom.title().replace("_", "")


def _normalized(game: str) -> str:
    return game.replace("_", "").lower()


def _load(rom: Path, max_frames: int) -> ale_py.ALEInterface:
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("max_num_frames_per_episode", max_frames)
    ale.setInt("random_seed", 0)
    ale.loadROM(rom)
    return ale


def _check_arguments(max_frames: int, repeat_action_probability: float, full_action_space: bool) -> None:
    """Raise ValueError for an argument that cannot be applied, by name."""
    if not isinstance(max_frames, int) or max_frames < 10 * MAX_NOOPS:
        raise ValueError(f"max_frames must be an integer >= {10 * MAX_NOOPS} (got {max_frames!r})")
    number = repeat_action_probability
    if not isinstance(number, int | float) or isinstance(number, bool) or not 0 <= number < 1:
        raise ValueError(f"repeat_action_probability must be a number >= 0 and < 1 (got {number!r})")
    if not isinstance(full_action_space, bool):
        raise ValueError(f"full_action_space must be true or false (got {full_action_space!r})")


def _set_switches(ale: ale_py.ALEInterface, mode: int | None, difficulty: int | None) -> None:
    """Set mode and difficulty, which the next reset applies; raise ValueError if the game does not have them."""
    switches = (
        ("mode", mode, ale.getAvailableModes(), ale.setMode),
        ("difficulty", difficulty, ale.getAvailableDifficulties(), ale.setDifficulty),
    )
    for name, value, available, set_value in switches:
        if value is None:
            continue
        if isinstance(value, bool) or value not in available:
            raise ValueError(f"{name} must be one of {', '.join(map(str, available))} (got {value!r})")
        set_value(value)


def _fingerprint(first_state: bytes, sticky: float, full_action_space: bool) -> str:
    """Return a hash that differs between games, their switches and sets of actions, and versions of the emulator."""
    rules = f"{sticky} {full_action_space}".encode() if sticky or full_action_space else b""
    return hashlib.sha256(first_state + rules).hexdigest()[:12]


def _start_actions(actions: list[ale_py.Action]) -> list[ale_py.Action]:
    """Return FIRE and the action after it for games whose second action is FIRE: several need them to start."""
    return actions[1:3] if len(actions) >= 3 and actions[1] == ale_py.Action.FIRE else []
