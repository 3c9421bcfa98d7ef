"""Bytes of real messages of Breakout, and the CPU time that a server spends on a megabyte with keys and without.

Takes a minute. Transitions are played at random by the real actor, one-step ones and Ape-X's three-step ones; batches
are drawn from a replay that holds them all, by priorities that are made up. What is counted are the frames that are
handed to ZeroMQ, without its own few bytes and those of TCP.

For the CPU time messages of the same sizes go through the project's own sockets on this machine: chunks come to the
server, batches and weights leave it. Only the server's process is timed, all its threads included.
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
from benchmarks.replay_traffic import configure
from dpsr_apex.agent.dqn import DqnAgent
from dpsr_apex.config import Config
from dpsr_apex.processes.weights import squeeze_weights
from dpsr_apex.replay.memory import DpsrReplay
from dpsr_apex.replay.transitions import Transitions, concatenate
from dpsr_apex.roles.actor import Actor
from dpsr_apex.roles.build import build_agent, build_env
from dpsr_apex.roles.replay_server import ReplayServer
from dpsr_apex.wire.codec import encode
from dpsr_apex.wire.keys import CLIENT_FILE, load_server_keys, make_keys
from dpsr_apex.wire.messages import Acknowledged, Chunk, Message, Priorities, SampleRequest, Weights
from dpsr_apex.wire.sockets import Received, Server, wait

TRANSITIONS = 20_000  # played, and held by the replay
BATCH = 512
BATCHES = 20
N_STEPS = (1, 3)
REPETITIONS = 5
AHEAD = 4
SMALL = 10  # bytes of a question or an acknowledgement
MEGABYTE = 1e6


def size_of(message: Message) -> int:
    """Bytes of its frames."""
    return sum(map(len, encode(message)))


class Sizes(NamedTuple):
    """Bytes of one message each, as means."""

    transition: float  # in a chunk
    chunk: float
    batch: float
    weights: float  # of one network
    priorities: float  # of a batch
    acknowledgement: float


def play(config: Config, actor: Actor) -> Iterator[Transitions]:
    """Chunks of random play."""
    played: list[Transitions] = []
    while True:
        if insert := actor.step():
            played.append(insert.transitions)
        if sum(map(len, played)) >= config.system.chunk:
            yield concatenate(played)
            played = []


def measure_sizes(n_steps: int) -> Sizes:
    """Of messages with transitions of so many steps."""
    config = configure(TRANSITIONS, BATCH)
    config = replace(config, actor=replace(config.actor, n_steps=n_steps))
    env = build_env(config, seed=0, training=True)
    agent = build_agent(config, env, seed=0)
    chunks = play(config, Actor(config, agent, [env], None, np.random.default_rng(0)))
    replay = DpsrReplay(config.replay, config.run.total_steps, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    sizes: list[tuple[int, int]] = []  # bytes and transitions of each chunk
    while replay.size < TRANSITIONS:
        transitions = next(chunks)
        errors = rng.lognormal(-3.0, 2.0, len(transitions))
        chunk = Chunk(len(sizes), transitions, errors, np.zeros(0), np.zeros(0, dtype=np.int64))
        sizes.append((size_of(chunk), len(transitions)))
        replay.insert(transitions, errors)
    env.close()
    chunk_bytes, rows = np.mean(sizes, axis=0).tolist()
    return Sizes(chunk_bytes / rows, chunk_bytes, *_others(ReplayServer(replay, config), agent))


def _others(server: ReplayServer, agent: DqnAgent) -> tuple[float, float, float, float]:
    """Bytes of a batch, of the weights of one network, of a batch's priorities and of an acknowledgement."""
    batches = [server.sample(SampleRequest(BATCH)) for _ in range(BATCHES)]
    sizes = [size_of(batch) for batch in batches if batch]
    names = np.arange(BATCH)
    return (
        float(np.mean(sizes)),
        size_of(Weights(1, 1, 1, squeeze_weights(agent.weights("online")), None)),
        size_of(Priorities(1 << 60, names, names.astype(np.float64))),
        size_of(Acknowledged(1 << 20, 1 << 20)),
    )


class Traffic(NamedTuple):
    """Questions to a server and its answers."""

    question: int  # bytes
    answer: int  # bytes
    rounds: int

    @property
    def megabytes(self) -> float:
        """Of all of it."""
        return (self.question + self.answer) * self.rounds / MEGABYTE


@contextmanager
def asking(server: Server, traffic: Traffic, key_file: Path | None) -> Iterator[None]:
    """A client in a process of its own, while inside."""
    words = [server.endpoint, traffic.question, traffic.rounds, *([key_file] if key_file else [])]
    client = subprocess.Popen([sys.executable, "-m", "benchmarks.wire_asker", *map(str, words)])
    try:
        yield
        client.wait()
    finally:
        client.kill()
        client.wait()


def next_question(server: Server) -> Received:
    """Wait for it."""
    while (received := server.receive()) is None:
        wait([server], 0.1)
    return received


def serve(traffic: Traffic, keys: Path | None) -> Elapsed:
    """Seconds of the server for a megabyte, from the first question until the last answer has arrived.

    `keys` is a folder that holds them.
    """
    answer = np.random.default_rng(0).bytes(traffic.answer)
    own, key_file = (load_server_keys(keys), keys / CLIENT_FILE) if keys else (None, None)
    with closing(Server("tcp://127.0.0.1:0", own)) as server, asking(server, traffic, key_file):
        asker = next_question(server).sender
        with timed() as timer:
            for _ in range(traffic.rounds):  # few answers are on their way at a time, so there is room for another
                server.send(asker, [answer])
                next_question(server)
    return Elapsed(*(seconds / traffic.megabytes for seconds in timer.elapsed))


def measure_keys(report: Report, sizes: Sizes) -> None:
    """CPU and wall milliseconds a megabyte, with keys and without, in turns."""
    traffic = {
        "chunks in": Traffic(round(sizes.chunk), SMALL, 2_000),
        "batches out": Traffic(SMALL, round(sizes.batch), 150),
        "weights out": Traffic(SMALL, round(sizes.weights), 50),
    }
    with tempfile.TemporaryDirectory() as folder:
        make_keys(Path(folder))
        for name, one in traffic.items():
            works = {"without keys": partial(serve, one, None), "with keys": partial(serve, one, Path(folder))}
            times = interleave(works, REPETITIONS)
            report.record(name, times, 1e3, "milliseconds a megabyte")
            shown = [spread([1e3 * time.cpu for time in times[who]]).show(2) for who in works]
            report.table(f"CPU ms a megabyte: {name}", list(works), [shown])


def main() -> int:
    options = parse_options(__doc__)
    report = Report("wire_costs")
    sizes = {n_steps: measure_sizes(n_steps) for n_steps in N_STEPS}
    report.figures["bytes"] = {f"{n_steps} steps": found._asdict() for n_steps, found in sizes.items()}
    rows = [[name, *(f"{getattr(found, name):,.0f}" for found in sizes.values())] for name in Sizes._fields]
    report.table("bytes", ("what", *(f"{n_steps} steps" for n_steps in N_STEPS)), rows)
    measure_keys(report, sizes[max(N_STEPS)])
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
