"""Reverb over sockets: its server, a writer of recorded steps, or a reader of batches, each in its own process.

Runs in the peers' environment; the first argument selects the role. Prints "ready" once it is set up; then reads one
command per line and prints one answer per line:

- `server CAPACITY`: "port" returns its port.
- `writer PORT FILE CHUNK`: "count N" stores N transitions, "seconds S" as many as possible in that time; the answer is
  the number stored and the wall seconds taken.
- `reader PORT BATCH IN_FLIGHT`: "seconds S" reads as many batches as possible; the answer is as for the writer.

Written as Reverb's documentation recommends for stacked frames: every frame is appended once, an item is two slices of
four frames, and the dataset's workers prefetch. Priorities are not updated.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

STACK = 4
TABLE = "replay"
MAX_UNCONFIRMED = 40  # items; the writer waits beyond that


class Server:
    """A server with a table that samples by priority and removes the oldest item, as for DQN."""

    def __init__(self, capacity: str) -> None:
        import reverb
        import tensorflow as tf

        stacked = tf.TensorSpec((STACK, 84, 84), tf.uint8)
        table = reverb.Table(
            TABLE,
            sampler=reverb.selectors.Prioritized(0.6),
            remover=reverb.selectors.Fifo(),
            max_size=int(capacity),
            rate_limiter=reverb.rate_limiters.MinSize(1_000),
            signature={
                "s_tm1": stacked,
                "s_t": stacked,
                "action": tf.TensorSpec((), tf.int64),
                "reward": tf.TensorSpec((), tf.float32),
                "terminal": tf.TensorSpec((), tf.bool),
            },
        )
        self._server = reverb.Server([table])

    def answer(self, command: str) -> str:
        """Return the port, the only supported command."""
        assert command == "port"
        return str(self._server.port)


class Writer:
    """Appends recorded steps repeatedly, and creates an item for every step with two complete stacks."""

    def __init__(self, port: str, file: str, chunk: str) -> None:
        import reverb

        recorded = np.load(file)
        self._steps = list(zip(*(recorded[name] for name in ("frames", "actions", "rewards", "ends")), strict=True))
        self._priorities = recorded["priorities"].tolist()
        self._next = 0
        self._episode_steps = 0
        keep = max(int(chunk), STACK + 1)
        self._writer = reverb.Client(f"localhost:{port}").trajectory_writer(num_keep_alive_refs=keep)
        for column in ("frame", "action", "reward", "terminal"):
            self._writer.configure((column,), num_keep_alive_refs=keep, max_chunk_length=int(chunk))

    def answer(self, command: str) -> str:
        """Write a number of steps ("count N"), or for some time ("seconds S")."""
        unit, amount = command.split()
        started, steps = time.perf_counter(), 0
        while steps < int(amount) if unit == "count" else time.perf_counter() - started < float(amount):
            self._append()
            steps += 1
        seconds = time.perf_counter() - started
        self._writer.flush()
        return f"{steps} {seconds}"

    def _append(self) -> None:
        """Append one step. The first steps of an episode count as transitions although they create no item."""
        frame, action, reward, ends = self._steps[self._next % len(self._steps)]
        self._writer.append({"frame": frame, "action": action, "reward": reward, "terminal": ends})
        self._next += 1
        self._episode_steps += 1
        if self._episode_steps > STACK:
            history = self._writer.history
            trajectory = {
                "s_tm1": history["frame"][-STACK - 1 : -1],
                "s_t": history["frame"][-STACK:],
                "action": history["action"][-1],
                "reward": history["reward"][-1],
                "terminal": history["terminal"][-1],
            }
            self._writer.create_item(TABLE, self._priorities[self._next % len(self._priorities)], trajectory)
            self._writer.flush(block_until_num_items=MAX_UNCONFIRMED)
        if ends:
            self._writer.end_episode()
            self._episode_steps = 0


class Reader:
    """Reads batches from a dataset, as arrays."""

    def __init__(self, port: str, batch_size: str, in_flight: str) -> None:
        import reverb
        import tensorflow as tf

        dataset = reverb.TrajectoryDataset.from_table_signature(
            f"localhost:{port}", TABLE, max_in_flight_samples_per_worker=int(in_flight)
        )
        options = tf.data.Options()
        options.autotune.enabled = True
        self._dataset = dataset.batch(int(batch_size), drop_remainder=True).prefetch(2).with_options(options)
        self._batches: Iterator[Any] | None = None

    def answer(self, command: str) -> str:
        """Read for some time ("seconds S")."""
        if self._batches is None:  # created late, because the table is empty at first
            self._batches = iter(self._dataset.as_numpy_iterator())
            next(self._batches)
        seconds = float(command.split()[1])
        started, batches = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            next(self._batches)
            batches += 1
        return f"{batches} {time.perf_counter() - started}"


def main() -> None:
    role, *arguments = sys.argv[1:]
    worker = {"server": Server, "writer": Writer, "reader": Reader}[role](*arguments)
    print("ready", flush=True)
    for line in sys.stdin:
        print(worker.answer(line.strip()), flush=True)
    os._exit(0)  # Reverb's threads may wait for a server that has ended


if __name__ == "__main__":
    main()
