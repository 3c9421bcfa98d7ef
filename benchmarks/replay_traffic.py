"""The replay's process over real sockets: transitions in, batches out, and both at once.

The server is the real command in a process of its own. Chunks of real Breakout transitions are sent by several actors
and batches are taken by a learner that gives priorities back; both live in this process and neither acts nor learns.
Actors send only their own |TD errors| (as in Ape-X), so that priorities are spread from the beginning.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.measure import Report, parse_options, spread
from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.processes.link import Address, ask, ask_terms, request_to_join
from dpsr_apex.processes.onlooker import address_of
from dpsr_apex.replay.transitions import Transitions, concatenate
from dpsr_apex.roles.actor import Actor
from dpsr_apex.roles.build import build_agent, build_env
from dpsr_apex.run.run_directory import RunDirectory, write_config
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.messages import (
    Acknowledged,
    Batch,
    Chunk,
    Heartbeat,
    Message,
    Priorities,
    SampleRequest,
    SetRate,
    Welcome,
)
from dpsr_apex.wire.sockets import Client, wait

CAPACITIES = (50_000, 1_000_000)
BATCH_SIZES = (32, 512)
ACTORS = 4
CHUNKS = 40  # recorded, and sent again and again
SECONDS = 4.0  # of one repetition
REPETITIONS = 5
APEX_IN, APEX_OUT = 12_500, 19  # transitions in and batches of 512 out per second, as published
MIX = {32: 4, 512: APEX_IN // APEX_OUT}  # transitions per batch when both go on at once
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Rates(NamedTuple):
    """What went through in one repetition, per second; `cpu` is the replay's share of one core."""

    transitions: float
    batches: float
    cpu: float

    def on_a_whole_core(self) -> Rates:
        """What it would be if the replay had a core to itself, by the CPU time that it took."""
        return Rates(self.transitions / self.cpu, self.batches / self.cpu, 1.0)


class Member:
    """One connection to the replay that has joined."""

    def __init__(self, address: Address, run_id: str, role: str, name: str) -> None:
        self.client = Client(address.endpoint, address.keys)
        request = request_to_join(run_id, role, name, "synthetic")
        while not self.client.send(encode(request)):
            time.sleep(0.01)
        while not any(isinstance(message, Welcome) for message in self.receive(1.0)):
            pass
        self._beat = time.monotonic()

    def receive(self, seconds: float = 0.0) -> Iterator[Message]:
        """What has come, waiting for so long at most."""
        wait([self.client], seconds)
        while (frames := self.client.receive()) is not None:
            yield decode(frames)

    def keep(self) -> None:
        """Say that it is alive, about once a second."""
        now = time.monotonic()
        if now - self._beat > 1.0:
            self._beat = now
            self.client.send(encode(Heartbeat(0)))


