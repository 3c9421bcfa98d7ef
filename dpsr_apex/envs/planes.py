"""Colours for rendering observations made of binary planes."""

from __future__ import annotations

import colorsys

Colour = tuple[int, int, int]
"""RGB."""

BACKGROUND = (16, 18, 24)  # of cells where every plane is 0


def plane_colours(count: int) -> list[Colour]:
    """Return `count` bright colours; consecutive ones have clearly different hues."""
    golden_ratio = 0.618
    colours = (colorsys.hsv_to_rgb((0.33 + index * golden_ratio) % 1, 0.6, 0.95) for index in range(count))
    return [(round(255 * red), round(255 * green), round(255 * blue)) for red, green, blue in colours]
