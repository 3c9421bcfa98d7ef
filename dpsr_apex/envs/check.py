"""Check that an environment can be saved and restored exactly.

One environment plays at random; snapshots of it are restored in a second one, which repeats the actions that followed.
A snapshot passes only if every step after it is identical to the last bit.
"""

from __future__ import annotations

import math
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.envs.classic import ByHistory
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.envs.snapshot import UnusableEnvironment
from dpsr_apex.envs.stacked import StackedEnv, Step
from dpsr_apex.formatting import number
from dpsr_apex.replay.transitions import Stack

PAPER_GAMES = (
    *("AirRaid", "Alien", "Amidar", "Assault", "Asterix", "BeamRider", "Bowling", "Breakout"),
    *("Carnival", "Enduro", "Freeway", "Frostbite", "Hero", "JourneyEscape", "Krull", "KungFuMaster"),
    *("MsPacman", "Phoenix", "Qbert", "Riverraid", "SpaceInvaders", "StarGunner", "VideoPinball", "Zaxxon"),
)

COMPARED_STEPS = 8  # steps compared after each restore, to find hidden state that the first step does not reveal
STRIDE = 10  # agent steps between the snapshots that are checked in the middle of an episode
REPEAT_PROBABILITIES = (0.0, 0.5, 0.9, 0.99)  # of the last action, sampled per episode: each reaches other states
SHORT_CHECK_SECONDS = 20.0  # after which a check at the start of a run ends, if it has examined any moment
MAX_STEPS = 30_000  # maximum number of agent steps until a game over is found; more than Atari's time limit


class _Event(NamedTuple):
    """One action and its outcome."""

    action: int
    step: Step
    frames: NDArray[Any]
    stack: Stack


@dataclass
class _Moment:
    """One snapshot of the playing environment, and the steps that followed it."""

    depth: int  # agent steps since the start of the game
    first: bool  # directly after a reset
    snapshot: bytes
    stack: Stack
    events: list[_Event] = field(default_factory=list)


@dataclass
class Result:
    """Outcome of the check of one environment; a moment is one restored snapshot."""

    name: str
    moments: int = 0
    first_steps: int = 0  # moments directly after a reset
    lost_lives: int = 0  # episodes that ended while the game continues
    game_ends: int = 0
    time_limits: int = 0  # games truncated by their time limit
    deepest: int = 0  # largest number of agent steps from the start of a game to a moment
    mismatches: int = 0  # moments after which a step differed
    snapshot_bytes: float = 0.0  # mean
    problem: str = ""  # description of the first difference or error
    trace: str = ""  # traceback of an exception that the environment raised
    conversion: str = ""  # of observations into frames; "" if there is none
    by_history: bool = False  # restored by replaying its history
    finished_steps: int = 0  # agent steps of all games that ended
    restored_steps: int = 0  # agent steps from the start of a game to each moment, in total
    restore_seconds: float = 0.0  # of all restores

    @property
    def passed(self) -> bool:
        """Whether at least one moment was checked and none differed."""
        return self.moments > 0 and not self.mismatches and not self.problem

    @property
    def episode_steps(self) -> float:
        """Mean length of a game in agent steps; if none has ended, the number of steps to the last moment."""
        games = self.game_ends + self.time_limits
        return self.finished_steps / games if games else float(self.deepest)

    @property
    def episode_seconds(self) -> float:
        """Time to restore the end of a game of mean length, if the time of a restore is proportional to its depth."""
        return self.restore_seconds / max(self.restored_steps, 1) * self.episode_steps

    @property
    def history_cost(self) -> str:
        """One line about the time of a restore, if it replays the history; "" otherwise."""
        if not self.by_history or not self.moments:
            return ""
        milliseconds = number(1000 * self.episode_seconds, 2)
        return f"Restores replay the history: {milliseconds} ms for an episode of {self.episode_steps:,.0f} steps"


def check_restore(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    moments: int = 300,
    seed: int = 0,
    stack: int | None = None,
    max_steps: int = MAX_STEPS,
    progress: Callable[[int], None] | None = None,
    wrappers: Sequence[str] = (),
    max_seconds: float = math.inf,
) -> Result:
    """Play at random until `moments` snapshots have been checked and a game has ended, or for `max_steps` steps.

    Checked are all snapshots directly after a reset, all in the last steps of an episode, and every tenth one. An
    environment without snapshots is restored by replaying its history. One that cannot be created or has no history
    either yields a result with a `problem`. `progress` is called after every step with the number of snapshots checked.
    After `max_seconds` the check ends with the snapshots it has, at least one.
    """
    result = Result(name)
    try:
        player, twin = (
            make_stacked(name, arguments, stack=stack, seed=own, wrappers=wrappers, by_history=True)
            for own in (seed, seed + 1)
        )
        result.conversion, result.by_history = player.conversion, isinstance(player.env, ByHistory)
        if not player.restorable:
            raise UnusableEnvironment(
                name, "it has no snapshot() and restore()", "It works only with methods that do not recycle."
            )
        check = _Check(result, player, twin, np.random.default_rng(seed), time.monotonic() + max_seconds)
        check.run(moments, max_steps, progress or (lambda _: None))
    except UnusableEnvironment as error:
        result.problem = error.reason
    except Exception as error:  # any exception of a user's environment is a result of the check
        result.problem = result.problem or f"{type(error).__name__}: {error}"
        result.trace = "".join(traceback.format_exception(error))
    return result


