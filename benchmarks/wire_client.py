"""A client process for `benchmarks/wire_costs.py` that sends requests of a given size to a server.

`python -m benchmarks.wire_client ENDPOINT BYTES COUNT [KEY_FILE]`; it imports neither torch nor an emulator.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import numpy as np

from dpsr_apex.wire.keys import load_keys
from dpsr_apex.wire.messages import ACTOR
from dpsr_apex.wire.sockets import ClientSocket, wait

IN_FLIGHT = 4  # requests without a response


def send_requests(client: ClientSocket, request: bytes, count: int) -> None:
    """Send `count` requests, at most `IN_FLIGHT` at a time, and a last message when all responses have arrived."""
    sent = received = 0
    while received < count:
        while sent < min(received + IN_FLIGHT, count) and client.send([request]):
            sent += 1
        wait([client], 0.1 if sent else 0.001)
        while client.receive() is not None:
            received += 1
    client.send([b"done"])


if __name__ == "__main__":
    endpoint, size, count, *key_file = sys.argv[1:]
    keys = load_keys(Path(key_file[0]), ACTOR) if key_file else None
    with closing(ClientSocket(endpoint, keys)) as client:
        send_requests(client, np.random.default_rng(0).bytes(int(size)), int(count))
