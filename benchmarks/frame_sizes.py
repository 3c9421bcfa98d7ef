"""Bytes of compressed frames and snapshots, and of a stored transition, of different Atari games under random play.

The sizes of the content are exact. A transition is counted as `dpsr-apex train` predicts it for a replay process: with
its slot and all overhead of Python objects, which `memory` and `replay_traffic` compare with real processes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.measure import Report, parse_options
from dpsr_apex.config_files import load_config
from dpsr_apex.roles.build import build_env
from dpsr_apex.roles.memory import estimate_memory, measure_sizes

GAMES = (
    *("Breakout", "Pong", "Freeway", "Enduro", "SpaceInvaders", "KungFuMaster"),
    *("MsPacman", "Seaquest", "Qbert", "BeamRider", "MontezumaRevenge", "VideoPinball"),
)
STEPS = 2_000  # of each game
FRAME = 84 * 84  # bytes, uncompressed
HEADER = ("game", "compressed frame", "snapshot", "stored transition", "compression")
COLUMNS = ("frame", "snapshot", "transition")


def measure(game: str) -> dict[str, float]:
    """Return the mean bytes of a compressed frame, of a snapshot, and of a transition in a replay process."""
    config = load_config("atari/breakout", overrides=[f"env.name={game}", "replay.method=double", "system.actors=1"])
    env = build_env(config, seed=0, training=True)
    rng = np.random.default_rng(0)
    frames, snapshots = [], []
    for action in rng.integers(env.actions, size=STEPS).tolist():
        snapshots.append(env.snapshot())
        step = env.step(action)
        frames.append(env.stack[-1])
        if step.terminal or step.truncated:
            env.reset()
    env.close()
    sizes = measure_sizes(env.observation_shape, frames, snapshots)
    return {
        "frame": _mean(frames),
        "snapshot": _mean(snapshots),
        "transition": estimate_memory(config, sizes).transition,
    }


def _mean(pieces: Sequence[bytes]) -> float:
    return sum(map(len, pieces)) / len(pieces)


def rows_of(sizes: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Return the rows of the table, the smallest transitions first."""
    ordered = sorted(sizes.items(), key=lambda item: item[1]["transition"])
    return [
        [game, *(f"{found[column]:,.0f}" for column in COLUMNS), f"{FRAME / found['frame']:.1f}"]
        for game, found in ordered
    ]


def main() -> int:
    options = parse_options(__doc__)
    report = Report("frame_sizes")
    sizes = {game: measure(game) for game in GAMES}
    report.figures["bytes"] = sizes
    report.table(f"Bytes under random play, {STEPS:,} steps of each game", HEADER, rows_of(sizes))
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