def ensure_restorable(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    stack: int | None = None,
    wrappers: Sequence[str] = (),
) -> Result:
    """Check an environment for about a second, longer if it is slow; raise UnusableEnvironment if the check fails."""
    limits: dict[str, Any] = {"moments": 40, "max_steps": 200, "max_seconds": SHORT_CHECK_SECONDS}
    result = check_restore(name, arguments, stack=stack, wrappers=wrappers, **limits)
    if not result.passed:
        failure = "it cannot be saved and restored exactly"
        if result.by_history:
            failure = "it has no snapshot() and restore(), and replaying its history led to another state"
        raise UnusableEnvironment(
            name,
            f"{failure} ({result.problem or 'no snapshot could be checked'})",
            "Recycling needs exact snapshots: run `dpsr-apex check`, or choose a method without recycling.",
            result.trace,
        )
    return result


class _Check:
    """Plays `player` at random and restores its snapshots in `twin`."""

    def __init__(
        self, result: Result, player: StackedEnv, twin: StackedEnv, random: np.random.Generator, deadline: float
    ) -> None:
        self._result = result
        self._player = player
        self._twin = twin
        self._random = random
        self._deadline = deadline  # on the monotonic clock
        self._recent: deque[_Moment] = deque()
        self._bytes_taken = 0
        self._action = 0
        self._repeat_probability = 0.0

    def run(self, moments: int, max_steps: int, progress: Callable[[int], None]) -> None:
        first = True
        for taken in range(1, max_steps + 1):
            step = self._play(first)
            self._result.snapshot_bytes = self._bytes_taken / taken
            first = step.terminal or step.truncated
            if first:
                self._finish_episode(step)
            elif len(self._recent) == COMPARED_STEPS:
                self._examine_oldest()
            progress(self._result.moments)
            if self._result.moments >= moments and (self._result.game_ends or self._result.time_limits):
                break
            if self._is_late():
                return
        while self._recent and not self._is_late():
            self._examine(self._recent.popleft())

    def _is_late(self) -> bool:
        return self._result.moments > 0 and time.monotonic() > self._deadline

    def _play(self, first: bool) -> Step:
        player = self._player
        moment = _Moment(player.game_steps, first, player.snapshot(), player.stack)
        self._bytes_taken += len(moment.snapshot)
        self._recent.append(moment)
        if first:
            self._repeat_probability = float(self._random.choice(REPEAT_PROBABILITIES))
        if first or self._random.random() >= self._repeat_probability:
            self._action = int(self._random.integers(player.actions))
        step = player.step(self._action)
        event = _Event(self._action, step, player.frames, player.stack)
        for recent in self._recent:
            recent.events.append(event)
        return step

    def _finish_episode(self, step: Step) -> None:
        self._result.game_ends += step.terminal and step.game_over
        self._result.time_limits += step.truncated and not step.terminal
        self._result.lost_lives += not step.game_over
        self._result.finished_steps += self._player.game_steps if step.game_over else 0
        while self._recent and not self._is_late():
            self._examine(self._recent.popleft())
        self._recent.clear()
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
            result.problem = result.problem or difference

    def _difference(self, moment: _Moment) -> str:
        """Restore the snapshot in the twin, repeat the actions, and describe the first difference ("" if none)."""
        twin, where = self._twin, f"a restore at step {moment.depth} of an episode"
        started = time.perf_counter()
        try:
            twin.restore(moment.snapshot, moment.stack)
        except DamagedSnapshot as error:
            if cause := error.__cause__:
                self._result.trace = self._result.trace or "".join(traceback.format_exception(cause))
            return f"{where} failed: {error}"
        self._result.restore_seconds += time.perf_counter() - started
        self._result.restored_steps += moment.depth
        for steps, event in enumerate(moment.events, 1):
            step = twin.step(event.action)
            if step != event.step:
                return f"{step} instead of {event.step}, {steps} steps after {where}"
            if not np.array_equal(twin.frames, event.frames) or twin.stack != event.stack:
                return f"a different observation, {steps} steps after {where}"
        return ""
