"""Record a play as a video: the screens of one or two players side by side, each with its values and a caption."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from dpsr_apex.envs.planes import BACKGROUND
from dpsr_apex.inspection.pictures import draw_text, scale_to_fit
from dpsr_apex.inspection.video import VideoWriter
from dpsr_apex.web.player import Shot

# All sizes are in pixels.
SCREEN = 420  # height of a screen
BARS = 190  # width of the values beside it
CAPTION = 36
MARGIN = 12
_BRIGHT, _DIM, _BAR, _CHOSEN = (236, 239, 244), (140, 147, 160), (70, 78, 94), (94, 176, 239)


def record(branches: Sequence[Sequence[Shot]], actions: Sequence[str], fps: float) -> bytes:
    """Return the video of these plays, in step, as mp4; one that ends earlier stays at its last frame."""
    width = max(_screen(shot).shape[1] for shots in branches for shot in shots[-1:])
    panels = [(shots, width) for shots in branches]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "play.mp4"
        size = (SCREEN + CAPTION, len(branches) * (width + BARS + 2 * MARGIN))
        with VideoWriter(path, fps, size) as writer:
            for frame in range(max(map(len, branches))):
                parts = [_panel(shots[min(frame, len(shots) - 1)], actions, wide, frame) for shots, wide in panels]
                writer.write(np.concatenate(parts, axis=1))
        return path.read_bytes()


def _screen(shot: Shot) -> NDArray[np.uint8]:
    return scale_to_fit(shot.screen, 2 * SCREEN, SCREEN)


def _panel(shot: Shot, actions: Sequence[str], width: int, frame: int) -> NDArray[np.uint8]:
    canvas = Image.new("RGB", (width + BARS + 2 * MARGIN, SCREEN + CAPTION), BACKGROUND)
    screen = _screen(shot)
    place = (width - screen.shape[1]) // 2, (SCREEN - screen.shape[0]) // 2
    canvas.paste(Image.fromarray(screen), place)
    draw = ImageDraw.Draw(canvas)
    _draw_values(draw, shot.q_values, actions, width + MARGIN)
    taken = "stored state" if shot.action is None else f"{actions[shot.action]} by {shot.by}"
    caption = f"step {frame}   {taken}   score {shot.score:+g}{'   game over' if shot.over else ''}"
    draw_text(draw, (MARGIN, SCREEN + CAPTION / 2), caption, 14, _BRIGHT, anchor="lm", width=canvas.width - MARGIN)
    return np.asarray(canvas)


def _draw_values(draw: ImageDraw.ImageDraw, q_values: Sequence[float], actions: Sequence[str], left: int) -> None:
    """Draw a bar for each action, from the least to the greatest value."""
    least, greatest = min(q_values), max(q_values)
    height = min((SCREEN - 2 * MARGIN) // len(q_values), 26)
    for action, value in enumerate(q_values):
        top = MARGIN + action * height
        share = (value - least) / (greatest - least) if greatest > least else 1.0
        colour = _CHOSEN if value == greatest else _BAR
        draw.rectangle((left, top + height - 6, left + 4 + share * (BARS - 8), top + height - 3), fill=colour)
        middle = top + (height - 6) / 2
        shown = _BRIGHT if value == greatest else _DIM
        draw_text(draw, (left, middle), actions[action], 11, shown, anchor="lm", width=110)
        draw_text(draw, (left + BARS - 4, middle), f"{value:+.3g}", 11, shown, anchor="rm")
