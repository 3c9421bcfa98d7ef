"""Draw notable transitions of a replay as one picture: a row for each group, a column for each transition.

Pixels are shown as they are stored. For vectors, the stored state is restored and rendered by the environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.files import atomic_path
from dpsr_apex.formatting import number, signed
from dpsr_apex.inspection.pictures import (
    CHANGED,
    EARLIER,
    MUTED,
    TEXT,
    WHITE,
    draw_text,
    font,
    frame_picture,
    next_picture,
    scale_to_fit,
    stack_picture,
)
from dpsr_apex.inspection.rendering import Picture, render_rgb
from dpsr_apex.inspection.stored import Group, StoredTransition, action_name

COLUMNS = 8  # transitions per row

# All sizes are in pixels.
_SIDE = 168  # of a picture: twice that of an Atari frame
_GAP, _MARGIN = 14, 24
_ACTION_HEIGHT, _NOTES_HEIGHT = 26, 66  # the line between the two pictures, and the notes below them
_TITLE_HEIGHT, _HEADER_HEIGHT, _LEGEND_HEIGHT = 58, 64, 34
_GAINED, _LOST = (22, 130, 72), (178, 60, 50)


def save_sheet(path: Path, title: str, groups: Sequence[Group], env: StackedEnv) -> None:
    """Draw the sheet and write it atomically as a PNG; `env` decompresses and renders, and ends in any state."""
    with atomic_path(path) as temporary:
        draw_sheet(title, groups, env).save(temporary, format="png", optimize=True)


def draw_sheet(title: str, groups: Sequence[Group], env: StackedEnv) -> Image.Image:
    """Draw the sheet."""
    cards = [[_card(transition, env) for transition in group.transitions] for group in groups]
    card_height = max((card.height for row in cards for card in row), default=0)
    columns = min(max((len(row) for row in cards), default=1), COLUMNS)
    lines = [max(-(-len(row) // COLUMNS), 1) if row else 0 for row in cards]
    width = max(2 * _MARGIN + columns * (_SIDE + _GAP) - _GAP, 900)
    rows_height = sum(_TITLE_HEIGHT + count * (card_height + _GAP) for count in lines)
    sheet = Image.new("RGB", (width, _HEADER_HEIGHT + rows_height + _LEGEND_HEIGHT), WHITE)
    draw = ImageDraw.Draw(sheet)
    draw_text(draw, (_MARGIN, 24), title, 17, bold=True, width=width - 2 * _MARGIN)
    top = _HEADER_HEIGHT
    for group, row, count in zip(groups, cards, lines, strict=True):
        _draw_title(draw, group, top, width)
        for index, card in enumerate(row):
            line, column = divmod(index, COLUMNS)
            sheet.paste(card, (_MARGIN + column * (_SIDE + _GAP), top + _TITLE_HEIGHT + line * (card_height + _GAP)))
        top += _TITLE_HEIGHT + count * (card_height + _GAP)
    _draw_legend(draw, env, sheet.height - _LEGEND_HEIGHT)
    return sheet


def _draw_title(draw: ImageDraw.ImageDraw, group: Group, top: int, width: int) -> None:
    draw.line((_MARGIN, top + 6, width - _MARGIN, top + 6), fill=(224, 227, 232))
    draw_text(draw, (_MARGIN, top + 16), group.title, 15, bold=True)
    description = group.description if group.transitions else "none stored"
    draw_text(draw, (_MARGIN, top + 36), description, 12, MUTED, width=width - 2 * _MARGIN)


def _draw_legend(draw: ImageDraw.ImageDraw, env: StackedEnv, top: int) -> None:
    tinted = len(env.codec.shape) == 2
    left = float(_MARGIN)
    for colour, text in (
        (EARLIER, "above: s" + ", differences to its earlier frames in blue" * tinted),
        (CHANGED, "below: s′" + ", differences to s in amber" * tinted),
        (TEXT, "terminal"),
    ):
        if tinted or colour == TEXT:
            draw.rectangle((left, top + 2, left + 10, top + 12), fill=colour)
            left += 18
        draw_text(draw, (left, top), text, 12, MUTED)
        left += font(12).getlength(text) + 30


def _card(transition: StoredTransition, env: StackedEnv) -> Image.Image:
    """Draw one transition: s, the action and its reward, s', identity, priority, age and gain."""
    above, below = _pictures(transition, env)
    height = max(len(above), len(below))
    card = Image.new("RGB", (_SIDE, 2 * height + _ACTION_HEIGHT + _NOTES_HEIGHT), WHITE)
    _paste(card, above, 0, height)
    _paste(card, below, height + _ACTION_HEIGHT, height)
    draw = ImageDraw.Draw(card)
    middle = height + _ACTION_HEIGHT / 2
    outcome = _outcome(transition)
    draw_text(draw, (_SIDE, middle), outcome, 12, TEXT if transition.reward else MUTED, anchor="rm")
    action, left = f"↓ {action_name(env, transition.action)}", int(_SIDE - font(12).getlength(outcome)) - 6
    draw_text(draw, (0, middle), action, 12, bold=True, anchor="lm", width=left)
    _draw_notes(draw, transition, env, 2 * height + _ACTION_HEIGHT + 5)
    return card


