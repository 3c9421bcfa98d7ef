"""Render environments to RGB arrays, for videos and pictures. No window is ever opened."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.envs.snapshot import optional
from dpsr_apex.envs.stacked import StackedEnv

Picture = NDArray[np.uint8]
"""RGB, of shape (height, width, 3)."""

_DEFAULT_FPS = 30.0


def render_rgb(env: StackedEnv) -> Picture | None:
    """Return the environment's current picture; None if it does not render RGB arrays."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # otherwise SDL fails without a display
    try:
        picture = env.render()
    except (AttributeError, NotImplementedError):  # a user's environment without rendering
        return None
    is_picture = isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,)
    return picture if is_picture else None


def render_current(env: StackedEnv) -> Picture | None:
    """Return the environment's picture; None also if it would be an earlier one, as of an emulator just restored."""
    return render_rgb(env) if optional(env.env, "screen_is_current", True) else None


def frames_per_second(env: StackedEnv) -> float:
    """Return the number of steps to show per second."""
    return float(getattr(env.env, "metadata", {}).get("render_fps", _DEFAULT_FPS))
