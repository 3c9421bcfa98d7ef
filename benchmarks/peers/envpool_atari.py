"""EnvPool's Atari environments in one thread: time of a number of steps.

Runs in the peers' environment: `envpool_atari.py GAME ENVIRONMENTS`. Prints "ready" once it is set up; then reads a
task and a count of steps per line, and prints the CPU and wall seconds that they took.

The settings are the paper's preprocessing: four frames skipped, 84x84 grey frames in stacks of four, up to 30 no-ops,
FIRE after a reset. `episodic_life` is off, which is less work. It takes no snapshots and compresses nothing.
"""

from __future__ import annotations

import gc
import sys
import time

import envpool
import numpy as np


def main() -> None:
    game, environments = sys.argv[1], int(sys.argv[2])
    env = envpool.make(
        f"{game}-v5",
        env_type="gymnasium",
        num_envs=environments,
        num_threads=1,
        seed=0,
        reward_clip=True,
        episodic_life=False,
        max_episode_steps=27_000,
    )
    env.reset()
    rng = np.random.default_rng(0)
    print("ready", flush=True)
    for line in sys.stdin:
        _, count = line.split()
        actions = rng.integers(env.action_space.n, size=(int(count) // environments, environments))
        gc.collect()
        gc.disable()  # as in our own measurement
        cpu, wall = time.process_time(), time.perf_counter()
        for row in actions:
            env.step(row)
        scale = int(count) / actions.size
        print((time.process_time() - cpu) * scale, (time.perf_counter() - wall) * scale, flush=True)
        gc.enable()


if __name__ == "__main__":
    main()
