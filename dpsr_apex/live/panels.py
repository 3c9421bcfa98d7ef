"""The sections of the live view: text and numbers for a given size, without a frame.

A section is given its columns and lines, and omits what is least important. A row may lack any key, and statistics may
not be available yet: then a dash is shown, or nothing.
"""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.text import Text

from dpsr_apex import timeouts
from dpsr_apex.formatting import DASH, duration, number, percent, short, whole
from dpsr_apex.live.plots import BAR_STYLE, CURVE_STYLE, MARK, MARK_STYLE, QUIET, Point, bar, curve, histogram
from dpsr_apex.live.words import describe_waits, time_left
from dpsr_apex.record.progress import Goal
from dpsr_apex.wire.messages import Stats
from dpsr_apex.wire.statistics import ActorStats

THIS_PROCESS = "this process"
WARNING = "yellow"
LABEL = 10  # columns of the label before the figures
WIDE = 46  # minimum number of columns for spelled-out units
CURVE_LINES = 9  # lines of the section on returns, unless the screen has more

Lines = list[Text]


@dataclass
class Known:
    """The data about a run that is available."""

    title: str
    goal: Goal
    row: dict[str, Any] = field(default_factory=lambda: {"t": 0})
    stats: Stats | None = None  # None for a single-process run, and until the head of another one has answered
    returns: list[Point] = field(default_factory=list)  # (t, mean of an interval)
    evaluations: list[Point] = field(default_factory=list)  # (t, mean)
    speeds: dict[str, float] = field(default_factory=dict)  # steps/s by the name of an actor
    is_alone: bool = True  # whether it is a single-process run
    pace: float | None = None  # recent steps of the goal per second
    began_at: float | None = None  # time.monotonic() minus the duration of the run so far; None if that is unknown


class Section(NamedTuple):
    """A part of the screen; `draw` is given columns and lines, and may return fewer lines."""

    title: str
    aside: Text  # at the right end of the title's line
    least: int  # lines; with fewer it is omitted
    wanted: int  # lines; it has no use for more
    draw: Callable[[int, int], Lines]


def progress(known: Known, width: int) -> Text:
    """Return one line with the progress of the run and the time left."""
    goal = known.goal
    steps = goal.done(known.row)
    done = steps / goal.steps
    left = f"{time_left(known.row, goal, known.pace)} left"
    counts = f"{steps:,} / {goal.steps:,}"
    for words in (f"{counts} {goal.unit}   {done:.1%}   {left}", f"{counts}   {left}"):
        if len(words) + 12 <= width:
            style = "green" if steps >= goal.steps else "cyan"
            return Text.assemble(bar(done, width - len(words) - 3, style), "   ", words)
    return Text(f"{done:.1%}   {left}")


def age_of_run(known: Known) -> Text:
    """Return how long the run has been running."""
    began = known.began_at
    seconds = known.row.get("elapsed_seconds") if began is None else time.monotonic() - began
    return Text() if seconds is None else Text(f"{duration(seconds)} so far", QUIET)


def returns(known: Known) -> Section:
    """Return the section on episode returns: numbers, and the curve since the start of the run."""
    row = known.row

    def draw(width: int, height: int) -> Lines:
        figures = _named(
            width,
            ("mean", number(row.get("return_mean"), 3)),
            ("best", number(row.get("return_best"), 3)),
            ("evaluation", number(row.get("evaluation_mean"), 3)),
            ("episodes", whole(row.get("episodes"))),
        )
        if not known.returns and not known.evaluations:
            return [figures, Text("no episode has ended yet", QUIET)]
        return [figures, *curve(known.returns, known.evaluations, width, height - 1)]

    legend = Text.assemble(("━", CURVE_STYLE), (" training  ", QUIET), (MARK, MARK_STYLE), (" evaluation", QUIET))
    return Section("return", legend, 4, CURVE_LINES, draw)


def actors(known: Known) -> Section:
    """Return the section on actors with their speed and exploration: silent ones first, as many as fit."""
    members = sorted(_actors_of(known), key=lambda actor: not _is_silent(actor.heard_seconds_ago))
    together = number(known.row.get("steps_per_second"), 3)

    def draw(width: int, height: int) -> Lines:
        most = max(height - 1, 1)
        shown = members if len(members) <= most else members[: most - 1]
        lines = _actor_table(known, shown, width)
        if rest := members[len(shown) :]:
            speed = sum(known.speeds.get(actor.name, 0.0) for actor in rest)
            lines.append(Text(f"… and {len(rest):,} more, {number(speed, 3)} steps/s together", QUIET))
        return lines

    aside = Text.assemble((f"{len(members):,}", ""), (" alive · ", QUIET), (together, ""), (" steps/s", QUIET))
    return Section("actors", aside, 2 + (len(members) > 1), 1 + max(len(members), 1), draw)


