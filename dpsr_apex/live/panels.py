"""What there is to see of a run, section by section: words and figures for a given room, without any frame.

A section is told how many columns and lines it has, and leaves out what is least important. Rows and stats may lack any
key: then there is a dash, or nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.text import Text

from dpsr_apex.live.figures import DASH, duration, number, share, short, time_left, whole
from dpsr_apex.live.plots import BAR_STYLE, CURVE_STYLE, MARK, MARK_STYLE, QUIET, Point, bar, curve, histogram
from dpsr_apex.roles.sessions import SILENCE

WARNING = "yellow"
LABEL = 10  # columns of what stands before the figures
ROOMY = 46  # columns, from which on units are written out
CURVE_LINES = 9  # that the returns take unless there is room for more

Lines = list[Text]


@dataclass
class Known:
    """All that is known of a run."""

    title: str
    total_steps: int
    row: dict[str, Any] = field(default_factory=lambda: {"t": 0})
    stats: dict[str, Any] = field(default_factory=dict)  # empty for a run of one process
    returns: list[Point] = field(default_factory=list)  # (t, mean of an interval)
    evaluations: list[Point] = field(default_factory=list)  # (t, mean)
    speeds: dict[str, float] = field(default_factory=dict)  # steps/s by the name of an actor


class Section(NamedTuple):
    """A part of the screen; `draw` is given columns and lines, and may return fewer lines."""

    title: str
    aside: Text  # at the other end of the title's line
    least: int  # lines, below which it is better left out
    wanted: int  # lines, beyond which it has nothing to add
    draw: Callable[[int, int], Lines]


def progress(known: Known, width: int) -> Text:
    """One line: how far the run is, and how long it still takes."""
    row, total = known.row, known.total_steps
    done = row["t"] / total
    left = f"{time_left(row, total)} left"
    for words in (f"{row['t']:,} / {total:,} transitions   {done:.1%}   {left}", f"{row['t']:,} / {total:,}   {left}"):
        if len(words) + 12 <= width:
            style = "green" if row["t"] >= total else "cyan"
            return Text.assemble(bar(done, width - len(words) - 3, style), "   ", words)
    return Text(f"{done:.1%}   {left}")


def age_of_run(known: Known) -> Text:
    """For how long it has been going on."""
    seconds = known.row.get("elapsed_seconds")
    return Text() if seconds is None else Text(f"{duration(seconds)} so far", QUIET)


def returns(known: Known) -> Section:
    """What the games bring: figures, and the curve since the run began."""
    row = known.row

    def draw(width: int, height: int) -> Lines:
        figures = _named(
            width,
            ("mean", number(row.get("return_mean"))),
            ("best", number(row.get("return_best"))),
            ("evaluation", number(row.get("evaluation_mean"))),
            ("games", whole(row.get("episodes"))),
        )
        if not known.returns and not known.evaluations:
            return [figures, Text("no game has ended yet", QUIET)]
        return [figures, *curve(known.returns, known.evaluations, width, height - 1)]

    legend = Text.assemble(("━", CURVE_STYLE), (" training  ", QUIET), (MARK, MARK_STYLE), (" evaluation", QUIET))
    return Section("return", legend, 4, CURVE_LINES, draw)


def actors(known: Known) -> Section:
    """Who plays, how fast, and how much by chance; those that are silent first, and as many as there is room for."""
    members = _actors_of(known)
    members = sorted(members, key=lambda actor: actor["heard_seconds_ago"] <= SILENCE)
    together = number(known.row.get("steps_per_second"))

    def draw(width: int, height: int) -> Lines:
        room = max(height - 1, 1)
        shown = members if len(members) <= room else members[: room - 1]
        lines = _actor_table(known, shown, width)
        if rest := members[len(shown) :]:
            speed = sum(known.speeds.get(actor["name"], 0.0) for actor in rest)
            lines.append(Text(f"… and {len(rest):,} more, {number(speed)} steps/s together", QUIET))
        return lines

    aside = Text.assemble((f"{len(members):,}", ""), (" alive · ", QUIET), (together, ""), (" steps/s", QUIET))
    return Section("actors", aside, 2 + (len(members) > 1), 1 + max(len(members), 1), draw)


def learner(known: Known) -> Section:
    """How fast it learns, and what from."""
    row, report = known.row, known.stats.get("learner") or {}
    waiting = report.get("waiting", row.get("learner_waiting"))
    lines = [
        _entry("updates", (number(row.get("updates_per_second")), "/s"), (whole(row.get("updates")), "in all")),
        Text.assemble(_label("loss"), number(row.get("loss")), ("   mean Q ", QUIET), number(row.get("mean_q"))),
    ]
    if known.stats:
        lines.insert(1, _entry("waits", (share(waiting), "of the time")))
    silent = report.get("heard_seconds_ago", 0.0)
    aside = Text(f"silent for {silent:.0f} s", WARNING) if silent > SILENCE else Text()
    return Section("learner", aside, 2, len(lines), lambda _width, height: lines[:height])


def replay(known: Known) -> Section:
    """What is stored, by age and by priority, and what makes room for it."""
    row = known.row
    fill = row.get("fill")
    means = [(what, short(row.get(f"replaced_{what}_mean"))) for what in _STORED]

    def draw(width: int, height: int) -> Lines:
        filled = Text.assemble(
            _label("fill"), bar(fill or 0.0, max(width - LABEL - 6, 1), "cyan"), f" {share(fill):>5}"
        )
        replaced = Text.assemble(_label("replaced"), _named(width - LABEL, *means))
        bars = (height - 4) // 2
        if bars < 1 or not {"age_histogram", "priority_histogram"} <= row.keys():
            stored = [_entry(what, (short(row.get(f"{what}_mean")), "mean")) for what in _STORED]
            return [filled, replaced, *stored][:height]
        plots = [line for what in _STORED for line in _distribution(row, what, width, bars)]
        return [filled, *plots, replaced]

    size = Text.assemble(whole(row.get("stored")), (" transitions", QUIET))
    return Section("replay", size, 2, 8, draw)


def recycling(known: Known) -> Section:
    """What became of re-entered states."""
    row = known.row
    answered = sum(row.get(f"candidates_{what}", 0) for what in ("applied", "stale"))
    recycled, gain = row.get("recycled"), row.get("recycled_gain")
    gained = f"{gain / recycled:+.3g}" if recycled and gain is not None else DASH

    def draw(width: int, height: int) -> Lines:
        candidates, of = ("candidates", " recycled") if width >= ROOMY else ("", "")
        return [
            _entry("rounds", *_counts(row, "rounds", "closed", "expired")),
            _entry("answered", (whole(answered), candidates), *_counts(row, "candidates", "stale", "lost")),
            _entry("gained", (gained, f"|δ| each of {whole(recycled)}{of}")),
        ][:height]

    opened = Text.assemble(whole(row.get("rounds_opened")), (" rounds opened", QUIET))
    return Section("recycling", opened, 1, 3, draw)


def rate_limiter(known: Known) -> Section:
    """How many transitions go with an update, and who waits for whom because of it."""
    rate = known.stats.get("rate") or {}
    achieved = rate.get("achieved", known.row.get("steps_per_update"))
    target = _target(rate.get("steps_per_update"))
    waiting = (known.stats.get("waiting") or "Nobody waits").partition(" (")[0]
    words = waiting if known.stats else "One process: nobody waits"

    def draw(width: int, height: int) -> Lines:
        ratio = _entry("steps per update" if width >= ROOMY else "ratio", *target, (number(achieved), "achieved"))
        wrapped = textwrap.wrap(words, width, max_lines=max(height - 1, 1), placeholder=" …")
        style = QUIET if "obody" in words else ""
        return [ratio, *(Text(line, style) for line in wrapped)][:height]

    return Section("rate limiter", Text(), 1, 3 if known.stats else 2, draw)


_STORED = ("age", "priority")


def _actors_of(known: Known) -> list[Mapping[str, Any]]:
    """Those in the run; where it is one process, that one."""
    if known.stats:
        found: list[Mapping[str, Any]] = known.stats.get("actors", [])
        return found
    epsilon = known.row.get("epsilon")
    return [{"name": "this process", "heard_seconds_ago": 0.0, "epsilon": None if epsilon is None else [epsilon] * 2}]


def _actor_table(known: Known, shown: Sequence[Mapping[str, Any]], width: int) -> Lines:
    own_speed = {} if known.stats else {"this process": known.row.get("steps_per_second")}
    speeds = known.speeds | own_speed
    cells = [("steps/s", "ε", "heard")]
    cells += [
        (_steps(speeds.get(actor["name"])), _epsilon(actor.get("epsilon")), _heard(actor["heard_seconds_ago"]))
        for actor in shown
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    gap = "   " if width >= ROOMY else "  "
    figures = ["".join(f"{gap}{cell:>{wide}}" for cell, wide in zip(row, widths, strict=True)) for row in cells]
    room = max(width - len(figures[0]), 1)
    lines = [Text(f"{'':{room}}{figures[0]}", QUIET)]
    for actor, figure in zip(shown, figures[1:], strict=True):
        name = Text.assemble((f"{MARK} ", _health(actor)), actor["name"], (_place(actor), QUIET))
        name.truncate(room, overflow="ellipsis", pad=True)
        lines.append(Text.assemble(name, figure))
    return lines


def _place(actor: Mapping[str, Any]) -> str:
    return f" at {actor['host']}" if actor.get("host") else ""


def _health(actor: Mapping[str, Any]) -> str:
    return CURVE_STYLE if actor["heard_seconds_ago"] <= SILENCE else WARNING


def _steps(per_second: float | None) -> str:
    return number(per_second if per_second is None or per_second < 10 else round(per_second))


def _heard(seconds: float) -> str:
    return "now" if seconds < 1.5 else f"{seconds:.0f} s ago"


def _epsilon(between: Sequence[float] | None) -> str:
    """One figure, or from the least to the greatest."""
    if between is None:
        return DASH
    low, high = (f"{end:.2g}" for end in between)
    return low if low == high else f"{low}–{high}"


def _distribution(row: Mapping[str, Any], what: str, width: int, bars: int) -> Lines:
    """So many lines of bars, and one with the ends of the axis."""
    found, mean = row[f"{what}_histogram"], short(row.get(f"{what}_mean"))
    drawn = histogram(found["counts"], width - LABEL, bars)
    names = [_label(what), *[_label("")] * (bars - 1)]
    low, high = short(found["edges"][0]), short(found["edges"][-1])
    scale = ", log scale" if what == "priority" and width >= ROOMY else ""
    middle = f"mean {mean}{scale}"
    axis = f"{low}{middle:^{max(len(drawn[0]) - len(low) - len(high), len(middle) + 2)}}{high}"
    lines = [Text.assemble(name, (line, BAR_STYLE)) for name, line in zip(names, drawn, strict=True)]
    return [*lines, Text.assemble(_label(""), (axis, QUIET))]


def _target(steps_per_update: int | None) -> list[tuple[str, str]]:
    if steps_per_update is None:
        return []
    return [(whole(steps_per_update), "wanted")] if steps_per_update else [("free running", "")]


def _label(text: str) -> Text:
    return Text(f"{text:{LABEL}}", QUIET)


def _counts(row: Mapping[str, Any], of: str, *kinds: str) -> list[tuple[str, str]]:
    return [(whole(row.get(f"{of}_{kind}")), kind) for kind in kinds]


def _entry(label: str, *figures: tuple[str, str]) -> Text:
    """A label and its figures, each with its unit behind it."""
    parts: list[Text | str | tuple[str, str]] = [(f"{label:{LABEL - 2}}  ", QUIET)]
    for place, (figure, unit) in enumerate(figures):
        parts += [(" · ", QUIET)] * (place > 0) + [figure, (f" {unit}" if unit else "", QUIET)]
    return Text.assemble(*parts)


def _named(width: int, *figures: tuple[str, str]) -> Text:
    """Names with their figures, in one line: as many as there is room for."""
    gap = "   " if width >= ROOMY else "  "
    line = Text()
    for name, figure in figures:
        more = Text.assemble(gap if line else "", (f"{name} ", QUIET), figure)
        if len(line) + len(more) > width:
            break
        line = Text.assemble(line, more)
    return line
