"""The colours of planes, for those who draw observations of such a kind."""

from __future__ import annotations

import colorsys

Colour = tuple[int, int, int]
"""RGB."""

GROUND = (16, 18, 24)  # where nothing is


def plane_colours(count: int) -> list[Colour]:
    """Bright colours around the wheel; neighbours in the list are far from each other."""
    golden = 0.618
    wheel = (colorsys.hsv_to_rgb((0.33 + index * golden) % 1, 0.6, 0.95) for index in range(count))
    return [(round(255 * red), round(255 * green), round(255 * blue)) for red, green, blue in wheel]
