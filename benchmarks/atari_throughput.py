"""Steps a second on one core: our environment beside gymnasium's wrappers, and a whole solo run with learning.

Ours takes a snapshot at every step and squeezes every frame, as an actor does; gymnasium's does neither. Both play at
random, skip four frames, show 84x84 grey in stacks of four, begin with up to 30 no-ops and end with a life.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from benchmarks.measure import Elapsed, Report, interleave, parse_options, ratio, spread, timed
from dpsr_apex.config_files import load_config
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.run.solo import Solo

GAMES = ("Breakout", "Pong", "SpaceInvaders")
STEPS = 1_000  # of one repetition
SOLO_STEPS = 500  # of one repetition: 125 updates and one recycling round
SOLO_REPETITIONS = 5
SOLO_CAPACITY = 4_000  # transitions; filled before anything is timed

SOLO_OVERRIDES = (
    "env.name=Breakout",
    f"replay.capacity={SOLO_CAPACITY}",
    f"learner.learning_starts={SOLO_CAPACITY}",
    "actor.exploration=0.01",
    "run.threads=1",
)


def our_loop(game: str) -> Callable[[], Elapsed]:
    """Our environment with a snapshot at every step."""
    env = make_stacked(game)
    rng = np.random.default_rng(0)

    def play() -> Elapsed:
        actions = rng.integers(env.actions, size=STEPS).tolist()
        with timed() as timer:
            for action in actions:
                env.snapshot()
                step = env.step(action)
                if step.terminal or step.truncated:
                    env.reset()
        return timer.elapsed.per(STEPS)

    return play


def gymnasium_loop(game: str) -> Callable[[], Elapsed]:
    """Gymnasium's own wrappers, without snapshots."""
    bare: gymnasium.Env[Any, Any] = gymnasium.make(f"ale_py:{game}NoFrameskip-v4", disable_env_checker=True)
    env = FrameStackObservation(AtariPreprocessing(bare, noop_max=30, terminal_on_life_loss=True), 4)
    rng = np.random.default_rng(0)
    actions_of_game = env.action_space.n  # type: ignore[attr-defined]  # Discrete, which wrappers forget
    env.reset(seed=0)

    def play() -> Elapsed:
        actions = rng.integers(actions_of_game, size=STEPS).tolist()
        with timed() as timer:
            for action in actions:
                _, _, terminal, truncated, _ = env.step(action)
                if terminal or truncated:
                    env.reset()
        return timer.elapsed.per(STEPS)

    return play


class Shares:
    """CPU seconds by part of a program; a part that calls another does not count the other's."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._parts = ["the rest"]
        self._since = time.process_time()

    def watch(self, owner: object, method: str, part: str) -> None:
        """From now on `owner.method` counts as `part`."""
        inner = getattr(owner, method)

        def watched(*args: Any) -> Any:
            self._turn()
            self._parts.append(part)
            try:
                return inner(*args)
            finally:
                self._turn()
                self._parts.pop()

        setattr(owner, method, watched)

    def restart(self) -> None:
        """Forget what was counted so far."""
        self._turn()
        self.seconds.clear()

    def take(self) -> dict[str, float]:
        """The share of each part since `restart`."""
        self._turn()
        total = sum(self.seconds.values())
        return {part: seconds / total for part, seconds in self.seconds.items()}

    def _turn(self) -> None:
        now = time.process_time()
        self.seconds[self._parts[-1]] += now - self._since
        self._since = now


def watch_solo(solo: Solo) -> Shares:
    """Count the parts of a solo run."""
    shares = Shares()
    shares.watch(solo.learner, "learn", "update (inflating included)")
    shares.watch(solo.agent, "act", "network chooses an action")
    shares.watch(solo.actor, "recycle", "recycling")
    for env in solo.actor.envs:
        for method in ("step", "snapshot", "reset"):
            shares.watch(env, method, "environment")
    for method in ("insert", "sample", "priorities", "recycled"):
        shares.watch(solo.replay, method, "replay")
    return shares


def measure_games(report: Report) -> None:
    """Every game in both environments."""
    rows = []
    for game in GAMES:
        times = interleave({"ours": our_loop(game), "gymnasium": gymnasium_loop(game)})
        report.record(game, times, 1e6, "microseconds")
        faster = ratio(times["ours"], times["gymnasium"])
        report.figures[game]["times_faster"] = faster._asdict()
        speeds = [spread([1 / one.cpu for one in times[who]]).show(0) for who in ("ours", "gymnasium")]
        rows.append([game, *speeds, faster.show(2)])
    columns = ("game", "ours, with snapshots", "gymnasium's wrappers, without", "ours is faster, times")
    report.table("Environment steps per CPU second, random policy (quartiles)", columns, rows)


def measure_solo(report: Report) -> None:
    """Solo with learning on, its replay full, beside gymnasium's bare loop."""
    solo = Solo(load_config("breakout_short", base="released", overrides=SOLO_OVERRIDES))
    while solo.t < SOLO_CAPACITY + SOLO_STEPS:
        solo.step()
    shares = watch_solo(solo)
    counted: list[dict[str, float]] = []

    def run() -> Elapsed:
        with timed() as timer:
            shares.restart()
            for _ in range(SOLO_STEPS):
                solo.step()
            counted.append(shares.take())
        return timer.elapsed.per(SOLO_STEPS)

    times = interleave({"solo": run, "gymnasium": gymnasium_loop("Breakout")}, SOLO_REPETITIONS)
    report.record("solo", times, 1e6, "microseconds")
    speeds = {who: spread([1 / one.cpu for one in taken]).show(0) for who, taken in times.items()}
    rows = [["solo, an update every 4 steps", speeds["solo"], ""]]
    parts = {part for one in counted[1:] for part in one}
    shared = {part: spread([100 * one.get(part, 0.0) for one in counted[1:]]) for part in parts}
    for part, share in sorted(shared.items(), key=lambda item: -item[1].median):
        report.figures["solo"][f"share of {part}"] = share._asdict()
        rows.append([f"  {part}", "", share.show()])
    rows.append(["gymnasium's wrappers alone, no learning", speeds["gymnasium"], ""])
    columns = ("Breakout, one thread", "steps per CPU second", "share of CPU time, %")
    report.table("A whole solo run: released base, batch 32, replay full", columns, rows)


def main() -> int:
    options = parse_options(__doc__)
    report = Report("atari_throughput")
    measure_games(report)
    measure_solo(report)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
