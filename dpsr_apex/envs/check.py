"""The proof of re-entry: play, come back to moments of that play in a second environment, and compare what follows.

A moment counts as proven only if every step after it is the same to the last bit. Nothing here is written anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpsr_apex.console import make_console, make_progress
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.snapshot import UnusableEnvironment
from dpsr_apex.envs.stacked import StackedEnv, Step
from dpsr_apex.replay.transitions import Stack

PAPER_GAMES = (
    *("AirRaid", "Alien", "Amidar", "Assault", "Asterix", "BeamRider", "Bowling", "Breakout"),
    *("Carnival", "Enduro", "Freeway", "Frostbite", "Hero", "JourneyEscape", "Krull", "KungFuMaster"),
    *("MsPacman", "Phoenix", "Qbert", "Riverraid", "SpaceInvaders", "StarGunner", "VideoPinball", "Zaxxon"),
)

FOLLOWED = 8  # steps compared after each moment, to find hidden state that the first step does not show
STRIDE = 10  # agent steps between moments that are examined for no special reason
HOLDS = (0.0, 0.5, 0.9, 0.99)  # chance that an action is repeated, drawn for each episode: each reaches other places
MOST_STEPS = 30_000  # agent steps of play in search of a game's end; more than Atari's time limit


class _Event(NamedTuple):
    action: int
    step: Step
    frames: NDArray[Any]
    stack: Stack


@dataclass
class _Moment:
    depth: int  # agent steps since the game began
    first: bool  # straight after a reset
    snapshot: bytes
    stack: Stack
    followed: list[_Event] = field(default_factory=list)


@dataclass
class Result:
    """What was covered, and what went wrong."""

    name: str
    moments: int = 0  # examined
    first_steps: int = 0  # of them, straight after a reset
    lost_lives: int = 0  # ends of an episode where the game plays on, each with the moments before it
    game_ends: int = 0
    time_limits: int = 0  # games that were cut by their time limit
    deepest: int = 0  # agent steps from the beginning of a game to the deepest moment
    mismatches: int = 0  # moments after which something was different
    snapshot_bytes: float = 0.0  # mean
    problem: str = ""  # the first difference or error, in words

    @property
    def passed(self) -> bool:
        """Every moment that was examined is proven, and there was one."""
        return self.moments > 0 and not self.mismatches and not self.problem


def check_reentry(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    moments: int = 300,
    seed: int = 0,
    stack: int | None = None,
    max_steps: int = MOST_STEPS,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Play at random until `moments` were examined and a game has ended, or for `max_steps`.

    Examined are all moments straight after a reset, all shortly before the end of an episode, and every tenth one.
    An environment that cannot be made or cannot be re-entered at all gives a result that says so. `progress` is told
    how many moments were examined.
    """
    result = Result(name)
    try:
        player = make_stacked(name, arguments, stack=stack, seed=seed)
        twin = make_stacked(name, arguments, stack=stack, seed=seed + 1)
        if not player.reentrant:
            raise UnusableEnvironment(
                name, "it has no snapshot() and restore()", "Only methods without recycling work."
            )
        _Check(result, player, twin, np.random.default_rng(seed)).run(moments, max_steps, progress or (lambda _: None))
    except UnusableEnvironment as error:
        result.problem = error.reason
    except Exception as error:  # whatever a user's environment raises is the finding
        result.problem = result.problem or f"{type(error).__name__}: {error}"
    return result


def ensure_reentrant(name: str, arguments: Mapping[str, Any] | None = None, stack: int | None = None) -> None:
    """A brief check of about a second; UnusableEnvironment if it fails."""
    result = check_reentry(name, arguments, moments=40, stack=stack, max_steps=200)
    if not result.passed:
        raise UnusableEnvironment(
            name,
            f"it cannot be left and re-entered ({result.problem or 'no moment could be examined'})",
            "Recycling needs a snapshot() that restores exactly: see `dpsr-apex check`, or choose another method.",
        )


