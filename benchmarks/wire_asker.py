"""A client that asks a server again and again, in a process of its own: for `benchmarks/wire_costs.py`.

`python -m benchmarks.wire_asker ENDPOINT BYTES TIMES [KEY_FILE]`; it loads neither torch nor an emulator.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import numpy as np

from dpsr_apex.wire.keys import load_client_keys
from dpsr_apex.wire.sockets import Client, wait

AHEAD = 4  # questions that it asks before it waits


def ask(client: Client, question: bytes, times: int) -> None:
    """Keep some questions open until all are answered, and say so."""
    asked = answered = 0
    while answered < times:
        while asked < min(answered + AHEAD, times) and client.send([question]):
            asked += 1
        wait([client], 0.1 if asked else 0.001)
        while client.receive() is not None:
            answered += 1
    client.send([b"all are here"])


if __name__ == "__main__":
    endpoint, size, times, *key_file = sys.argv[1:]
    keys = load_client_keys(Path(key_file[0])) if key_file else None
    with closing(Client(endpoint, keys)) as client:
        ask(client, np.random.default_rng(0).bytes(int(size)), int(times))
