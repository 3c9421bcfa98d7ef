"""Resident memory of tianshou's replay with recorded frames, saving single frames and stacking them on demand.

Runs in the peers' environment, with a folder of recorded steps as its argument. Prints "ready" once it is set up; then
reads a number of transitions to store per line, and prints the bytes by which the process grew.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from pathlib import Path

import numpy as np

WARM_UP = 200  # transitions


def fill(folder: Path, count: int) -> object:
    """Return a replay filled with `count` recorded steps."""
    from tianshou.data import Batch, ReplayBuffer

    replay = ReplayBuffer(count, stack_num=4, ignore_obs_next=True, save_only_last_obs=True)
    with (folder / "frames").open("rb") as frames:
        for action, reward, terminal in np.fromfile(folder / "steps", np.float32).reshape(-1, 3)[:count]:
            stack = np.frombuffer(frames.read(84 * 84), np.uint8).reshape(1, 84, 84)
            step = Batch(obs=stack, obs_next=stack, act=action, rew=reward, info={})
            step.terminated, step.truncated = terminal, np.False_
            replay.add(step)
    return replay


def resident() -> int:
    """Return the resident memory of this process in bytes, after returning free memory to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    folder = Path(sys.argv[1])
    fill(folder, WARM_UP)
    print("ready", flush=True)
    for line in sys.stdin:
        before = resident()
        replay = fill(folder, int(line))
        print(resident() - before, flush=True)
        del replay


if __name__ == "__main__":
    main()