class _Check:
    """One play of `player`, examined in `twin`."""

    def __init__(self, result: Result, player: StackedEnv, twin: StackedEnv, random: np.random.Generator) -> None:
        self._result = result
        self._player = player
        self._twin = twin
        self._random = random
        self._recent: deque[_Moment] = deque()
        self._bytes_taken = 0
        self._action = 0
        self._hold = 0.0

    def run(self, moments: int, max_steps: int, progress: Callable[[int], None]) -> None:
        first = True
        for taken in range(1, max_steps + 1):
            step = self._play(first)
            self._result.snapshot_bytes = self._bytes_taken / taken
            first = step.terminal or step.truncated
            if first:
                self._finish_episode(step)
            elif len(self._recent) == FOLLOWED:
                self._examine_oldest()
            progress(self._result.moments)
            if self._result.moments >= moments and (self._result.game_ends or self._result.time_limits):
                break
        while self._recent:
            self._examine(self._recent.popleft())

    def _play(self, first: bool) -> Step:
        player = self._player
        moment = _Moment(player.game_steps, first, player.snapshot(), player.stack)
        self._bytes_taken += len(moment.snapshot)
        self._recent.append(moment)
        if first:
            self._hold = float(self._random.choice(HOLDS))
        if first or self._random.random() >= self._hold:
            self._action = int(self._random.integers(player.actions))
        step = player.step(self._action)
        event = _Event(self._action, step, player.frames, player.stack)
        for recent in self._recent:
            recent.followed.append(event)
        return step

    def _finish_episode(self, step: Step) -> None:
        self._result.game_ends += step.terminal and step.game_over
        self._result.time_limits += step.truncated and not step.terminal
        self._result.lost_lives += not step.game_over
        while self._recent:
            self._examine(self._recent.popleft())
        self._player.reset()

    def _examine_oldest(self) -> None:
        moment = self._recent.popleft()
        if moment.first or moment.depth % STRIDE == 0:
            self._examine(moment)

    def _examine(self, moment: _Moment) -> None:
        result = self._result
        result.moments += 1
        result.first_steps += moment.first
        result.deepest = max(result.deepest, moment.depth)
        difference = self._difference(moment)
        if difference:
            result.mismatches += 1
            result.problem = result.problem or f"{difference} after a restore at step {moment.depth} of a game"

    def _difference(self, moment: _Moment) -> str:
        """What differs when the moment is lived through again; empty if nothing does."""
        twin = self._twin
        twin.restore(moment.snapshot, moment.stack)
        for number, event in enumerate(moment.followed, 1):
            step = twin.step(event.action)
            if step != event.step:
                return f"{step} instead of {event.step}, {number} steps"
            if not np.array_equal(twin.frames, event.frames) or twin.stack != event.stack:
                return f"another observation, {number} steps"
        return ""


def check_command(names: list[str], moments: int = 300) -> int:
    """Check environments one after the other and print a table; the exit code is 0 if all passed."""
    console = make_console()
    results = [_watched(console, name, moments) for name in names]
    console.print(_table(results))
    for result in results:
        if not result.passed:
            console.print(f"{result.name}: {result.problem or 'no moment could be examined'}")
    passed = sum(result.passed for result in results)
    console.print(f"{passed} of {len(results)} can be left and re-entered")
    return 0 if passed == len(results) else 1


def _watched(console: Console, name: str, moments: int) -> Result:
    with make_progress(console) as progress:
        task = progress.add_task(name, total=moments)
        return check_reentry(name, moments=moments, progress=lambda done: progress.update(task, completed=done))


def _table(results: list[Result]) -> Table:
    table = Table(
        title="Moments re-entered in a second environment, and what followed",
        caption="resets, lives, ends, limits: resets, lost lives, ends of a game and time limits among them; "
        "depth: most agent steps into a game; bytes: mean of a snapshot; wrong: moments that went on differently",
        box=box.SIMPLE,
        pad_edge=False,
        padding=0,
    )
    table.add_column("environment", no_wrap=True)
    for heading in ("moments", "resets", "lives", "ends", "limits", "depth", "bytes", "wrong"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        covered = (result.moments, result.first_steps, result.lost_lives, result.game_ends, result.time_limits)
        verdict = Text("0", "green") if result.passed else Text(str(result.mismatches or "error"), "red")
        table.add_row(result.name, *map(str, covered), str(result.deepest), f"{result.snapshot_bytes:.0f}", verdict)
    return table