def learner(known: Known) -> Section:
    """Return the section on the learner: its speed and its newest means."""
    row, learner = known.row, known.stats.learner if known.stats else None
    waiting = learner.report.waiting if learner and learner.report else row.get("learner_waiting")
    lines = [
        _entry("updates", (number(row.get("updates_per_second"), 3), "/s"), (whole(row.get("updates")), "total")),
        Text.assemble(_label("loss"), number(row.get("loss"), 3), ("   mean Q ", QUIET), number(row.get("mean_q"), 3)),
    ]
    if known.stats:
        age, p95 = (number(row.get(f"policy_age_{name}"), 3) for name in ("mean", "p95"))
        lines[1:1] = [
            _entry("waits", (percent(waiting), "of the time")),
            _entry("actors' policy", (age, "updates old"), (p95, "p95")),
        ]
    silence = learner.heard_seconds_ago if learner else 0.0
    aside = Text(f"silent for {silence:.0f} s", WARNING) if _is_silent(silence) else Text()
    return Section("learner", aside, 2, len(lines), lambda _width, height: lines[:height])


def replay(known: Known) -> Section:
    """Return the section on the replay: distributions of ages and priorities, and means of replaced transitions."""
    row = known.row
    fill = row.get("fill")
    means = [(what, short(row.get(f"replaced_{what}_mean"))) for what in _STORED]

    def draw(width: int, height: int) -> Lines:
        filled = Text.assemble(
            _label("fill"), bar(fill or 0.0, max(width - LABEL - 6, 1), "cyan"), f" {percent(fill):>5}"
        )
        replaced = Text.assemble(_label("replaced"), _named(width - LABEL, *means))
        bars = (height - 4) // 2
        if bars < 1 or not all(row.get(f"{what}_histogram") for what in _STORED):  # an empty replay has none
            stored = [_entry(what, (short(row.get(f"{what}_mean")), "mean")) for what in _STORED]
            return [filled, replaced, *stored][:height]
        plots = [line for what in _STORED for line in _distribution(row, what, width, bars)]
        return [filled, *plots, replaced]

    size = Text.assemble(whole(row.get("stored")), (" transitions", QUIET))
    return Section("replay", size, 2, 8, draw)


def recycling(known: Known) -> Section:
    """Return the section on recycling: rounds, candidates and gains."""
    row = known.row
    answered = sum(row.get(f"candidates_{what}", 0) for what in ("applied", "stale"))
    recycled, gain = row.get("recycled"), row.get("recycled_gain")
    gained = f"{gain / recycled:+.3g}" if recycled and gain is not None else DASH
    has_chains = row.get("chain_steps_stored", 0) > 0

    def draw(width: int, height: int) -> Lines:
        candidates, of = ("candidates", " recycled") if width >= WIDE else ("", "")
        lines = [
            _entry("rounds", *_counts(row, "rounds", "closed", "expired")),
            _entry("answered", (whole(answered), candidates), *_counts(row, "candidates", "stale", "lost")),
            _entry("gained", (gained, f"|δ| mean of {whole(recycled)}{of}")),
        ]
        return [*lines, *([_chains(row)] if has_chains else [])][:height]

    opened = Text.assemble(whole(row.get("rounds_opened")), (" rounds opened", QUIET))
    return Section("recycling", opened, 1, 3 + has_chains, draw)


def _chains(row: Mapping[str, Any]) -> Text:
    """Return the line on chains of steps from re-entered states."""
    depth, reward = number(row.get("depth_mean"), 2), number(row.get("chain_reward_mean"), 3)
    return _entry(
        "chains", (depth, "deep"), (reward, "reward"), (percent(row.get("sampled_recycled_share")), "of batches")
    )


