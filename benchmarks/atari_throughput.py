"""Steps per second on one core: our environment compared with gymnasium's and ale_py's, and a whole solo run.

Ours takes a snapshot at every step and compresses every frame, as in an actor; the peers do neither. All play at
random, skip four frames, return 84x84 grey frames in stacks of four, start a game with up to 30 no-ops, report lost
lives, and play every game to its end. After a lost life only ours plays a no-op and FIRE, which are not counted as
steps. The peers' options that end an episode with a life are off: they would reset the whole game, no-ops included.
Ours plays each of the thirty starts of a game once and restores it later, so all are played before timing begins.
ale_py's vector environment and EnvPool use one thread, with a number of environments that maximizes the speed. Four
emulator frames without anything else are measured as an upper bound.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from benchmarks.measure import (
    BREAKOUT,
    Comparison,
    Elapsed,
    Report,
    Spread,
    interleave,
    parse_options,
    ratio,
    spread,
    timed,
)
from benchmarks.peers import ENVPOOL, Peer
from dpsr_apex.config_files import load_config
from dpsr_apex.envs.atari import MAX_NOOPS, find_rom
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.solo.algorithm import Solo

GAMES = ("Breakout", "Pong", "SpaceInvaders", "Qbert")
STEPS = 1_000  # per repetition
REPETITIONS = 5
MANY = 32  # environments of the larger vector environment; 64, 128, or a second thread were not faster on Pong
GOAL = 1.25
SOLO_STEPS = 500  # per repetition: 125 updates and one recycling round
SOLO_REPETITIONS = 3  # few, because it is not compared with a peer
SOLO_CAPACITY = 3_000  # transitions; filled before timing starts

SOLO_OVERRIDES = (
    "env.name=Breakout",
    f"replay.capacity={SOLO_CAPACITY}",
    f"learner.learning_starts={SOLO_CAPACITY}",
    "actor.exploration=0.01",
    "run.threads=1",
)

GYMNASIUM = "gymnasium's AtariPreprocessing and FrameStackObservation"
VECTOR_MANY = f"ale_py's AtariVectorEnv, {MANY} environments"
EMULATOR = "emulator frames only"
ENVPOOL_MANY = f"EnvPool, {MANY} environments"


def our_loop(game: str) -> Callable[[], Elapsed]:
    """Return a task that steps our environment with a snapshot at every step."""
    env = make_stacked(game)
    rng = np.random.default_rng(0)
    for seed in range(10 * MAX_NOOPS):  # play the starts of the game, which a process does once
        env.reset(seed)

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


def gymnasium_env(game: str) -> gymnasium.Env[Any, Any]:
    """Return gymnasium's wrappers; `info["lives"]` reports lost lives."""
    bare: gymnasium.Env[Any, Any] = gymnasium.make(f"ale_py:{game}NoFrameskip-v4", disable_env_checker=True)
    return FrameStackObservation(AtariPreprocessing(bare, noop_max=30), 4)


def gymnasium_loop(game: str) -> Callable[[], Elapsed]:
    """Return a task that steps gymnasium's wrappers, without snapshots."""
    env = gymnasium_env(game)
    rng = np.random.default_rng(0)
    action_count = env.action_space.n  # type: ignore[attr-defined]  # Discrete, but wrappers are typed as Space
    env.reset(seed=0)

    def play() -> Elapsed:
        actions = rng.integers(action_count, size=STEPS).tolist()
        with timed() as timer:
            for action in actions:
                _, _, terminal, truncated, _ = env.step(action)
                if terminal or truncated:
                    env.reset()
        return timer.elapsed.per(STEPS)

    return play


def vector_env(game: str, environments: int) -> AtariVectorEnv:
    """Return ale_py's vector environment in one thread; a lost life is reported as terminated, and the game continues.

    Its `episodic_life` would reset the whole game instead.
    """
    return AtariVectorEnv(find_rom(game).stem, num_envs=environments, num_threads=1, life_loss_info=True)


