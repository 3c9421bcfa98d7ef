"""Pictures of stored transitions: their frames exactly as they are stored, without an emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.envs.planes import BACKGROUND
from dpsr_apex.inspection.pictures import MUTED, draw_text, frame_picture, next_picture, stack_picture
from dpsr_apex.inspection.rendering import Picture
from dpsr_apex.inspection.stored import StoredTransition
from dpsr_apex.web import Refusal
from dpsr_apex.web.analysis import png

THUMB = 84  # pixels of a frame in a strip or a contact sheet
_GAP = 3  # pixels between two frames of a strip
_WIDE_GAP = 13  # pixels before the next state
_INK = np.array((110, 118, 132), np.uint8)


def states_of(stored: StoredTransition, codec: FrameCodec) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both observations of a transition; raise Refusal if they are damaged."""
    try:
        return codec.decompress_stack(stored.s_tm1), codec.decompress_stack(stored.s_t)
    except ValueError as error:
        raise Refusal(409, f"Transition {stored.identity} is damaged: {error}") from error


def strip(stored: StoredTransition, codec: FrameCodec) -> Picture:
    """Draw the frames of a transition's state side by side, an arrow, and the newest frame of the next state."""
    s_tm1, s_t = states_of(stored, codec)
    frames = [frame_picture(frame, THUMB) for frame in s_tm1]
    return _beside([*frames, frame_picture(s_t[-1], THUMB)])


def thumb(stored: StoredTransition, codec: FrameCodec) -> Picture:
    """Draw a transition's state, and below it what the step has changed."""
    s_tm1, s_t = states_of(stored, codec)
    above, below = stack_picture(s_tm1, 2 * THUMB), next_picture(s_tm1, s_t, 2 * THUMB)
    width = max(above.shape[1], below.shape[1])
    return np.concatenate([_centred(above, width), _blank(_GAP, width), _centred(below, width)])


def replaced() -> Picture:
    """Draw the placeholder for a transition that the running replay has replaced."""
    canvas = Image.new("RGB", (THUMB, THUMB), BACKGROUND)
    for place, text in enumerate(("no longer", "stored")):
        draw_text(ImageDraw.Draw(canvas), (THUMB / 2, THUMB / 2 + 16 * place - 8), text, 11, MUTED, anchor="mm")
    return np.asarray(canvas)


def frames_of(states: NDArray[Any]) -> list[bytes]:
    """Return each frame of an observation as a PNG: grey pixels as they are, planes and vectors drawn."""
    return [png(frame if frame.ndim == 2 else frame_picture(frame, 2 * THUMB)) for frame in states]


def _beside(pictures: list[Picture]) -> Picture:
    height = max(len(picture) for picture in pictures)
    parts: list[Picture] = []
    for place, picture in enumerate(pictures):
        if place:
            is_next = place == len(pictures) - 1
            parts.append(_arrow(height) if is_next else _blank(height, _GAP))
        parts.append(np.pad(picture, ((0, height - len(picture)), (0, 0), (0, 0))))
    return np.concatenate(parts, axis=1)


def _arrow(height: int) -> Picture:
    gap = _blank(height, _WIDE_GAP)
    middle = height // 2
    for column in range(5):
        gap[middle - 4 + column : middle + 5 - column, 4 + column] = _INK
    return gap


def _centred(picture: Picture, width: int) -> Picture:
    missing = width - picture.shape[1]
    return np.pad(picture, ((0, 0), (missing // 2, missing - missing // 2), (0, 0)))


def _blank(height: int, width: int) -> Picture:
    return np.zeros((height, width, 3), np.uint8)
