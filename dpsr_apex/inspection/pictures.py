"""Observations as pictures for people: what an agent sees, enlarged without blur, and text beside it.

A picture shows what is stored and adds nothing to it but colour. Files are the business of others.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from dpsr_apex.envs.planes import GROUND, Colour, plane_colours
from dpsr_apex.envs.snapshot import Frame
from dpsr_apex.run.screen import Picture

INK, PALE, PAPER = (32, 36, 44), (128, 134, 144), (255, 255, 255)
BEFORE, CHANGED = (66, 135, 245), (245, 158, 11)  # where something was earlier; what a step changed

_ZERO, _POSITIVE, _NEGATIVE = (92, 98, 110), (94, 176, 239), (240, 130, 100)
_VISIBLE = 16  # a difference in grey below this is hardly seen, and not coloured


def picture_of(frame: Frame, side: int) -> Picture:
    """One frame within a square of `side` pixels: a grey one, planes in colours, or the numbers of a vector as bars."""
    if frame.ndim == 1:
        return _bars(frame, side)
    return fitted(_composite(frame) if frame.ndim == 3 else _grey(frame), side, side)


def trail_of(frames: NDArray[Any], side: int) -> Picture:
    """The newest of some frames; of grey ones in blue what was elsewhere before, the paler the longer ago."""
    newest = frames[-1]
    if newest.ndim != 2:
        return picture_of(newest, side)
    picture = _grey(newest)
    for age, earlier in enumerate(frames[-2::-1]):
        picture = _tinted(picture, _difference(earlier, newest), BEFORE, 0.8 * 0.6**age)
    return fitted(picture, side, side)


def change_of(s_tm1: NDArray[Any], s_t: NDArray[Any], side: int) -> Picture:
    """The newest frame of s_t; of grey ones in amber what was elsewhere in s_tm1."""
    newest = s_t[-1]
    if newest.ndim != 2:
        return picture_of(newest, side)
    return fitted(_tinted(_grey(newest), _difference(s_tm1[-1], newest), CHANGED, 0.8), side, side)


def fitted(picture: Picture, width: int, height: int) -> Picture:
    """The picture as large as fits there: a whole number of times larger, or smaller and smooth."""
    tall, wide, _ = picture.shape
    times = min(width // wide, height // tall)
    if times >= 1:
        return picture.repeat(times, axis=0).repeat(times, axis=1)
    shrink = min(width / wide, height / tall)
    size = max(round(wide * shrink), 1), max(round(tall * shrink), 1)
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS))


@cache
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """The letters of matplotlib, which every installation has."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", name)), size)


def write(
    draw: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    size: int = 12,
    colour: Colour = INK,
    bold: bool = False,
    anchor: str = "la",
    width: int | None = None,
) -> None:
    """Put one line of text there, cut to `width` pixels."""
    letters = font(size, bold)
    while width is not None and text and letters.getlength(text) > width:
        text = text[:-2] + "…" if len(text) > 1 else ""
    draw.text(place, text, fill=colour, font=letters, anchor=anchor)


def _grey(frame: Frame) -> Picture:
    return frame[..., np.newaxis].repeat(3, axis=2)


def _difference(earlier: Frame, newest: Frame) -> NDArray[np.float32]:
    """From 0 to 1, pixel by pixel."""
    gap: NDArray[np.float32] = np.abs(earlier.astype(np.float32) - newest)
    return np.minimum(3 * gap / 255, 1) * (gap >= _VISIBLE)


def _tinted(picture: Picture, where: NDArray[np.float32], colour: Colour, strength: float) -> Picture:
    share = (strength * where)[..., np.newaxis]
    mixed: NDArray[Any] = picture * (1 - share) + np.array(colour) * share
    return mixed.astype(np.uint8)


def _composite(planes: Frame) -> Picture:
    """Each plane in a colour of its own; the later of two covers the earlier one."""
    picture = np.full((*planes.shape[1:], 3), GROUND, np.uint8)
    brightest = max(int(planes.max()), 1)
    for plane, colour in zip(planes, plane_colours(len(planes)), strict=True):
        picture = _tinted(picture, plane.astype(np.float32) / brightest, colour, 1.0)
    return picture


def _bars(vector: Frame, side: int) -> Picture:
    """One bar for each number x, up or down from a line in the middle: x / (1 + |x|) of the way to the edge."""
    canvas = Image.new("RGB", (side, side), GROUND)
    draw = ImageDraw.Draw(canvas)
    middle, reach = side // 2, side // 2 - 18
    room = side / max(len(vector), 1)
    for index, value in enumerate(vector.tolist()):
        left, right = round(room * (index + 0.15)), max(round(room * (index + 0.85)) - 1, round(room * index) + 1)
        end = middle - round(reach * value / (1 + abs(value)))
        draw.rectangle((left, min(middle, end), right, max(middle, end)), fill=_POSITIVE if value > 0 else _NEGATIVE)
        if room >= 36:
            place = (left + right) / 2, end - 3 if value > 0 else end + 3
            write(draw, place, f"{value:.2g}", 10, (200, 204, 212), anchor="ms" if value > 0 else "mt")
    draw.line((0, middle, side, middle), fill=_ZERO)
    return np.asarray(canvas)
