"""Downsample emulator screens to small grey frames: the pixelwise maximum of two screens, averaged by area. Compiled.

The result equals that of the emulator's grey screens, a maximum and OpenCV's INTER_AREA resizing, to the last bit. This
requires OpenCV's order and precision of summation: along each row first, then down the rows, in single precision. Most
rows do not change from one step to the next, and only changed rows are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
Floats = NDArray[np.float32]
Indices = NDArray[np.uint32]
GreyTable = NDArray[np.int16]
Flags = NDArray[np.bool_]

_UNKNOWN = -1
_WORD = 8  # pixels that are compared at once, as one 64-bit word


class Downsampler:
    """Downsamples pairs of screens to square frames of `side` pixels; `side` is at least half the screen's width.

    Screens are arrays of the emulator's colour indices. `read_grey` fills an array with the grey levels of the
    emulator's current screen, which is `colours` at construction. The grey level of each colour index is read once and
    cached, because converting a whole screen in the emulator takes longer than all work done here.
    """

    def __init__(self, colours: Picture, read_grey: Callable[[Picture], None], side: int) -> None:
        height, width = colours.shape
        if not side < width <= 2 * side or height < side or width % _WORD:
            raise ValueError(f"screens of {height}x{width} cannot be downsampled to {side}x{side}")
        self._read_grey = read_grey
        self._columns, self._column_shares = _shares(width, side)
        self._rows, self._row_shares = _shares(height, side)
        self._grey_of = np.full(256, _UNKNOWN, np.int16)
        self._screens = [colours.copy() for _ in range(2)]
        self._greys = [np.empty_like(colours) for _ in range(2)]
        self._changed = np.empty(height, np.bool_)  # rows that changed since the last frame
        self._narrowed = np.empty((height, side), np.float32)
        self._frame = np.empty((side, side), np.uint8)
        for index in range(2):
            self._update_greys(index)

    def set_screen(self, index: int, colours: Picture) -> None:
        """Set screen 0 or 1 of the pair to the emulator's current screen `colours`."""
        if not _update_screen(colours, self._screens[index], self._grey_of, self._greys[index], self._changed):
            self._update_greys(index)

    def frame(self) -> Picture:
        """Return the downsampled maximum of the two screens as a new array."""
        one, other = self._greys
        _average_columns(one, other, self._changed, self._columns, self._column_shares, self._narrowed)
        _average_rows(self._narrowed, self._changed, self._rows, self._row_shares, self._frame)
        self._changed.fill(False)
        return self._frame.copy()

    def _update_greys(self, index: int) -> None:
        """Read the whole screen in grey, and cache the grey levels of its colours."""
        self._read_grey(self._greys[index])
        self._grey_of[self._screens[index]] = self._greys[index]
        self._changed.fill(True)


def _shares(length: int, parts: int) -> tuple[Indices, Floats]:
    """Return which pixels each part covers and their weights, both of shape (max pixels per part, parts).

    A part that covers fewer pixels than the maximum is padded with weight 0.
    """
    size = length / parts
    max_pixels = math.ceil(size) + 1
    pixels = np.zeros((max_pixels, parts), np.uint32)
    shares = np.zeros((max_pixels, parts), np.float32)
    for part in range(parts):
        begin, end = part * size, (part + 1) * size
        overlaps = [(pixel, min(end, pixel + 1) - max(begin, pixel)) for pixel in range(int(begin), length)]
        covered = [(pixel, overlap) for pixel, overlap in overlaps if overlap > 1e-3]  # OpenCV's own tolerance
        for index, (pixel, overlap) in enumerate(covered):
            pixels[index, part], shares[index, part] = pixel, overlap / size
    return pixels, shares


@njit(cache=True)
def _update_screen(colours: Picture, screen: Picture, grey_of: GreyTable, grey: Picture, changed: Flags) -> bool:
    """Copy `colours` to `screen`, update `grey`, and flag changed rows; False if a colour's grey level is unknown."""
    known = True
    new, old = colours.view(np.uint64), screen.view(np.uint64)
    for y in range(new.shape[0]):
        differ = np.uint64(0)
        for word in range(new.shape[1]):
            differ |= new[y, word] ^ old[y, word]
        if differ:
            changed[y] = True
            for word in range(new.shape[1]):
                if new[y, word] != old[y, word]:
                    old[y, word] = new[y, word]
                    for x in range(_WORD * word, _WORD * (word + 1)):
                        shade = grey_of[colours[y, x]]
                        known &= shade != _UNKNOWN
                        grey[y, x] = shade
    return known


@njit(cache=True)
def _average_columns(
    one: Picture, other: Picture, changed: Flags, columns: Indices, shares: Floats, narrowed: Floats
) -> None:
    """Write the maximum of both screens, averaged along the row, for every changed row."""
    left, middle, right = columns[0], columns[1], columns[2]
    left_share, middle_share, right_share = shares[0], shares[1], shares[2]
    line = np.empty(one.shape[1], np.float32)
    for y in range(one.shape[0]):
        if not changed[y]:
            continue
        for x in range(line.shape[0]):
            line[x] = np.float32(max(one[y, x], other[y, x]))
        out = narrowed[y]
        for x in range(out.shape[0]):
            total = line[left[x]] * left_share[x] + line[middle[x]] * middle_share[x]
            out[x] = total + line[right[x]] * right_share[x]


@njit(cache=True)
def _average_rows(narrowed: Floats, changed: Flags, rows: Indices, shares: Floats, frame: Picture) -> None:
    """Write the average over rows, rounded half to even, for every row of the frame that has a changed source row."""
    total = np.empty(frame.shape[1], np.float32)
    for y in range(frame.shape[0]):
        stale = False
        for index in range(rows.shape[0]):
            stale |= changed[rows[index, y]]
        if not stale:
            continue
        total[:] = 0
        for index in range(rows.shape[0]):
            line, share = narrowed[rows[index, y]], shares[index, y]
            for x in range(total.shape[0]):
                total[x] += line[x] * share
        for x in range(total.shape[0]):
            frame[y, x] = np.uint8(np.int32(np.rint(total[x])))
