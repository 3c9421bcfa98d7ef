"""Resident memory of Reverb's server that holds recorded pictures as stacked transitions.

Runs in the peers' own environment, with a folder of recorded steps and the longest chunk (steps) as arguments. Says
"ready" once the server listens; then every line of its input is how many transitions to store, and every line of its
output the bytes that the server's process grew by. The writer is a process of its own and has ended by then.

Written as Reverb's documentation advises for stacked frames: every frame is appended once, and an item is two slices of
four frames, which share their chunks.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

STACK = 4
WARM_UP = 200  # transitions
IN_FLIGHT = 45  # items that are not confirmed yet: with fewer, chunks are cut short; with more, it warns


def write(port: str, folder: Path, chunk: int, count: int) -> None:
    """Append so many recorded steps, and make an item of every transition that has both its stacks."""
    import reverb

    frames = np.memmap(folder / "frames", np.uint8, "r").reshape(-1, 84, 84)
    steps = np.fromfile(folder / "steps", np.float32).reshape(-1, 3)
    of_episode = 0
    client = reverb.Client(f"localhost:{port}")
    with client.trajectory_writer(num_keep_alive_refs=max(chunk, STACK + 1)) as writer:
        for column in ("frame", "action", "reward", "terminal"):
            writer.configure((column,), num_keep_alive_refs=max(chunk, STACK + 1), max_chunk_length=chunk)
        for frame, (action, reward, terminal) in zip(frames[:count], steps[:count], strict=True):
            writer.append({"frame": np.array(frame), "action": action, "reward": reward, "terminal": terminal})
            of_episode += 1
            if of_episode > STACK:
                writer.create_item("replay", 1.0, newest(writer.history))
                writer.flush(block_until_num_items=IN_FLIGHT)
            if terminal:
                writer.end_episode()
                of_episode = 0


def newest(history: dict[str, Any]) -> dict[str, Any]:
    """The transition between the last two steps."""
    columns = {name: history[name][-2] for name in ("action", "reward", "terminal")}
    frames = history["frame"]
    return columns | {"s_tm1": frames[-STACK - 1 : -1], "s_t": frames[-STACK:]}


def resident() -> int:
    """Bytes of this process in memory now, without what its allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def serve(folder: str, chunk: str) -> None:
    """Store what is asked for, and answer with what it takes."""
    import reverb

    table = reverb.Table(
        "replay", reverb.selectors.Prioritized(0.6), reverb.selectors.Fifo(), 1_000_000, reverb.rate_limiters.MinSize(1)
    )
    server = reverb.Server([table])
    writer = [sys.executable, "-P", __file__, "write", str(server.port), folder, chunk]
    subprocess.run([*writer, str(WARM_UP)], check=True)
    print("ready", flush=True)
    for line in sys.stdin:
        before = resident()
        subprocess.run([*writer, line.strip()], check=True)
        print(resident() - before, flush=True)


def main() -> None:
    if sys.argv[1] == "write":
        port, folder, chunk, count = sys.argv[2:]
        write(port, Path(folder), int(chunk), int(count))
    else:
        serve(*sys.argv[1:])


if __name__ == "__main__":
    main()