class SyntheticActor(Member):
    """Sends recorded chunks as fast as they are acknowledged."""

    def __init__(self, address: Address, run_id: str, name: str, chunks: list[Chunk], window: int) -> None:
        super().__init__(address, run_id, "actor", name)
        self._chunks = chunks
        self._window = window
        self._next = self._settled = 0
        self.inserted = 0

    def go_on(self, sends: bool) -> None:
        """Hear what was acknowledged, and send as many chunks as may be on their way."""
        for message in self.receive():
            if isinstance(message, Acknowledged):
                self.inserted += (message.sequence - self._settled) * len(self._chunks[0].transitions)
                self._settled = message.sequence
        while sends and self._next - self._settled < self._window:
            chunk = self._chunks[self._next % len(self._chunks)]._replace(sequence=self._next)
            if not self.client.send(encode(chunk)):
                break
            self._next += 1
        self.keep()

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way."""
        return self._next == self._settled


class SyntheticLearner(Member):
    """Takes batches as fast as they come, and gives priorities back."""

    def __init__(self, address: Address, run_id: str, batch_size: int, prefetch: int) -> None:
        super().__init__(address, run_id, "learner", "learner")
        self._rng = np.random.default_rng(0)
        self._request = encode(SampleRequest(batch_size))
        self._prefetch = prefetch
        self._asked = 0
        self.batches = 0
        self.bytes = 0

    def go_on(self, asks: bool) -> None:
        """Answer the batches that have come, and ask for as many as may be asked for."""
        wait([self.client], 0.0)
        while (frames := self.client.receive()) is not None:
            message = decode(frames)
            if isinstance(message, Batch):
                self._asked -= 1
                self.batches += 1
                self.bytes = sum(map(len, frames))
                errors = self._rng.lognormal(-3.0, 2.0, len(message.identities))
                self.client.send(encode(Priorities(message.era, message.identities, errors)))
        while asks and self._asked < self._prefetch:
            self.client.send(self._request)
            self._asked += 1
        self.keep()


class Bench:
    """One replay server of one size under load."""

    def __init__(self, config: Config, run: RunDirectory, pid: int, chunks: list[Chunk]) -> None:
        self.address = address_of(run)
        run_id = ask_terms(self.address).run_id
        system = config.system
        self._actors = [
            SyntheticActor(self.address, run_id, f"actor-{i}", chunks, system.window) for i in range(ACTORS)
        ]
        self.learner = SyntheticLearner(self.address, run_id, config.learner.batch_size, system.prefetch)
        self._pid = pid

    def fill(self, capacity: int) -> None:
        """Insert until so many transitions have gone in."""
        while sum(actor.inserted for actor in self._actors) < capacity:
            self._go_on(sends=True, asks=False)
        self._settle()

    def measure(self, sends: bool, asks: bool, steps_per_update: int) -> Rates:
        """One repetition with actors, a learner or both at work."""
        ask(self.address, SetRate(steps_per_update), 10.0)
        self._settle()
        began, cpu = time.perf_counter(), self._cpu()
        inserted, batches = self._counts()
        while time.perf_counter() - began < SECONDS:
            self._go_on(sends, asks)
        seconds = time.perf_counter() - began
        cpu = self._cpu() - cpu
        now_inserted, now_batches = self._counts()
        self._settle()
        return Rates((now_inserted - inserted) / seconds, (now_batches - batches) / seconds, cpu / seconds)

    def resident(self) -> int:
        """Bytes of the replay's process in memory."""
        return int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def _counts(self) -> tuple[int, int]:
        return sum(actor.inserted for actor in self._actors), self.learner.batches

    def _go_on(self, sends: bool, asks: bool) -> None:
        wait([self.learner.client, *(actor.client for actor in self._actors)], 0.01)
        for actor in self._actors:
            actor.go_on(sends)
        self.learner.go_on(asks)

    def _settle(self) -> None:
        """Let everything that is on its way arrive."""
        deadline = time.monotonic() + 10.0
        while not all(actor.idle for actor in self._actors) and time.monotonic() < deadline:
            self._go_on(sends=False, asks=True)

    def _cpu(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def record_chunks(config: Config) -> list[Chunk]:
    """Real transitions of Breakout, played at random."""
    env = build_env(config, seed=0, training=True)
    actor = Actor(config, build_agent(config, env, seed=0), [env], None, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    rows: deque[Transitions] = deque()
    while len(rows) < CHUNKS * config.system.chunk:
        insert = actor.step()
        if insert:
            rows.append(insert.transitions)
    nothing = np.zeros(0)
    return [
        Chunk(
            0,
            concatenate([rows.popleft() for _ in range(config.system.chunk)]),
            rng.lognormal(-3.0, 2.0, config.system.chunk),
            nothing,
            nothing.astype(np.int64),
        )
        for _ in range(CHUNKS)
    ]


def configure(capacity: int, batch_size: int) -> Config:
    overrides = (
        *("env.name=Breakout", "replay.method=double", f"replay.capacity={capacity}", "replay.replace_candidates=256"),
        *("actor.exploration=1.0", f"learner.batch_size={batch_size}", "learner.learning_starts=1000"),
        *("learner.steps_per_update=0", "run.total_steps=1000000000", "run.log_period=100000", "system.actors=4"),
        *("run.checkpoint_period=0", "run.threads=1"),
    )
    return load_config("breakout_short", overrides=overrides)


@contextmanager
def serving(config: Config) -> Iterator[tuple[RunDirectory, int]]:
    """The real replay process, while inside."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder) / "run")
        write_config(config, run)
        command = [sys.executable, "-m", "dpsr_apex.cli", "replay", "--run-dir", str(run.path)]
        with (run.logs / "replay.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                while not run.connection.exists():
                    assert process.poll() is None, (run.logs / "replay.log").read_text()
                    time.sleep(0.05)
                yield run, process.pid
            finally:
                process.kill()
                process.wait()


def measure_size(report: Report, capacity: int, batch_size: int, chunks: list[Chunk]) -> list[list[str]]:
    """All repetitions with one replay, as rows of the table."""
    config = configure(capacity, batch_size)
    with serving(config) as (run, pid):
        bench = Bench(config, run, pid, chunks)
        bench.fill(capacity // 2)
        half_full = bench.resident()
        bench.fill(capacity)
        at_rest = (bench.resident() - half_full) / (capacity // 2)
        works = {
            "in": (True, False, 0),
            "out": (False, True, 0),
            "both": (True, True, MIX[batch_size]),
        }
        done: dict[str, list[Rates]] = {name: [] for name in works}
        for _ in range(REPETITIONS):
            for name, work in works.items():
                done[name].append(bench.measure(*work))
    rows = []
    for name, rates in done.items():
        spreads = {field: spread([getattr(one, field) for one in rates]) for field in Rates._fields}
        report.figures[f"N={capacity} batch={batch_size} {name}"] = {
            key: value._asdict() for key, value in spreads.items()
        }
        transitions, batches, cpu = (spreads[field] for field in Rates._fields)
        whole = [one.on_a_whole_core() for one in rates]
        rows.append(
            [
                f"{capacity:,}",
                str(batch_size),
                f"both, {MIX[batch_size]} per batch" if name == "both" else f"{name} alone",
                transitions.show(0) if name != "out" else "–",
                batches.show(0) if name != "in" else "–",
                f"{cpu.median:.0%}",
                spread([one.transitions for one in whole]).show(0) if name != "out" else "–",
                spread([one.batches for one in whole]).show(0) if name != "in" else "–",
            ]
        )
    on_wire = sum(map(len, encode(chunks[0]))) / len(chunks[0].transitions)
    report.figures[f"N={capacity} batch={batch_size} bytes"] = {
        "wire_in": on_wire,
        "wire_out": bench.learner.bytes / batch_size,
        "at_rest": at_rest,
    }
    print(
        f"N = {capacity:,}, batches of {batch_size}: a transition takes {on_wire:.0f} bytes on the wire to the replay, "
        f"{bench.learner.bytes / batch_size:.0f} to the learner, {at_rest:.0f} at rest (resident)"
    )
    if batch_size == 512:
        times = spread([_times_apex(one.on_a_whole_core()) for one in done["both"]])
        wall = spread([_times_apex(one) for one in done["both"]])
        report.goal(
            f"N = {capacity:,}: Ape-X's published load (12,500 in, 19 x 512 out a second) on a whole core, "
            f"{times.show(2)} times; beside what else ran here, {wall.show(2)} times",
            times.median >= 1,
        )
    return rows


def _times_apex(rates: Rates) -> float:
    return min(rates.transitions / APEX_IN, rates.batches / APEX_OUT)


def main() -> int:
    options = parse_options(__doc__)
    report = Report("replay_traffic")
    chunks = record_chunks(configure(CAPACITIES[0], BATCH_SIZES[0]))
    rows = [
        row
        for capacity in CAPACITIES
        for batch_size in BATCH_SIZES
        for row in measure_size(report, capacity, batch_size, chunks)
    ]
    report.table(
        "one replay process over sockets, per second",
        ("N", "batch", "work", "transitions in", "batches out", "CPU", "in, a whole core", "out, a whole core"),
        rows,
    )
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
