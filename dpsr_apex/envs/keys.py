"""Keys of states: a coarse picture or a rounded vector, hashed to 64 bits, so that similar states count as one.

An environment can define its own key instead, with a method `state_key() -> bytes`.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dpsr_apex.envs.snapshot import Frame

PICTURE_CELLS: Final = 12  # per side, at most; a cell has at least two pixels per side
GREY_LEVELS: Final = 8
VECTOR_CELLS: Final = 16  # per component with finite bounds
UNBOUNDED_CELL: Final = 0.5  # width of a cell of any other component


def hash_key(key: bytes) -> int:
    """Return the 64-bit hash of a key, the same in every process."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")


def coarse_key_for(space: spaces.Space[Any]) -> Callable[[Frame], bytes]:
    """Return the function that coarsens a frame of this space."""
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        widths = _cell_widths(space)
        return lambda vector: np.floor(vector / widths).astype(np.int64).tobytes()
    return coarse_grey


def coarse_grey(frame: Frame) -> bytes:
    """Return the mean level of each cell, in few levels; of each plane, if there are several."""
    sums = _sums_of_cells(frame.astype(np.float64))
    pixels = _sums_of_cells(np.ones(frame.shape))
    levels: NDArray[np.uint8] = (sums / pixels * (GREY_LEVELS / 256)).astype(np.uint8)
    return levels.tobytes()


def _sums_of_cells(image: NDArray[np.float64]) -> NDArray[np.float64]:
    """Reduce the last two axes of an image to the sums of cells of about equal size."""
    for axis in (-1, -2):
        size = image.shape[axis]
        cells = min(PICTURE_CELLS, max(size // 2, 1))
        image = np.add.reduceat(image, np.arange(cells) * size // cells, axis=axis)
    return image


def _cell_widths(box: spaces.Box) -> NDArray[np.float64]:
    span = box.high.astype(np.float64) - box.low.astype(np.float64)
    is_bounded = np.isfinite(span) & (span > 0) & (span < 1e6)  # gymnasium has bounds near the greatest float, too
    return np.where(is_bounded, np.where(is_bounded, span, 1.0) / VECTOR_CELLS, UNBOUNDED_CELL)
