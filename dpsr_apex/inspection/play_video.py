"""The video of continuing from a stored transition: first its stored frames, then every step that follows.

The left half shows the agent's observation. The right half shows facts about the transition during the stored frames,
and then the environment's own screen, because a restored emulator renders its previous screen until the first step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from dpsr_apex.envs.planes import BACKGROUND
from dpsr_apex.envs.snapshot import Frame
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.inspection.pictures import draw_text, frame_picture, scale_to_fit
from dpsr_apex.inspection.rendering import Picture, frames_per_second, render_rgb
from dpsr_apex.inspection.video import VideoWriter

OBSERVATION_SIDE = 420  # pixels: side of the left half, five times that of an Atari frame
CAPTION_HEIGHT = 40  # pixels below both halves
GUTTER = 20  # pixels between the halves
DEFAULT_WIDTH = 300  # pixels: minimum width of the right half

_BRIGHT, _DIM = (236, 239, 244), (150, 156, 168)


class PlayVideo:
    """Composes the frames of one video; created by `record_play`."""

    def __init__(self, writer: VideoWriter, fps: float, width: int) -> None:
        self._short = max(round(fps / 3), 1)  # video frames per stored frame: a third of a second
        self._long = max(round(fps), 1)  # video frames of the current and the last frame: a second
        self._writer = writer
        self._width = width  # of the right half

    def show_stored(self, frames: NDArray[Any], facts: Sequence[str]) -> None:
        """Show the stored observation frame by frame, oldest first, beside the facts."""
        card = self._card(facts)
        for ago in range(len(frames) - 1, 0, -1):
            self._add(frames[-1 - ago], card, f"stored: {ago} step{'s' if ago > 1 else ''} earlier", self._short)
        self._add(frames[-1], card, "stored: current frame", self._long)

    def show_step(self, env: StackedEnv, caption: str) -> None:
        """Show the environment after a step."""
        self._add(env.frames[-1], render_rgb(env), caption, 1)

    def show_end(self, env: StackedEnv, caption: str) -> None:
        """Show the environment after the last step, for a second."""
        self._add(env.frames[-1], render_rgb(env), caption, self._long)

    def _add(self, frame: Frame, right: Picture | None, caption: str, repeats: int) -> None:
        canvas = Image.new(
            "RGB", (OBSERVATION_SIDE + GUTTER + self._width, OBSERVATION_SIDE + CAPTION_HEIGHT), BACKGROUND
        )
        _centre(canvas, frame_picture(frame, OBSERVATION_SIDE), 0, OBSERVATION_SIDE)
        if right is not None:
            _centre(canvas, scale_to_fit(right, self._width, OBSERVATION_SIDE), OBSERVATION_SIDE + GUTTER, self._width)
        position = 14, OBSERVATION_SIDE + CAPTION_HEIGHT / 2
        draw_text(ImageDraw.Draw(canvas), position, caption, 15, _BRIGHT, anchor="lm", width=canvas.width)
        picture = np.asarray(canvas)
        for _ in range(repeats):
            self._writer.write(picture)

    def _card(self, facts: Sequence[str]) -> Picture:
        card = Image.new("RGB", (self._width, OBSERVATION_SIDE), BACKGROUND)
        draw = ImageDraw.Draw(card)
        for line, fact in enumerate(facts):
            position = 4, 24 + line * 26
            draw_text(draw, position, fact, 15, _BRIGHT if line == 0 else _DIM, bold=line == 0, width=self._width - 8)
        return np.asarray(card)


@contextmanager
def record_play(path: Path | None, env: StackedEnv) -> Iterator[PlayVideo | None]:
    """Record `env` to a video at `path`, written when the block ends without an exception; None without a path."""
    if path is None:
        yield None
        return
    screen = render_rgb(env)
    width = (
        DEFAULT_WIDTH
        if screen is None
        else max(scale_to_fit(screen, OBSERVATION_SIDE, OBSERVATION_SIDE).shape[1], DEFAULT_WIDTH)
    )
    fps = frames_per_second(env)
    with VideoWriter(path, fps, (OBSERVATION_SIDE + CAPTION_HEIGHT, OBSERVATION_SIDE + GUTTER + width)) as writer:
        yield PlayVideo(writer, fps, width)


def _centre(canvas: Image.Image, picture: Picture, left: int, width: int) -> None:
    position = left + (width - picture.shape[1]) // 2, (OBSERVATION_SIDE - picture.shape[0]) // 2
    canvas.paste(Image.fromarray(picture), position)
