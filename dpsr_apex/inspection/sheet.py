"""The transitions that stand out in a replay as one picture: a row for each kind, a column for each transition.

Shown is what is stored. Where that is no picture but a vector, the stored state is re-entered and draws itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.inspection import InspectionError
from dpsr_apex.inspection.moments import Kind, Moment, action_name, number, signed
from dpsr_apex.inspection.pictures import (
    BEFORE,
    CHANGED,
    INK,
    PALE,
    PAPER,
    change_of,
    fitted,
    font,
    picture_of,
    trail_of,
    write,
)
from dpsr_apex.run.screen import Picture, rendered

ACROSS = 8  # transitions in a line

_SIDE = 168  # pixels of a picture's edge: twice that of an Atari frame
_GAP, _MARGIN = 14, 24
_ACTION, _NOTES = 26, 66  # heights: the line between the two pictures, and what is told beneath them
_TITLE, _HEAD, _FOOT = 58, 64, 34
_GAINED, _LOST = (22, 130, 72), (178, 60, 50)


def ensure_drawable(path: Path) -> None:
    """Refuse a path that no sheet can be written to, before anything is looked at."""
    if path.suffix != ".png":
        raise InspectionError(f"{path}: sheets are written as .png, not as {path.suffix or 'a name without a suffix'}")
    if not path.parent.is_dir():
        raise InspectionError(f"{path}: the folder {path.parent} does not exist")


def draw_sheet(path: Path, title: str, kinds: Sequence[Kind], env: StackedEnv) -> None:
    """Write the sheet as a PNG, whole or not at all; `env` is used to inflate and re-enter, and left anywhere."""
    temporary = path.with_name(f".unfinished-{path.name}")
    try:
        sheet_of(title, kinds, env).save(temporary, format="png", optimize=True)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sheet_of(title: str, kinds: Sequence[Kind], env: StackedEnv) -> Image.Image:
    """The sheet itself."""
    cards = [[_card(moment, env) for moment in kind.moments] for kind in kinds]
    tall = max((card.height for row in cards for card in row), default=0)
    columns = min(max((len(row) for row in cards), default=1), ACROSS)
    lines = [max(-(-len(row) // ACROSS), 1) if row else 0 for row in cards]
    width = max(2 * _MARGIN + columns * (_SIDE + _GAP) - _GAP, 900)
    below = sum(_TITLE + count * (tall + _GAP) if count else _TITLE for count in lines)
    sheet = Image.new("RGB", (width, _HEAD + below + _FOOT), PAPER)
    draw = ImageDraw.Draw(sheet)
    write(draw, (_MARGIN, 24), title, 17, bold=True, width=width - 2 * _MARGIN)
    top = _HEAD
    for kind, row, count in zip(kinds, cards, lines, strict=True):
        _write_title(draw, kind, top, width)
        for index, card in enumerate(row):
            line, column = divmod(index, ACROSS)
            sheet.paste(card, (_MARGIN + column * (_SIDE + _GAP), top + _TITLE + line * (tall + _GAP)))
        top += _TITLE + count * (tall + _GAP)
    _write_legend(draw, env, sheet.height - _FOOT)
    return sheet


def _write_title(draw: ImageDraw.ImageDraw, kind: Kind, top: int, width: int) -> None:
    draw.line((_MARGIN, top + 6, width - _MARGIN, top + 6), fill=(224, 227, 232))
    write(draw, (_MARGIN, top + 16), kind.title, 15, bold=True)
    meaning = kind.meaning if kind.moments else "none is stored"
    write(draw, (_MARGIN, top + 36), meaning, 12, PALE, width=width - 2 * _MARGIN)


def _write_legend(draw: ImageDraw.ImageDraw, env: StackedEnv, top: int) -> None:
    coloured = len(env.codec.shape) == 2
    left = float(_MARGIN)
    for colour, text in (
        (BEFORE, "above: s" + ", blue where something was in its earlier frames" * coloured),
        (CHANGED, "below: s′" + ", amber where something was in s" * coloured),
        (INK, "the episode ends"),
    ):
        if coloured or colour == INK:
            draw.rectangle((left, top + 2, left + 10, top + 12), fill=colour)
            left += 18
        write(draw, (left, top), text, 12, PALE)
        left += font(12).getlength(text) + 30


def _card(moment: Moment, env: StackedEnv) -> Image.Image:
    """One transition: s, the action and its reward, s', and what the replay knows of it."""
    above, below = _pictures(moment, env)
    tall = max(len(above), len(below))
    card = Image.new("RGB", (_SIDE, 2 * tall + _ACTION + _NOTES), PAPER)
    _paste(card, above, 0, tall)
    _paste(card, below, tall + _ACTION, tall)
    draw = ImageDraw.Draw(card)
    middle = tall + _ACTION / 2
    steps = "" if moment.n_steps == 1 else f" … {moment.n_steps} steps"
    write(draw, (0, middle), f"↓ {action_name(env, moment.action)}{steps}", 12, bold=True, anchor="lm", width=118)
    write(draw, (_SIDE, middle), _outcome(moment), 12, INK if moment.reward else PALE, anchor="rm")
    _write_notes(draw, moment, env, 2 * tall + _ACTION + 5)
    return card


