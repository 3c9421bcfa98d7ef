"""Steps a second on one core: our environment beside gymnasium's and ale_py's own, and a whole solo run with learning.

Ours takes a snapshot at every step and squeezes every frame, as an actor does; the peers do neither. All play at
random, skip four frames, show 84x84 grey in stacks of four, begin with up to 30 no-ops and end with a life. ale_py's
vector environment has one thread: with one game, as ours, and with as many as pay. Four frames of the emulator and
nothing else are measured, too: nobody who plays with it can be faster.
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

from benchmarks.measure import Comparison, Elapsed, Report, Spread, interleave, parse_options, ratio, spread, timed
from dpsr_apex.config_files import load_config
from dpsr_apex.envs.atari import find_rom
from dpsr_apex.envs.make import make_stacked
from dpsr_apex.run.solo import Solo

GAMES = ("Breakout", "Pong", "SpaceInvaders")
STEPS = 1_000  # of one repetition
REPETITIONS = 5
MANY = 32  # games of the larger vector environment; 64, 128, or a second thread gained nothing on Pong
GOAL = 1.4
SOLO_STEPS = 500  # of one repetition: 125 updates and one recycling round
SOLO_REPETITIONS = 3  # nothing is compared with it
SOLO_CAPACITY = 3_000  # transitions; filled before anything is timed

SOLO_OVERRIDES = (
    "env.name=Breakout",
    f"replay.capacity={SOLO_CAPACITY}",
    f"learner.learning_starts={SOLO_CAPACITY}",
    "actor.exploration=0.01",
    "run.threads=1",
)

GYMNASIUM = "gymnasium's AtariPreprocessing and FrameStackObservation"
VECTOR_ONE = "ale_py's AtariVectorEnv, one game"
VECTOR_MANY = f"ale_py's AtariVectorEnv, {MANY} games"
EMULATOR = "the emulator's frames alone"


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


def vector_loop(game: str, games: int) -> Callable[[], Elapsed]:
    """ale_py's own environment in one thread, without snapshots; a step is one game's."""
    env = AtariVectorEnv(find_rom(game).stem, num_envs=games, num_threads=1, episodic_life=True)
    rng = np.random.default_rng(0)
    actions_of_game = env.single_action_space.n  # type: ignore[attr-defined]  # Discrete, which Space does not say
    env.reset(seed=0)

    def play() -> Elapsed:
        actions = rng.integers(actions_of_game, size=(STEPS // games, games))
        with timed() as timer:
            for chosen in actions:
                env.step(chosen)
        return timer.elapsed.per(actions.size)

    return play


def emulator_loop(game: str) -> Callable[[], Elapsed]:
    """Four frames a step, at which nobody looks."""
    ale = ale_py.ALEInterface()
    ale.loadROM(find_rom(game))
    start = ale.cloneState()  # re-entered when a game ends, since a reset takes many frames
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
    """Every game in all environments."""
    rows = []
    for game in GAMES:
        works = {
            "ours": our_loop(game),
            GYMNASIUM: gymnasium_loop(game),
            VECTOR_ONE: vector_loop(game, 1),
            VECTOR_MANY: vector_loop(game, MANY),
            EMULATOR: emulator_loop(game),
        }
        times = interleave(works, REPETITIONS)
        report.record(game, times, 1e6, "microseconds")
        compare(report, game, times)
        rows.append([game, *(speed(taken).show(0) for taken in times.values())])
    report.table("Environment steps per CPU second, random policy (quartiles)", ("game", *times), rows)


def compare(report: Report, game: str, times: dict[str, list[Elapsed]]) -> None:
    """Ours beside every peer; the goal is set by the fastest."""
    peers = (GYMNASIUM, VECTOR_ONE, VECTOR_MANY)
    best = max(peers, key=lambda peer: speed(times[peer]).median)
    for peer in peers:
        report.compare(
            Comparison(
                work=f"{game}: environment steps, a snapshot at every one and all frames squeezed included",
                beside=f"{peer}, neither included",
                unit="steps per CPU second",
                ours=speed(times["ours"]),
                peer=speed(times[peer]),
                ratio=ratio(times["ours"], times[peer]),
                goal=GOAL if peer == best else None,
            )
        )


def speed(times: list[Elapsed]) -> Spread:
    """Steps per CPU second."""
    return spread([1 / one.cpu for one in times])


def measure_solo(report: Report) -> None:
    """Solo with learning on, its replay full, beside gymnasium's bare loop."""
    solo = Solo(load_config("breakout_short", base="released", overrides=SOLO_OVERRIDES))
    while solo.t < SOLO_CAPACITY:
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
