"""Resident memory of 50,000 Breakout transitions with their snapshots, played by the real actor with random actions.

Read from the operating system, so everything counts: the frames, Python's objects around them, the trees, and what the
allocators waste. Read twice: when the replay is full, and after as many transitions again, since neighbours share
frames and lose that where priorities replace one without the other. The emulator has many games behind it, as in the
middle of a long run.
"""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path

import numpy as np

from benchmarks.measure import Report, parse_options
from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.roles.actor import Actor
from dpsr_apex.roles.build import build_agent, build_env

TRANSITIONS = 50_000
WARM_UP = 600  # transitions, into a replay of half that capacity
PLAIN = 2 * 4 * 84 * 84 + 7_770  # bytes of a transition in plain arrays: two stacks of four frames, one snapshot
WEAR = 700  # games before the first transition is counted
GOAL = 150e6  # bytes of resident growth

# The greatest replacing exponent and the fewest candidates of the paper: what scatters neighbours most.
OVERRIDES = (
    "replay.method=double",
    f"replay.capacity={TRANSITIONS}",
    "replay.replacing_exponent=0.6",
    "replay.replace_candidates=128",
    "actor.exploration=1.0",
)

PHASES = ("replay filled", "as many again, replacing by priority")


def resident() -> int:
    """Bytes of this process in memory now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def play(actor: Actor, replay: DpsrReplay, count: int, rng: np.random.Generator) -> None:
    """Insert `count` transitions, with priorities as widely spread as a lognormal of sigma 2 gives them."""
    for _ in range(count):
        insert = actor.step()
        assert insert
        replay.insert(insert.transitions, rng.lognormal(-3.0, 2.0, len(insert.transitions)))


def stored_pieces(replay: DpsrReplay) -> tuple[int, int]:
    """How many different frames and snapshots are held, and the bytes of their content."""
    stored = replay.read(replay.identities)
    stacks = (*stored.s_tm1, *stored.s_t, stored.snapshots)
    pieces = {id(piece): len(piece) for stack in stacks for piece in stack}
    return len(pieces), sum(pieces.values())


def make_actor(config: Config) -> Actor:
    """Plays at random: its network is made, but never asked."""
    env = build_env(config, seed=0, training=True)
    return Actor(config, build_agent(config, env, seed=0), [env], None, np.random.default_rng(0))


def make_replay(config: Config, rng: np.random.Generator) -> DpsrReplay:
    return DpsrReplay(config.replay, config.run.total_steps, rng)


def wear(actor: Actor) -> None:
    """Start so many games that nothing of the emulator's first one is left."""
    env = actor.envs[0]
    for seed in range(WEAR):
        env.env.reset(seed=seed)
    env.reset()


def measure() -> dict[str, dict[str, int]]:
    """Insert as many transitions as there is room for, once for each phase; the figures after each."""
    rng = np.random.default_rng(1)
    config = load_config("atari/breakout", overrides=OVERRIDES)
    actor = make_actor(config)
    wear(actor)
    small = load_config("atari/breakout", overrides=[*OVERRIDES, f"replay.capacity={WARM_UP // 2}"])
    play(actor, make_replay(small, rng), WARM_UP, rng)

    before = resident()
    replay = make_replay(config, rng)
    figures = {}
    for phase in PHASES:
        play(actor, replay, TRANSITIONS, rng)
        growth = resident() - before
        pieces, content = stored_pieces(replay)
        figures[phase] = {"resident_growth": growth, "pieces": pieces, "content": content}
    return figures


def row(words: str, figures: dict[str, int]) -> list[str]:
    growth = figures["resident_growth"]
    sizes = [f"{growth / 1e6:,.1f}", f"{growth / TRANSITIONS:,.0f}", f"{PLAIN * TRANSITIONS / growth:.1f}"]
    return [words, *sizes, f"{figures['pieces']:,}", f"{figures['content'] / 1e6:,.1f}"]


def main() -> int:
    options = parse_options(__doc__)
    report = Report("memory")
    report.figures |= measure()
    rows = [row(words, figures) for words, figures in report.figures.items()]
    rows.append(["plain uint8 arrays (computed)", f"{PLAIN * TRANSITIONS / 1e6:,.1f}", f"{PLAIN:,}", "1.0", "", ""])
    columns = ("", "resident growth, MB", "bytes each", "times smaller", "frames and snapshots held", "their bytes, MB")
    report.table(f"{TRANSITIONS:,} Breakout transitions with snapshots", columns, rows)
    for words, figures in report.figures.items():
        growth = figures["resident_growth"]
        report.goal(f"{words}: under {GOAL / 1e6:.0f} MB of resident growth: {growth / 1e6:.1f} MB", growth < GOAL)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
