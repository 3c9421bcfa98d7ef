"""An emulator's screens to small grey frames: the brighter of each pair of pixels, averaged by area. Compiled.

Gives what the emulator's own grey screens, OpenCV's maximum and its INTER_AREA give, to the last bit; a test holds it
to that. To stay so, sums are taken in the same order and precision: along a row first, then down the rows, in single
precision. Most rows of a game stand still from one step to the next: only those that changed are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
Floats = NDArray[np.float32]
Places = NDArray[np.uint32]
Greys = NDArray[np.int16]
Flags = NDArray[np.bool_]

_UNKNOWN = -1
_WORD = 8  # pixels that are compared at once


class Shrinker:
    """From two screens of one size to square frames of `side` pixels; up to two screen columns go into one of a frame.

    Screens are given as the emulator's numbers of colours; `look_grey` fills an array with the grey form of the one
    that is given at the time, which at the beginning is `colours`. What a colour looks like in grey is asked once and
    remembered: an emulator takes longer to paint its whole screen in grey than all else here.
    """

    def __init__(self, colours: Picture, look_grey: Callable[[Picture], None], side: int) -> None:
        height, width = colours.shape
        if not side < width <= 2 * side or height < side or width % _WORD:
            raise ValueError(f"screens of {height}x{width} do not shrink to {side}x{side}")
        self._look_grey = look_grey
        self._columns, self._column_shares = _shares(width, side)
        self._rows, self._row_shares = _shares(height, side)
        self._grey_of = np.full(256, _UNKNOWN, np.int16)
        self._painted = [colours.copy() for _ in range(2)]
        self._greys = [np.empty_like(colours) for _ in range(2)]
        self._changed = np.empty(height, np.bool_)  # rows, since the last frame
        self._narrowed = np.empty((height, side), np.float32)
        self._frame = np.empty((side, side), np.uint8)
        for place in range(2):
            self._learn(place)

    def take(self, place: int, colours: Picture) -> None:
        """One of the two screens; `place` is 0 or 1."""
        if not _repaint(colours, self._painted[place], self._grey_of, self._greys[place], self._changed):
            self._learn(place)

    def frame(self) -> Picture:
        """The frame of the two screens taken last, in an array of its own."""
        one, other = self._greys
        _narrow(one, other, self._changed, self._columns, self._column_shares, self._narrowed)
        _flatten(self._narrowed, self._changed, self._rows, self._row_shares, self._frame)
        self._changed.fill(False)
        return self._frame.copy()

    def _learn(self, place: int) -> None:
        """See the screen in grey, and remember its colours."""
        self._look_grey(self._greys[place])
        self._grey_of[self._painted[place]] = self._greys[place]
        self._changed.fill(True)


def _shares(length: int, parts: int) -> tuple[Places, Floats]:
    """Which pixels each part covers and how much of it each fills, both of shape (most pixels of a part, parts).

    A part that covers fewer pixels than another has a share of 0 in the last place.
    """
    size = length / parts
    most = math.ceil(size) + 1
    pixels = np.zeros((most, parts), np.uint32)
    shares = np.zeros((most, parts), np.float32)
    for part in range(parts):
        begin, end = part * size, (part + 1) * size
        overlaps = [(pixel, min(end, pixel + 1) - max(begin, pixel)) for pixel in range(int(begin), length)]
        covered = [(pixel, overlap) for pixel, overlap in overlaps if overlap > 1e-3]  # OpenCV's own tolerance
        for place, (pixel, overlap) in enumerate(covered):
            pixels[place, part], shares[place, part] = pixel, overlap / size
    return pixels, shares


@njit(cache=True)
def _repaint(colours: Picture, painted: Picture, grey_of: Greys, grey: Picture, changed: Flags) -> bool:
    """Bring `painted` and `grey` up to date, and flag rows that changed. False if the grey of a colour is not known."""
    known = True
    new, old = colours.view(np.uint64), painted.view(np.uint64)
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
def _narrow(one: Picture, other: Picture, changed: Flags, columns: Places, shares: Floats, narrowed: Floats) -> None:
    """The brighter pixels of every row that changed, averaged along the row."""
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
def _flatten(narrowed: Floats, changed: Flags, rows: Places, shares: Floats, frame: Picture) -> None:
    """The rows averaged downwards and rounded, halves to the even side, where one of them changed."""
    total = np.empty(frame.shape[1], np.float32)
    for y in range(frame.shape[0]):
        stale = False
        for place in range(rows.shape[0]):
            stale |= changed[rows[place, y]]
        if not stale:
            continue
        total[:] = 0
        for place in range(rows.shape[0]):
            line, share = narrowed[rows[place, y]], shares[place, y]
            for x in range(total.shape[0]):
                total[x] += line[x] * share
        for x in range(total.shape[0]):
            frame[y, x] = np.uint8(np.int32(np.rint(total[x])))
