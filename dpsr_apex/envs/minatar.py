"""MinAtar's five games: small versions of Atari games on a 10x10 grid. The only module that imports minatar.

The rules are those of the package; this module adds a time limit, rendering and snapshots. A state is restored only
after its checksum has been verified.
"""

from __future__ import annotations

import hashlib
import json
import struct
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dpsr_apex.envs.arguments import require_positive
from dpsr_apex.envs.compression import DamagedSnapshot, SnapshotCodec
from dpsr_apex.envs.generators import GENERATOR_BYTES, pack_generator, set_generator
from dpsr_apex.envs.planes import BACKGROUND, plane_colours
from dpsr_apex.envs.snapshot import UnusableEnvironment

try:
    import minatar
except ImportError as error:
    raise UnusableEnvironment(
        "MinAtar", f"the package minatar is not installed ({error})", "Install it: pip install minatar"
    ) from error

GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
MAX_STEPS = 2_500  # agent steps per episode (time limit)

_ACTION_NAMES = {"n": "none", "l": "left", "u": "up", "r": "right", "d": "down", "f": "fire"}
_CELL = 16  # side of a rendered cell in pixels
_EXCLUDED = ("action_map", "channels", "ramping", "random")  # attributes of a game that are constant or saved elsewhere

# The random generator; the steps of this episode; the last action, which a sticky action repeats even across a reset.
_HEADER = struct.Struct(f"<{GENERATOR_BYTES}sIB")

Planes = NDArray[np.uint8]


class MinAtar(gymnasium.Env[Planes, Any]):
    """One MinAtar game. An observation has shape (planes, 10, 10): per kind of object, 255 where it is and 0 elsewhere.

    The actions are the game's minimal action set. Sticky actions, which the package enables by default, are off.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012 -- declared so by gymnasium
    render_mode = "rgb_array"

    def __init__(
        self,
        game: str,
        sticky_action_prob: float = 0.0,
        difficulty_ramping: bool = True,
        max_steps: int = MAX_STEPS,
    ) -> None:
        if game not in GAMES:
            raise UnusableEnvironment(f"MinAtar/{game}", "there is no such game", f"Choose one of {', '.join(GAMES)}.")
        if not isinstance(sticky_action_prob, int | float) or not 0 <= sticky_action_prob <= 1:
            raise ValueError(f"sticky_action_prob must be a number from 0 to 1 (got {sticky_action_prob!r})")
        if not isinstance(difficulty_ramping, bool):
            raise ValueError(f"difficulty_ramping must be true or false (got {difficulty_ramping!r})")
        require_positive("max_steps", max_steps)
        self._player = minatar.Environment(GAMES[game], sticky_action_prob, difficulty_ramping)
        self._game = self._player.env
        self._max_steps = max_steps
        self._elapsed = 0
        self._saved_names = sorted(vars(self._game).keys() - _EXCLUDED)
        # Identical in every process that loads this game, so it is a compression dictionary that need not be sent.
        self.reset(seed=0)
        first = self._state()
        self._codec = SnapshotCodec(first)
        self.fingerprint = _fingerprint(self._saved_names, first)
        self._actions: list[int] = self._player.minimal_action_set()
        self.action_names = [_ACTION_NAMES[self._game.action_map[action]] for action in self._actions]
        height, width, planes = self._player.state_shape()
        self._colours = plane_colours(planes)
        self.observation_space = spaces.Box(0, 255, (planes, height, width), np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Planes, dict[str, Any]]:
        """Start a new episode. The seed is 0 until one is given."""
        super().reset(seed=seed, options=options)
        # The game uses this environment's generator, so that only one generator, with a small state, must be saved.
        self._player.random = self._game.random = np.random.RandomState(self.np_random.bit_generator)
        self._player.reset()
        self._elapsed = 0
        return self._planes(), {}

    def step(self, action: int) -> tuple[Planes, float, bool, bool, dict[str, Any]]:
        """Take one step; truncate the episode at the time limit."""
        reward, terminal = self._player.act(self._actions[action])
        self._elapsed += 1
        return self._planes(), float(reward), bool(terminal), self._elapsed >= self._max_steps, {}

    def snapshot(self) -> bytes:
        """Serialize the game's variables and its random generator."""
        return self._codec.compress(self._state())

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:  # noqa: ARG002 -- the state is complete
        """Return to the state of `snapshot`."""
        state = self._codec.decompress(snapshot)
        try:
            header, values = _HEADER.unpack_from(state), json.loads(state[_HEADER.size :])
            variables = dict(zip(self._saved_names, map(_from_json, values), strict=True))
            set_generator(self.np_random, header[0])
        except (struct.error, ValueError, TypeError) as error:
            raise DamagedSnapshot(f"damaged snapshot, or one of another game: {error}") from error
        _, self._elapsed, self._player.last_action = header
        vars(self._game).update(variables)

    def render(self) -> NDArray[np.uint8]:
        """Render each plane in its own colour, RGB; later planes cover earlier ones."""
        cells = np.full((*self._player.state_shape()[:2], 3), BACKGROUND, np.uint8)
        for plane, colour in zip(self._planes(), self._colours, strict=True):
            cells[plane > 0] = colour
        return cells.repeat(_CELL, axis=0).repeat(_CELL, axis=1)

    def _planes(self) -> Planes:
        cells: NDArray[np.bool_] = self._player.state()
        return np.multiply(cells.transpose(2, 0, 1), 255, order="C", dtype=np.uint8)

    def _state(self) -> bytes:
        header = _HEADER.pack(pack_generator(self.np_random), self._elapsed, self._player.last_action)
        variables = vars(self._game)
        return header + _ENCODER.encode([variables[name] for name in self._saved_names]).encode()


def _to_json(value: Any) -> Any:
    """Convert what JSON does not support: a 10x10 array of zeros and ones to hex text, a numpy scalar to a number."""
    return np.packbits(value != 0).tobytes().hex() if isinstance(value, np.ndarray) else value.item()


def _from_json(value: Any) -> Any:
    """Invert `_to_json`: hex text becomes a 10x10 array again."""
    if not isinstance(value, str):
        return value
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(value), np.uint8), count=100)
    return bits.reshape(10, 10).astype(np.float64)


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_to_json)


def _fingerprint(names: list[str], first_state: bytes) -> str:
    """Return a hash that differs between games and between versions of the package."""
    facts = f"{version('minatar')} {names}".encode()
    return hashlib.sha256(facts + first_state).hexdigest()[:12]
