"""Sizes of real messages of Breakout, and the CPU time of a server per megabyte with and without keys.

Takes a minute. The real actor plays one-step and three-step (Ape-X) transitions at random; batches are sampled from a
replay of all of them with synthetic priorities. Sizes are those of the frames passed to ZeroMQ, without the overhead of
ZeroMQ and TCP.

For the CPU time, messages of these sizes are sent through the project's sockets on this machine: chunks to the server,
batches and weights from it. Only the server process is timed, all its threads included.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.measure import Elapsed, Report, interleave, parse_options, spread, timed
from benchmarks.replay_head import configure
from dpsr_apex.agent.protocol import Agent
from dpsr_apex.config import Config
from dpsr_apex.processes.weights import pack_weights
from dpsr_apex.protocol.conversions import batch_message
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.transitions import Transitions, concatenate
from dpsr_apex.roles.actor import Actor
from dpsr_apex.roles.build import build_agent, build_env
from dpsr_apex.wire.codec import encode
from dpsr_apex.wire.keys import load_keys, make_keys
from dpsr_apex.wire.messages import ACTOR, SERVER, Acknowledged, Chunk, Message, Priorities, Weights
from dpsr_apex.wire.sockets import Received, ServerSocket, wait

TRANSITIONS = 20_000  # played and stored in the replay
BATCH = 512
BATCHES = 20
N_STEPS = (1, 3)
REPETITIONS = 5
SMALL = 10  # bytes of a request or an acknowledgement
MEGABYTE = 1e6


def size_of(message: Message) -> int:
    """Return the size of a message's frames in bytes."""
    return sum(map(len, encode(message)))


class Sizes(NamedTuple):
    """Mean size of each message in bytes."""

    transition: float  # its share of a chunk
    chunk: float
    batch: float
    weights: float  # of one network
    priorities: float  # of a batch
    acknowledgement: float


def play(config: Config, actor: Actor) -> Iterator[Transitions]:
    """Yield chunks of random play."""
    played: list[Transitions] = []
    while True:
        if collected := actor.step():
            played.append(collected.transitions)
        if sum(map(len, played)) >= config.system.chunk:
            yield concatenate(played)
            played = []


def measure_sizes(n_steps: int) -> Sizes:
    """Measure the sizes of messages with `n_steps`-step transitions."""
    config = configure(TRANSITIONS, BATCH)
    config = replace(config, actor=replace(config.actor, n_steps=n_steps))
    env = build_env(config, seed=0, training=True)
    agent = build_agent(config, env, seed=0)
    chunks = play(config, Actor(config, agent, [env], None, np.random.default_rng(0)))
    replay = Replay(config.replay, config.run.total_steps, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    sizes: list[tuple[int, int]] = []  # bytes and transitions of each chunk
    while replay.size < TRANSITIONS:
        transitions = next(chunks)
        errors = rng.lognormal(-3.0, 2.0, len(transitions))
        chunk = Chunk(len(sizes), transitions, errors, np.zeros(0), np.zeros(0, dtype=np.int64), 0.0)
        sizes.append((size_of(chunk), len(transitions)))
        replay.insert(transitions, errors)
    env.close()
    chunk_bytes, rows = np.mean(sizes, axis=0).tolist()
    return Sizes(chunk_bytes / rows, chunk_bytes, *_others(replay, agent))


def _others(replay: Replay, agent: Agent) -> tuple[float, float, float, float]:
    """Return the bytes of a batch, of one network's weights, of a batch's priorities and of an acknowledgement."""
    sizes = [size_of(batch_message(replay.sample(BATCH), replay.t, era=1 << 60)) for _ in range(BATCHES)]
    identities = np.arange(BATCH)
    return (
        float(np.mean(sizes)),
        size_of(Weights(1, 1, 1, 1, pack_weights(agent.weights("online")), None)),
        size_of(Priorities(1 << 60, identities, identities.astype(np.float64))),
        size_of(Acknowledged(1 << 20, 1 << 20, 1 << 20, 200, 0)),
    )


class Traffic(NamedTuple):
    """Requests to a server and its responses."""

    request: int  # bytes
    response: int  # bytes
    repetitions: int

    @property
    def megabytes(self) -> float:
        """Total size of all requests and responses."""
        return (self.request + self.response) * self.repetitions / MEGABYTE


@contextmanager
def client_process(server: ServerSocket, traffic: Traffic, key_file: Path | None) -> Iterator[None]:
    """Run a client in its own process inside the block."""
    arguments = [server.endpoint, traffic.request, traffic.repetitions, *([key_file] if key_file else [])]
    client = subprocess.Popen([sys.executable, "-m", "benchmarks.wire_client", *map(str, arguments)])
    try:
        yield
        client.wait()
    finally:
        client.kill()
        client.wait()


def next_request(server: ServerSocket) -> Received:
    """Wait for the next request and return it."""
    while (received := server.receive()) is None:
        wait([server], 0.1)
    return received


def serve(traffic: Traffic, keys: Path | None) -> Elapsed:
    """Return the server's seconds per megabyte, from the first request until the last response has arrived.

    `keys` is the folder of the key files.
    """
    response = np.random.default_rng(0).bytes(traffic.response)
    server_keys, key_file = (load_keys(keys / "server.key", SERVER), keys / "actor.key") if keys else (None, None)
    socket = ServerSocket("tcp://127.0.0.1:0", server_keys, accepted=[ACTOR])
    with closing(socket) as server, client_process(server, traffic, key_file):
        client = next_request(server).sender
        with timed() as timer:
            for _ in range(traffic.repetitions):  # few responses are in flight at a time, so the queue is never full
                server.send(client, [response])
                next_request(server)
    return Elapsed(*(seconds / traffic.megabytes for seconds in timer.elapsed))


def measure_keys(report: Report, sizes: Sizes) -> None:
    """Measure CPU and wall milliseconds per megabyte, with and without keys in turn."""
    traffic = {
        "chunks in": Traffic(round(sizes.chunk), SMALL, 2_000),
        "batches out": Traffic(SMALL, round(sizes.batch), 150),
        "weights out": Traffic(SMALL, round(sizes.weights), 50),
    }
    with tempfile.TemporaryDirectory() as folder:
        make_keys(Path(folder))
        for name, one in traffic.items():
            tasks = {"without keys": partial(serve, one, None), "with keys": partial(serve, one, Path(folder))}
            times = interleave(tasks, REPETITIONS)
            report.record(name, times, 1e3, "milliseconds per megabyte")
            row = [spread([1e3 * time.cpu for time in times[task]]).show(2) for task in tasks]
            report.table(f"CPU ms per megabyte: {name}", list(tasks), [row])


def main() -> int:
    options = parse_options(__doc__)
    report = Report("wire_costs")
    sizes = {n_steps: measure_sizes(n_steps) for n_steps in N_STEPS}
    report.figures["bytes"] = {f"{n_steps} steps": size._asdict() for n_steps, size in sizes.items()}
    rows = [[name, *(f"{getattr(size, name):,.0f}" for size in sizes.values())] for name in Sizes._fields]
    report.table("bytes", ("message", *(f"{n_steps} steps" for n_steps in N_STEPS)), rows)
    measure_keys(report, sizes[max(N_STEPS)])
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