def vector_loop(game: str, environments: int) -> Callable[[], Elapsed]:
    """Return a task that steps ale_py's vector environment in one thread, without snapshots."""
    env = vector_env(game, environments)
    rng = np.random.default_rng(0)
    action_count = env.single_action_space.n  # type: ignore[attr-defined]  # Discrete, but typed as Space
    env.reset(seed=0)

    def play() -> Elapsed:
        actions = rng.integers(action_count, size=(STEPS // environments, environments))
        with timed() as timer:
            for row in actions:
                env.step(row)
        return timer.elapsed.per(actions.size)

    return play


def emulator_loop(game: str) -> Callable[[], Elapsed]:
    """Return a task that runs four emulator frames per step and reads no screen."""
    ale = ale_py.ALEInterface()
    ale.loadROM(find_rom(game))
    start = ale.cloneState()  # restored at game over, because a reset takes many frames
    possible = ale.getMinimalActionSet()
    rng = np.random.default_rng(0)

    def play() -> Elapsed:
        actions = [possible[i] for i in rng.integers(len(possible), size=STEPS)]
        with timed() as timer:
            for action in actions:
                for _ in range(4):
                    ale.act(action)
                if ale.game_over():
                    ale.restoreState(start)
        return timer.elapsed.per(STEPS)

    return play


class Profile:
    """CPU seconds by part of a program; nested parts are not counted twice."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._parts = ["other"]
        self._since = time.process_time()

    def instrument(self, owner: object, method: str, part: str) -> None:
        """Count calls of `owner.method` as `part` from now on."""
        inner = getattr(owner, method)

        def instrumented(*args: Any) -> Any:
            self._add_elapsed()
            self._parts.append(part)
            try:
                return inner(*args)
            finally:
                self._add_elapsed()
                self._parts.pop()

        setattr(owner, method, instrumented)

    def restart(self) -> None:
        """Reset all counters."""
        self._add_elapsed()
        self.seconds.clear()

    def shares(self) -> dict[str, float]:
        """Return the share of each part since `restart`."""
        self._add_elapsed()
        total = sum(self.seconds.values())
        return {part: seconds / total for part, seconds in self.seconds.items()}

    def _add_elapsed(self) -> None:
        now = time.process_time()
        self.seconds[self._parts[-1]] += now - self._since
        self._since = now


def profile_solo(solo: Solo) -> Profile:
    """Instrument the parts of a solo run."""
    profile = Profile()
    profile.instrument(solo.learner, "learn", "update (including decompression)")
    profile.instrument(solo.agent, "act", "action selection")
    profile.instrument(solo.actor, "recycle", "recycling")
    for env in solo.actor.envs:
        for method in ("step", "snapshot", "reset"):
            profile.instrument(env, method, "environment")
    for method in ("insert", "sample", "update_priorities", "answer"):
        profile.instrument(solo.replay, method, "replay")
    return profile


def measure_games(report: Report) -> None:
    """Measure every game in all environments."""
    rows = []
    for game in GAMES:
        envpool = Peer(ENVPOOL, "envpool_atari.py", game, MANY)
        tasks = {
            "ours": our_loop(game),
            GYMNASIUM: gymnasium_loop(game),
            VECTOR_MANY: vector_loop(game, MANY),
            ENVPOOL_MANY: envpool.task("steps", STEPS),
            EMULATOR: emulator_loop(game),
        }
        times = interleave(tasks, REPETITIONS)
        envpool.close()
        report.record(game, times, 1e6, "microseconds")
        compare(report, game, times)
        rows.append([game, *(speed(each).show(0) for each in times.values())])
    report.table("Environment steps per CPU second, random policy (quartiles)", ("game", *times), rows)


def compare(report: Report, game: str, times: dict[str, list[Elapsed]]) -> None:
    """Compare ours with every peer; only the fastest peer has a goal."""
    peers = (GYMNASIUM, VECTOR_MANY, ENVPOOL_MANY)
    best = max(peers, key=lambda peer: speed(times[peer]).median)
    for peer in peers:
        report.compare(
            Comparison(
                work=f"{game}: environment steps, including a snapshot per step and frame compression",
                baseline=f"{peer}, without snapshots and compression",
                unit="steps per CPU second",
                ours=speed(times["ours"]),
                peer=speed(times[peer]),
                ratio=ratio(times["ours"], times[peer]),
                goal=GOAL if peer == best else None,
            )
        )


def speed(times: list[Elapsed]) -> Spread:
    """Return steps per CPU second."""
    return spread([1 / one.cpu for one in times])


def measure_solo(report: Report) -> None:
    """Measure a solo run with a full replay and updates, and gymnasium's wrappers without training."""
    solo = Solo(load_config(BREAKOUT, overrides=SOLO_OVERRIDES))
    while solo.t < SOLO_CAPACITY:
        solo.step()
    profile = profile_solo(solo)
    measured: list[dict[str, float]] = []

    def run() -> Elapsed:
        with timed() as timer:
            profile.restart()
            for _ in range(SOLO_STEPS):
                solo.step()
            measured.append(profile.shares())
        return timer.elapsed.per(SOLO_STEPS)

    times = interleave({"solo": run, "gymnasium": gymnasium_loop("Breakout")}, SOLO_REPETITIONS)
    report.record("solo", times, 1e6, "microseconds")
    speeds = {name: speed(each).show(0) for name, each in times.items()}
    rows = [["solo, one update every 4 steps", speeds["solo"], ""]]
    parts = {part for one in measured[1:] for part in one}
    shares = {part: spread([100 * one.get(part, 0.0) for one in measured[1:]]) for part in parts}
    for part, share in sorted(shares.items(), key=lambda item: -item[1].median):
        report.figures["solo"][f"share of {part}"] = share._asdict()
        rows.append([f"  {part}", "", share.show()])
    rows.append(["gymnasium's wrappers, without training", speeds["gymnasium"], ""])
    columns = ("Breakout, one thread", "steps per CPU second", "share of CPU time, %")
    report.table("A whole solo run: base `released`, batch 32, full replay", columns, rows)


def main() -> int:
    options = parse_options(__doc__)
    report = Report("atari_throughput")
    measure_games(report)
    measure_solo(report)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