def _write_notes(draw: ImageDraw.ImageDraw, moment: Moment, env: StackedEnv, top: int) -> None:
    write(draw, (0, top), str(moment.identity), 12, bold=True, width=_SIDE)
    write(draw, (0, top + 17), f"p {number(moment.priority)}", 11, width=84)
    write(draw, (_SIDE, top + 17), f"age {moment.age:,}", 11, PALE, anchor="ra")
    if not env.shows_pixels:
        numbers = env.codec.inflate(moment.s_tm1[-1]).tolist()
        write(draw, (0, top + 33), "s  " + "  ".join(f"{value:.2g}" for value in numbers), 10, PALE, width=_SIDE)
    if moment.recycled:
        place = 0, top + (33 if env.shows_pixels else 47)
        write(draw, place, f"gain {signed(moment.gain)}", 11, _GAINED if moment.gain > 0 else _LOST)


def _outcome(moment: Moment) -> str:
    reward = f"r {moment.reward:+g}" if moment.reward else "r 0"
    return f"{reward} ■" if moment.terminal else reward


def _paste(card: Image.Image, picture: Picture, top: int, tall: int) -> None:
    height, width, _ = picture.shape
    card.paste(Image.fromarray(picture), ((_SIDE - width) // 2, top + (tall - height) // 2))


def _pictures(moment: Moment, env: StackedEnv) -> tuple[Picture, Picture]:
    s_tm1, s_t = env.codec.inflate_stack(moment.s_tm1), env.codec.inflate_stack(moment.s_t)
    if env.shows_pixels:
        return trail_of(s_tm1, _SIDE), change_of(s_tm1, s_t, _SIDE)
    drawn = _re_entered(moment, env)
    return drawn or (picture_of(s_tm1[-1], _SIDE), picture_of(s_t[-1], _SIDE))


def _re_entered(moment: Moment, env: StackedEnv) -> tuple[Picture, Picture] | None:
    """What the environment draws of s and s'; None where it draws nothing, or has no way back or on."""
    if not env.reentrant or not moment.snapshot or moment.n_steps != 1:
        return None
    try:
        env.restore(moment.snapshot, moment.s_tm1)
    except DamagedSnapshot:
        return None
    above = rendered(env)
    if above is None:
        return None
    env.step(moment.action)
    below = rendered(env)
    assert below is not None, "an environment that draws itself does so after every step"
    return _framed(fitted(above, _SIDE, _SIDE)), _framed(fitted(below, _SIDE, _SIDE))


def _framed(picture: Picture) -> Picture:
    """With a thin edge: many environments draw on white."""
    framed = np.array(picture)
    framed[[0, -1]] = framed[:, [0, -1]] = (214, 218, 224)
    return framed
