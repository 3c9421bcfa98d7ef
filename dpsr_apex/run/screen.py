"""What an environment draws of itself, for those who film or print it. No window is ever opened."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.envs.stacked import StackedEnv

Picture = NDArray[np.uint8]
"""RGB, of shape (height, width, 3)."""

_PLAIN_SPEED = 30.0  # frames a second


def rendered(env: StackedEnv) -> Picture | None:
    """The environment's picture of now; None from one that draws none."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # without it SDL complains of no display
    try:
        picture = env.render()
    except (AttributeError, NotImplementedError):  # an environment of the user's that cannot draw itself
        return None
    is_picture = isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,)
    return picture if is_picture else None


def frames_per_second(env: StackedEnv) -> float:
    """How fast its steps are to be shown."""
    return float(getattr(env.env, "metadata", {}).get("render_fps", _PLAIN_SPEED))
