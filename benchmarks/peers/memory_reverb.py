"""Resident memory of a Reverb server that stores recorded frames as stacked transitions.

Runs in the peers' environment, with a folder of recorded steps and the maximum chunk length (steps) as arguments.
Prints "ready" once the server listens; then reads a number of transitions to store per line, and prints the bytes by
which the server process grew. The writer is a separate process that has ended by then.

Written as Reverb's documentation recommends for stacked frames: every frame is appended once, and an item is two slices
of four frames that share their chunks.
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
IN_FLIGHT = 45  # unconfirmed items: with fewer, chunks are shorter; with more, Reverb warns


def write(port: str, folder: Path, chunk: int, count: int) -> None:
    """Append `count` recorded steps, and create an item for every transition with two complete stacks."""
    import reverb

    frames = np.memmap(folder / "frames", np.uint8, "r").reshape(-1, 84, 84)
    steps = np.fromfile(folder / "steps", np.float32).reshape(-1, 3)
    episode_steps = 0
    client = reverb.Client(f"localhost:{port}")
    with client.trajectory_writer(num_keep_alive_refs=max(chunk, STACK + 1)) as writer:
        for column in ("frame", "action", "reward", "terminal"):
            writer.configure((column,), num_keep_alive_refs=max(chunk, STACK + 1), max_chunk_length=chunk)
        for frame, (action, reward, terminal) in zip(frames[:count], steps[:count], strict=True):
            writer.append({"frame": np.array(frame), "action": action, "reward": reward, "terminal": terminal})
            episode_steps += 1
            if episode_steps > STACK:
                writer.create_item("replay", 1.0, newest(writer.history))
                writer.flush(block_until_num_items=IN_FLIGHT)
            if terminal:
                writer.end_episode()
                episode_steps = 0


def newest(history: dict[str, Any]) -> dict[str, Any]:
    """Return the transition between the last two steps."""
    columns = {name: history[name][-2] for name in ("action", "reward", "terminal")}
    frames = history["frame"]
    return columns | {"s_tm1": frames[-STACK - 1 : -1], "s_t": frames[-STACK:]}


def resident() -> int:
    """Return the resident memory of this process in bytes, after returning free memory to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def serve(folder: str, chunk: str) -> None:
    """Store the requested numbers of transitions and print the memory that they take."""
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
