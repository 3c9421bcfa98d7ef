"""MiniGrid's tasks: rooms of cells, in which an agent finds keys, opens doors and reaches a goal.

The only module that imports minigrid. The rules are those of the package; this module adds observations of planes and
snapshots. The text of a mission is not part of an observation. A state is restored only after its checksum has been
verified.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from numpy.typing import NDArray

from dpsr_apex.checksums import add_checksum
from dpsr_apex.envs.arguments import require_positive
from dpsr_apex.envs.compression import DamagedSnapshot, verify_checksum
from dpsr_apex.envs.generators import GENERATOR_BYTES, pack_generator, set_generator
from dpsr_apex.envs.snapshot import UnusableEnvironment

try:
    from minigrid.core import constants
except ImportError as error:
    raise UnusableEnvironment(
        "MiniGrid", f"the package minigrid is not installed ({error})", "Install it: pip install minigrid"
    ) from error

_KINDS = np.arange(len(constants.OBJECT_TO_IDX) - 1)[:, None, None]  # without "agent", which no view contains
_COLOURS = np.arange(len(constants.COLOR_TO_IDX))[:, None, None]
_DOOR_STATES = np.arange(len(constants.STATE_TO_IDX))[:, None, None]
_DIRECTIONS = len(constants.DIR_TO_VEC)
_FIRST_OBJECT, _DOOR = constants.OBJECT_TO_IDX["wall"], constants.OBJECT_TO_IDX["door"]
PLANES = len(_KINDS) + len(_COLOURS) + len(_DOOR_STATES) + _DIRECTIONS

_CHANGING = ("door", "key", "ball", "box")  # kinds of objects that move or open; all others stay as a reset made them
_NOWHERE = 0xFFFF  # instead of the cell of an object that is not in the grid, or the number of a carried object

# Task and version; the generator before the reset and now; steps, column, row, direction, number of the carried object.
# The cell and the state of every changing object follow, in the order of the grid after the reset.
_HEADER = struct.Struct(f"<4s{GENERATOR_BYTES}s{GENERATOR_BYTES}sIBBBH")
_OBJECT = struct.Struct("<HB")

Planes = NDArray[np.uint8]


class MiniGrid(gymnasium.Wrapper[Planes, int, Any, int]):
    """One MiniGrid task. An observation has shape (23, view, view), 255 where something holds and 0 elsewhere.

    The planes of the agent's view, 7 x 7 cells unless `agent_view_size` is set: 10 kinds of cell (unseen, empty, wall,
    floor, door, key, ball, box, goal, lava), 6 colours of objects, 3 states of doors (open, closed, locked), and 4
    directions, of which one plane is filled. The carried object is shown in the agent's cell, bottom centre.
    """

    def __init__(self, name: str, **arguments: Any) -> None:
        self._task = make_task(name, arguments)
        super().__init__(self._task)
        view = self._task.agent_view_size
        self.observation_space = spaces.Box(0, 255, (PLANES, view, view), np.uint8)
        self.action_names = [action.name for action in self._task.actions][: self._task.action_space.n]
        self._tag = b"\0" * 4
        self.reset(seed=0)
        self.fingerprint = self._hash(name)
        self._tag = bytes.fromhex(self.fingerprint[:8])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Planes, dict[str, Any]]:
        """Start a new episode in a new grid. The seed is 0 until one is given."""
        if seed is not None:
            self._task.np_random = seeding.np_random(seed)[0]
        self._origin = pack_generator(self._task.np_random)
        observation, info = self._task.reset(options=options)
        self._objects = list(_changing_objects(self._task.grid))
        return _planes(observation), info

    def step(self, action: int) -> tuple[Planes, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take one step; the task truncates its episode after `max_steps`."""
        observation, reward, terminal, truncated, info = self._task.step(action)
        return _planes(observation), reward, terminal, truncated, info

    def snapshot(self) -> bytes:
        """Serialize how the grid was generated and everything that has changed since."""
        task = self._task
        generators = self._origin, pack_generator(task.np_random)
        carried = _NOWHERE if task.carrying is None else self._number(task.carrying)
        header = _HEADER.pack(self._tag, *generators, task.step_count, *task.agent_pos, task.agent_dir, carried)
        cells = {id(thing): cell for cell, thing in enumerate(task.grid.grid)}
        objects = (_OBJECT.pack(cells.get(id(thing), _NOWHERE), thing.encode()[2]) for thing in self._objects)
        return add_checksum(header + b"".join(objects))

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:  # noqa: ARG002 -- the state is complete
        """Return to the state of `snapshot`: generate its grid again, and apply what had changed.

        The objects must be those of the generated grid, because tasks compare them by identity. If the content is
        invalid in spite of its checksum, the environment is left at the start of an episode.
        """
        body = verify_checksum(snapshot)
        if body[:4] != self._tag:
            raise DamagedSnapshot("damaged snapshot, or one of another task")
        try:
            _, origin, generator, *agent = _HEADER.unpack_from(body)
            objects = list(_OBJECT.iter_unpack(body[_HEADER.size :]))
            set_generator(self._task.np_random, origin)
            self.reset()
            self._check(agent, objects)
            set_generator(self._task.np_random, generator)
        except (struct.error, ValueError) as error:
            raise DamagedSnapshot(f"damaged snapshot: {error}") from error
        self._apply(agent, objects)

    def state_key(self) -> bytes:
        """Identify the state for counting visits: the agent's cell and direction, what it carries, and every door.

        Equal in different grids: neither walls nor objects that lie around are part of it.
        """
        task = self._task
        carried = (0, 0) if task.carrying is None else task.carrying.encode()[:2]
        doors = (thing.encode()[2] for thing in self._objects if thing.type == "door")
        return bytes((*task.agent_pos, task.agent_dir, *carried, *doors))

    def _number(self, wanted: Any) -> int:
        return next(number for number, thing in enumerate(self._objects) if thing is wanted)

    def _check(self, agent: list[int], objects: list[tuple[int, int]]) -> None:
        """Raise ValueError unless the agent and the objects fit into the grid."""
        _, column, row, direction, carried = agent
        grid = self._task.grid
        if len(objects) != len(self._objects) or (carried != _NOWHERE and carried >= len(objects)):
            raise ValueError("it has other objects than the grid")
        if column >= grid.width or row >= grid.height or direction >= _DIRECTIONS:
            raise ValueError("the agent is outside the grid")
        fixed = {cell for cell, thing in enumerate(grid.grid) if thing is not None and thing.type not in _CHANGING}
        cells = [cell for cell, _ in objects if cell != _NOWHERE]
        if len(set(cells)) < len(cells) or fixed & set(cells) or max(cells, default=0) >= len(grid.grid):
            raise ValueError("an object is in an impossible cell")

    def _apply(self, agent: list[int], objects: list[tuple[int, int]]) -> None:
        """Change a generated grid to the state that these numbers describe."""
        task, grid = self._task, self._task.grid
        task.step_count, column, row, task.agent_dir, carried = agent
        task.agent_pos = (column, row)
        task.carrying = None if carried == _NOWHERE else self._objects[carried]
        grid.grid = [None if thing is None or thing.type in _CHANGING else thing for thing in grid.grid]
        for thing, (cell, state) in zip(self._objects, objects, strict=True):
            if thing.type == "door":
                thing.is_open, thing.is_locked = state == 0, state == 2
            if cell != _NOWHERE:
                grid.grid[cell] = thing
                thing.cur_pos = (cell % grid.width, cell // grid.width)

    def _hash(self, name: str) -> str:
        """Return a hash that differs between tasks and between versions of the package."""
        facts = f"{version('minigrid')} {name} {self._task.max_steps}".encode()
        return hashlib.sha256(facts + self._task.grid.encode().tobytes() + self.snapshot()).hexdigest()[:12]


def tasks() -> list[str]:
    """Return the names of all registered tasks."""
    return sorted(name for name in gymnasium.registry if name.startswith("MiniGrid-"))


def make_task(name: str, arguments: dict[str, Any]) -> Any:
    """Return the task itself, without the wrappers of Gymnasium; raise ValueError for invalid arguments."""
    if "max_episode_steps" in arguments:
        raise ValueError("the time limit of a MiniGrid task is env.arguments.max_steps, not max_episode_steps")
    require_positive("max_steps", arguments.get("max_steps", 1))
    try:
        keywords = {"render_mode": "rgb_array", **arguments}
        return gymnasium.make(name, disable_env_checker=True, **keywords).unwrapped
    except AssertionError as error:
        raise ValueError(f"the task rejected its arguments {error}".rstrip()) from error


def _changing_objects(grid: Any) -> Iterator[Any]:
    """Yield the objects that can change, cell by cell; those inside a box follow it."""
    for thing in grid.grid:
        while thing is not None and thing.type in _CHANGING:
            yield thing
            thing = thing.contains


def _planes(observation: Any) -> Planes:
    """Return one plane per kind, colour, state of a door and direction; rows of the view from far to near."""
    kinds, colours, states = observation["image"].transpose(2, 1, 0)
    directions = np.zeros((_DIRECTIONS, *kinds.shape), np.bool_)
    directions[observation["direction"]] = True
    planes = (
        kinds == _KINDS,
        (colours == _COLOURS) & (kinds >= _FIRST_OBJECT),
        (states == _DOOR_STATES) & (kinds == _DOOR),
        directions,
    )
    return np.concatenate(planes).astype(np.uint8) * np.uint8(255)
