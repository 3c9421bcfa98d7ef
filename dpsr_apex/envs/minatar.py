"""MinAtar's five small games: the plays of Atari on ten by ten cells. The only module that imports minatar.

The rules are the package's own and nothing of them is changed; this adds a time limit, a picture and a way back to any
moment. A game never sees a state whose checksum was not verified first.
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

from dpsr_apex.envs.compression import DamagedSnapshot, SnapshotCodec
from dpsr_apex.envs.planes import GROUND, plane_colours
from dpsr_apex.envs.snapshot import UnusableEnvironment

try:
    import minatar
except ImportError as error:
    raise UnusableEnvironment(
        "MinAtar", f"its package is missing ({error})", "Install it: pip install 'dpsr_apex[minatar]'."
    ) from error

GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
MAX_STEPS = 2_500  # agent steps of one game

_ACTION_NAMES = {"n": "none", "l": "left", "u": "up", "r": "right", "d": "down", "f": "fire"}
_CELL = 16  # pixels of a cell's edge in a picture
_FIXED = ("action_map", "channels", "ramping", "random")  # of a game: what no step changes, and its generator

# Of the generator: state, increment, half a draw that is kept for later and whether there is one. Then the steps of
# this game and the last action, which a sticky one repeats, even over a reset.
_HEADER = struct.Struct("<16s16sIBIB")

Planes = NDArray[np.uint8]


class MinAtar(gymnasium.Env[Planes, Any]):
    """One game: planes of shape (C, 10, 10), one for each kind of thing, 255 where one is and 0 elsewhere.

    Only the actions that mean something in this game. Sticky actions, which the package turns on, are off here.
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
            raise UnusableEnvironment(f"MinAtar/{game}", "there is no such game", f"There are {', '.join(GAMES)}.")
        if not 0 <= sticky_action_prob <= 1:
            raise ValueError(f"sticky_action_prob is {sticky_action_prob}; a probability is from 0 to 1")
        if max_steps < 1:
            raise ValueError(f"max_steps is {max_steps}; a game takes at least 1 step")
        self._player = minatar.Environment(GAMES[game], sticky_action_prob, difficulty_ramping)
        self._game = self._player.env
        self._max_steps = max_steps
        self._elapsed = 0
        self._changing = sorted(vars(self._game).keys() - _FIXED)
        # Equal in every process that loads this game, so nobody has to ship it.
        self.reset(seed=0)
        first = self._state()
        self._codec = SnapshotCodec(first)
        self.fingerprint = _fingerprint(self._changing, first)
        self._actions: list[int] = self._player.minimal_action_set()
        self.action_names = [_ACTION_NAMES[self._game.action_map[action]] for action in self._actions]
        height, width, planes = self._player.state_shape()
        self._colours = plane_colours(planes)
        self.observation_space = spaces.Box(0, 255, (planes, height, width), np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Planes, dict[str, Any]]:
        """A new game. As long as no seed was given, the seed is 0."""
        super().reset(seed=seed, options=options)
        # The game draws from this environment's own generator, so that there is one state to keep, and a short one.
        self._player.random = self._game.random = np.random.RandomState(self.np_random.bit_generator)
        self._player.reset()
        self._elapsed = 0
        return self._planes(), {}

    def step(self, action: int) -> tuple[Planes, float, bool, bool, dict[str, Any]]:
        """One frame; truncated when the time is over."""
        reward, terminal = self._player.act(self._actions[action])
        self._elapsed += 1
        return self._planes(), float(reward), bool(terminal), self._elapsed >= self._max_steps, {}

    def snapshot(self) -> bytes:
        """All that the game remembers, and where its generator is."""
        return self._codec.squeeze(self._state())

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:  # noqa: ARG002 -- the state says it all
        """Back to that moment."""
        state = self._codec.inflate(snapshot)
        try:
            header, values = _HEADER.unpack_from(state), json.loads(state[_HEADER.size :])
            remembered = dict(zip(self._changing, map(_revived, values), strict=True))
        except (struct.error, ValueError, TypeError) as error:
            raise DamagedSnapshot(f"damaged snapshot, or one of another game: {error}") from error
        *generator, self._elapsed, self._player.last_action = header
        self._set_generator(*generator)
        vars(self._game).update(remembered)

    def render(self) -> NDArray[np.uint8]:
        """Every kind of thing in its own colour, RGB; the later of two kinds covers the earlier one."""
        cells = np.full((*self._player.state_shape()[:2], 3), GROUND, np.uint8)
        for plane, colour in zip(self._planes(), self._colours, strict=True):
            cells[plane > 0] = colour
        return cells.repeat(_CELL, axis=0).repeat(_CELL, axis=1)

    def _planes(self) -> Planes:
        cells: NDArray[np.bool_] = self._player.state()
        return np.multiply(cells.transpose(2, 0, 1), 255, order="C", dtype=np.uint8)

    def _state(self) -> bytes:
        generator = self.np_random.bit_generator.state
        header = _HEADER.pack(
            generator["state"]["state"].to_bytes(16, "little"),
            generator["state"]["inc"].to_bytes(16, "little"),
            generator["uinteger"],
            generator["has_uint32"],
            self._elapsed,
            self._player.last_action,
        )
        remembered = vars(self._game)
        return header + _AS_JSON.encode([remembered[name] for name in self._changing]).encode()

    def _set_generator(self, state: bytes, increment: bytes, kept: int, has_kept: int) -> None:
        self.np_random.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": int.from_bytes(state, "little"), "inc": int.from_bytes(increment, "little")},
            "has_uint32": has_kept,
            "uinteger": kept,
        }


def _plain(value: Any) -> Any:
    """What JSON has no word for: a map of zeros and ones as text, one of numpy's numbers as Python's."""
    return np.packbits(value != 0).tobytes().hex() if isinstance(value, np.ndarray) else value.item()


def _revived(value: Any) -> Any:
    """What `_plain` and JSON made of it, as a game holds it."""
    if not isinstance(value, str):
        return value
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(value), np.uint8), count=100)
    return bits.reshape(10, 10).astype(np.float64)


_AS_JSON = json.JSONEncoder(separators=(",", ":"), default=_plain)


def _fingerprint(names: list[str], first_state: bytes) -> str:
    """Different for what plays differently, as far as one can tell: another game, or another version of the package."""
    facts = f"{version('minatar')} {names}".encode()
    return hashlib.sha256(facts + first_state).hexdigest()[:12]
