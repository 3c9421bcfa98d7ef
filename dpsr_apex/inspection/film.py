"""The video of a moment that was entered: first the frames as they are stored, then what follows, step by step.

On the left is what the agent sees. On the right, while that is still what was stored, are the facts about the moment,
and after it the environment's own screen: an emulator that was put back shows a stale one until it draws again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from dpsr_apex.envs.planes import GROUND
from dpsr_apex.envs.snapshot import Frame
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.inspection.pictures import fitted, picture_of, write
from dpsr_apex.run.screen import Picture, frames_per_second, rendered
from dpsr_apex.run.video import VideoWriter

SEEN = 420  # pixels of the left half's edge: five times that of an Atari frame
CAPTION = 40  # pixels beneath both halves
GUTTER = 20  # pixels between the halves
PLAIN_WIDTH = 300  # pixels of the right half where the environment draws nothing

_BRIGHT, _DIM = (236, 239, 244), (150, 156, 168)


class Film:
    """Takes the frames of one video; `filming` makes one."""

    def __init__(self, writer: VideoWriter, fps: float, width: int) -> None:
        self.hold = max(round(fps / 3), 1)  # video frames for which each stored frame is shown
        self._long = max(round(fps), 1)
        self._writer = writer
        self._width = width  # of the right half

    def show_stored(self, frames: NDArray[Any], facts: Sequence[str]) -> None:
        """The stored observation frame by frame, the oldest first and the moment itself the longest."""
        card = self._card(facts)
        for ago in range(len(frames) - 1, 0, -1):
            self._add(frames[-1 - ago], card, f"stored: {ago} step{'s' if ago > 1 else ''} before", self.hold)
        self._add(frames[-1], card, "stored: the moment itself", self._long)

    def show_step(self, env: StackedEnv, caption: str) -> None:
        """The environment as it is now, after a step."""
        self._add(env.frames[-1], rendered(env), caption, 1)

    def show_end(self, env: StackedEnv, caption: str) -> None:
        """The same, long enough to be read."""
        self._add(env.frames[-1], rendered(env), caption, self._long)

    def _add(self, frame: Frame, right: Picture | None, caption: str, times: int) -> None:
        canvas = Image.new("RGB", (SEEN + GUTTER + self._width, SEEN + CAPTION), GROUND)
        _centre(canvas, picture_of(frame, SEEN), 0, SEEN)
        if right is not None:
            _centre(canvas, fitted(right, self._width, SEEN), SEEN + GUTTER, self._width)
        write(ImageDraw.Draw(canvas), (14, SEEN + CAPTION / 2), caption, 15, _BRIGHT, anchor="lm", width=canvas.width)
        picture = np.asarray(canvas)
        for _ in range(times):
            self._writer.write(picture)

    def _card(self, facts: Sequence[str]) -> Picture:
        card = Image.new("RGB", (self._width, SEEN), GROUND)
        draw = ImageDraw.Draw(card)
        for line, fact in enumerate(facts):
            place = 4, 24 + line * 26
            write(draw, place, fact, 15, _BRIGHT if line == 0 else _DIM, bold=line == 0, width=self._width - 8)
        return np.asarray(card)


@contextmanager
def filming(path: Path | None, env: StackedEnv) -> Iterator[Film | None]:
    """A film of `env` that is at `path` when the block ends well; None when there is to be none."""
    if path is None:
        yield None
        return
    screen = rendered(env)
    width = PLAIN_WIDTH if screen is None else max(fitted(screen, SEEN, SEEN).shape[1], PLAIN_WIDTH)
    fps = frames_per_second(env)
    with VideoWriter(path, fps, (SEEN + CAPTION, SEEN + GUTTER + width)) as writer:
        yield Film(writer, fps, width)


def _centre(canvas: Image.Image, picture: Picture, left: int, width: int) -> None:
    place = left + (width - picture.shape[1]) // 2, (SEEN - picture.shape[0]) // 2
    canvas.paste(Image.fromarray(picture), place)
