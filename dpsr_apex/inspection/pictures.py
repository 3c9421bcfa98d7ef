"""Draw observations as RGB pictures, enlarged without interpolation, and text beside them.

Pictures show exactly what is stored, with colours added to mark changes. No files are written here.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from dpsr_apex.envs.planes import BACKGROUND, Colour, plane_colours
from dpsr_apex.envs.snapshot import Frame
from dpsr_apex.formatting import number
from dpsr_apex.inspection.rendering import Picture

TEXT, MUTED, WHITE = (32, 36, 44), (128, 134, 144), (255, 255, 255)
EARLIER, CHANGED = (66, 135, 245), (245, 158, 11)  # tints: differences to earlier frames; changes made by a step

_ZERO, _POSITIVE, _NEGATIVE = (92, 98, 110), (94, 176, 239), (240, 130, 100)
_MIN_DIFFERENCE = 16  # grey levels: smaller differences are hardly visible and not tinted


def frame_picture(frame: Frame, side: int) -> Picture:
    """Draw one frame within a square of `side` pixels: grey unchanged, planes in colours, vectors as bars."""
    if frame.ndim == 1:
        return _bars(frame, side)
    return scale_to_fit(_composite(frame) if frame.ndim == 3 else _grey(frame), side, side)


def stack_picture(frames: NDArray[Any], side: int) -> Picture:
    """Draw the newest frame of a stack; differences to earlier grey frames are tinted blue, paler with age."""
    newest = frames[-1]
    if newest.ndim != 2:
        return frame_picture(newest, side)
    picture = _grey(newest)
    for age, earlier in enumerate(frames[-2::-1]):
        picture = _tinted(picture, _difference(earlier, newest), EARLIER, 0.8 * 0.6**age)
    return scale_to_fit(picture, side, side)


def next_picture(s_tm1: NDArray[Any], s_t: NDArray[Any], side: int) -> Picture:
    """Draw the newest frame of s_t; differences to the newest frame of s_tm1 are tinted amber if grey."""
    newest = s_t[-1]
    if newest.ndim != 2:
        return frame_picture(newest, side)
    return scale_to_fit(_tinted(_grey(newest), _difference(s_tm1[-1], newest), CHANGED, 0.8), side, side)


def scale_to_fit(picture: Picture, width: int, height: int) -> Picture:
    """Scale a picture to fit into `width` x `height`: up by an integer factor, or down with smoothing."""
    old_height, old_width, _ = picture.shape
    factor = min(width // old_width, height // old_height)
    if factor >= 1:
        return picture.repeat(factor, axis=0).repeat(factor, axis=1)
    scale = min(width / old_width, height / old_height)
    size = max(round(old_width * scale), 1), max(round(old_height * scale), 1)
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS))


@cache
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Return a font that is installed with matplotlib."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", name)), size)


def draw_text(
    draw: ImageDraw.ImageDraw,
    position: tuple[float, float],
    text: str,
    size: int = 12,
    colour: Colour = TEXT,
    bold: bool = False,
    anchor: str = "la",
    width: int | None = None,
) -> None:
    """Draw one line of text at `position`, truncated to `width` pixels."""
    typeface = font(size, bold)
    while width is not None and text and typeface.getlength(text) > width:
        text = text[:-2] + "…" if len(text) > 1 else ""
    draw.text(position, text, fill=colour, font=typeface, anchor=anchor)


def _grey(frame: Frame) -> Picture:
    return frame[..., np.newaxis].repeat(3, axis=2)


def _difference(earlier: Frame, newest: Frame) -> NDArray[np.float32]:
    """Return the pixelwise difference, scaled to 0 ... 1."""
    gap: NDArray[np.float32] = np.abs(earlier.astype(np.float32) - newest)
    return np.minimum(3 * gap / 255, 1) * (gap >= _MIN_DIFFERENCE)


def _tinted(picture: Picture, where: NDArray[np.float32], colour: Colour, strength: float) -> Picture:
    share = (strength * where)[..., np.newaxis]
    mixed: NDArray[Any] = picture * (1 - share) + np.array(colour) * share
    return mixed.astype(np.uint8)


def _composite(planes: Frame) -> Picture:
    """Draw each plane in its own colour; later planes cover earlier ones."""
    picture = np.full((*planes.shape[1:], 3), BACKGROUND, np.uint8)
    brightest = max(int(planes.max()), 1)
    for plane, colour in zip(planes, plane_colours(len(planes)), strict=True):
        picture = _tinted(picture, plane.astype(np.float32) / brightest, colour, 1.0)
    return picture


def _bars(vector: Frame, side: int) -> Picture:
    """Draw one bar per component x, up or down from the middle, of relative height x / (1 + |x|)."""
    canvas = Image.new("RGB", (side, side), BACKGROUND)
    draw = ImageDraw.Draw(canvas)
    middle, max_height = side // 2, side // 2 - 18
    bar_width = side / max(len(vector), 1)
    for index, value in enumerate(vector.tolist()):
        left = round(bar_width * (index + 0.15))
        right = max(round(bar_width * (index + 0.85)) - 1, round(bar_width * index) + 1)
        end = middle - round(max_height * value / (1 + abs(value)))
        draw.rectangle((left, min(middle, end), right, max(middle, end)), fill=_POSITIVE if value > 0 else _NEGATIVE)
        if bar_width >= 36:
            position = (left + right) / 2, end - 3 if value > 0 else end + 3
            draw_text(draw, position, number(value, 2), 10, (200, 204, 212), anchor="ms" if value > 0 else "mt")
    draw.line((0, middle, side, middle), fill=_ZERO)
    return np.asarray(canvas)