def _draw_notes(draw: ImageDraw.ImageDraw, transition: StoredTransition, env: StackedEnv, top: int) -> None:
    draw_text(draw, (0, top), str(transition.identity), 12, bold=True, width=_SIDE)
    draw_text(draw, (0, top + 17), f"p {number(transition.priority)}", 11, width=84)
    draw_text(draw, (_SIDE, top + 17), f"age {transition.age:,}", 11, MUTED, anchor="ra")
    if not env.shows_pixels:
        values = env.codec.decompress(transition.s_tm1[-1]).tolist()
        draw_text(draw, (0, top + 33), "s  " + "  ".join(number(value, 2) for value in values), 10, MUTED, width=_SIDE)
    if transition.recycled:
        position = 0, top + (33 if env.shows_pixels else 47)
        colour = _GAINED if transition.gain > 0 else _LOST
        draw_text(draw, position, f"gain {signed(transition.gain)}", 11, colour)


def _outcome(transition: StoredTransition) -> str:
    steps = "" if transition.n_steps == 1 else f"n {transition.n_steps}  "
    reward = f"r {transition.reward:+g}" if transition.reward else "r 0"
    return f"{steps}{reward} ■" if transition.terminal else f"{steps}{reward}"


def _paste(card: Image.Image, picture: Picture, top: int, available_height: int) -> None:
    height, width, _ = picture.shape
    card.paste(Image.fromarray(picture), ((_SIDE - width) // 2, top + (available_height - height) // 2))


def _pictures(transition: StoredTransition, env: StackedEnv) -> tuple[Picture, Picture]:
    s_tm1, s_t = env.codec.decompress_stack(transition.s_tm1), env.codec.decompress_stack(transition.s_t)
    if env.shows_pixels:
        return stack_picture(s_tm1, _SIDE), next_picture(s_tm1, s_t, _SIDE)
    return _rendered(transition, env) or (frame_picture(s_tm1[-1], _SIDE), frame_picture(s_t[-1], _SIDE))


def _rendered(transition: StoredTransition, env: StackedEnv) -> tuple[Picture, Picture] | None:
    """Render s and s' with the environment; None if it cannot render or the transition cannot be repeated."""
    if not env.restorable or not transition.snapshot or transition.n_steps != 1:
        return None
    try:
        env.restore(transition.snapshot, transition.s_tm1)
    except DamagedSnapshot:
        return None
    above = render_rgb(env)
    if above is None:
        return None
    env.step(transition.action)
    below = render_rgb(env)
    assert below is not None, "an environment that can render must render after every step"
    return _with_border(scale_to_fit(above, _SIDE, _SIDE)), _with_border(scale_to_fit(below, _SIDE, _SIDE))


def _with_border(picture: Picture) -> Picture:
    """Add a thin border, because many environments render on a white background."""
    bordered = np.array(picture)
    bordered[[0, -1]] = bordered[:, [0, -1]] = (214, 218, 224)
    return bordered