def rate_limiter(known: Known) -> Section:
    """Return the section on the rate limiter: transitions per update, and which process waits for which."""
    stats = known.stats
    achieved = stats.rate.achieved if stats else known.row.get("steps_per_update")
    target = _target(stats.rate.steps_per_update) if stats else []
    words, style = _waiting(stats, known.is_alone)

    def draw(width: int, height: int) -> Lines:
        ratio = _entry("steps per update" if width >= WIDE else "ratio", *target, (number(achieved, 3), "achieved"))
        wrapped = textwrap.wrap(words, width, max_lines=max(height - 1, 1), placeholder=" …")
        return [ratio, *(Text(line, style) for line in wrapped)][:height]

    return Section("rate limiter", Text(), 1, 3 if stats else 2, draw)


_STORED = ("age", "priority")


def _waiting(stats: Stats | None, is_alone: bool) -> tuple[str, str]:
    """Return which process waits for which as text, and its style."""
    if stats is None and not is_alone:
        return "The processes are starting", QUIET
    if stats is None:
        return "Single process: no waiting", QUIET
    return (describe_waits(stats.waiting), "") if stats.waiting else ("No process is waiting", QUIET)


def _actors_of(known: Known) -> list[ActorStats]:
    """Return the actors in the run; for a single-process run, that process."""
    if known.stats or not known.is_alone:
        return known.stats.actors if known.stats else []
    epsilon = known.row.get("epsilon", math.nan)
    return [ActorStats(THIS_PROCESS, 0, "", epsilon, epsilon, heard_seconds_ago=0.0, sent=0, recycling=0)]


def _actor_table(known: Known, shown: Sequence[ActorStats], width: int) -> Lines:
    own_speed = {} if known.stats or not known.is_alone else {THIS_PROCESS: known.row.get("steps_per_second")}
    speeds = known.speeds | own_speed
    cells = [("steps/s", "ε", "heard")]
    cells += [(_steps(speeds.get(actor.name)), _epsilon(actor), _heard(actor.heard_seconds_ago)) for actor in shown]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    gap = "   " if width >= WIDE else "  "
    figures = ["".join(f"{gap}{cell:>{wide}}" for cell, wide in zip(row, widths, strict=True)) for row in cells]
    left = max(width - len(figures[0]), 1)
    lines = [Text(f"{'':{left}}{figures[0]}", QUIET)]
    for actor, figure in zip(shown, figures[1:], strict=True):
        name = Text.assemble((f"{MARK} ", _health(actor)), actor.name, (_host(actor), QUIET))
        name.truncate(left, overflow="ellipsis", pad=True)
        lines.append(Text.assemble(name, figure))
    return lines


def _host(actor: ActorStats) -> str:
    return f" at {actor.host}" if actor.host else ""


def _health(actor: ActorStats) -> str:
    return WARNING if _is_silent(actor.heard_seconds_ago) else CURVE_STYLE


def _is_silent(heard_seconds_ago: float) -> bool:
    return heard_seconds_ago > timeouts.MEMBER_SILENCE


def _steps(per_second: float | None) -> str:
    return number(per_second if per_second is None or per_second < 10 else round(per_second), 3)


def _heard(seconds: float) -> str:
    return "now" if seconds < 1.5 else f"{seconds:.0f} s ago"


def _epsilon(actor: ActorStats) -> str:
    """Return one number, or the range from minimum to maximum."""
    low, high = number(actor.epsilon_low, 2), number(actor.epsilon_high, 2)
    return low if low == high else f"{low}–{high}"


def _distribution(row: Mapping[str, Any], what: str, width: int, bars: int) -> Lines:
    """Return `bars` lines of a histogram, and one line with the axis."""
    found, mean = row[f"{what}_histogram"], short(row.get(f"{what}_mean"))
    drawn = histogram(found["counts"], width - LABEL, bars)
    names = [_label(what), *[_label("")] * (bars - 1)]
    low, high = short(found["edges"][0]), short(found["edges"][-1])
    scale = ", log scale" if what == "priority" and width >= WIDE else ""
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
    """Return a label and its figures, each followed by its unit."""
    parts: list[Text | str | tuple[str, str]] = [(f"{label:{LABEL - 2}}  ", QUIET)]
    for place, (figure, unit) in enumerate(figures):
        parts += [(" · ", QUIET)] * (place > 0) + [figure, (f" {unit}" if unit else "", QUIET)]
    return Text.assemble(*parts)


def _named(width: int, *figures: tuple[str, str]) -> Text:
    """Return as many named figures as fit in one line."""
    gap = "   " if width >= WIDE else "  "
    line = Text()
    for name, figure in figures:
        more = Text.assemble(gap if line else "", (f"{name} ", QUIET), figure)
        if len(line) + len(more) > width:
            break
        line = Text.assemble(line, more)
    return line
