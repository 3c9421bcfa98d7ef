"""The replay's process over real sockets beside Reverb's, under Ape-X's load, and under ever more actors.

Both servers run in a process of their own; a process of a writer and one of a reader drive them, with the same recorded
frames of Breakout, N = 50,000 and full. Reverb is used as its documentation advises (`peers/reverb_traffic.py`), with
the fastest of the settings that were tried. Both writers begin with pixels and squeeze every frame. Reverb gives
batches as arrays, ours gives squeezed bytes, which the real learner inflates: so rates of batches are compared
including that inflation, in the reader's process. Neither reader gives priorities back there. Ours does more: every
insertion draws 256 candidates by priority and replaces the oldest of them, and every transition brings a snapshot of
its game along (taken before), where Reverb drops the oldest of all.

Under Ape-X's load priorities are given back, and the ratio of transitions to batches is the published one. What the
replay carries "per core" is by the CPU time of its process, all its threads included: the clients take the other core.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.measure import APEX_IN, APEX_OUT, Comparison, Report, Spread, cpu_of, parse_options, spread
from benchmarks.peers import REVERB, Peer
from benchmarks.replay_clients import Clients, save_chunks
from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.processes.link import ask, ask_terms
from dpsr_apex.processes.onlooker import address_of
from dpsr_apex.replay.transitions import Transitions, concatenate
from dpsr_apex.roles.actor import Actor
from dpsr_apex.roles.build import build_agent, build_env
from dpsr_apex.run.run_directory import RunDirectory, write_config
from dpsr_apex.wire.codec import encode
from dpsr_apex.wire.messages import Chunk, SetRate, Stats, StatsRequest

CAPACITY, LARGE_CAPACITY = 50_000, 1_000_000
BATCH, LARGE_BATCH = 32, 512
CHUNKS = 40  # recorded, and sent again and again
SECONDS = 2.0  # of one work in one repetition
LOAD_SECONDS = 3.0
REPETITIONS = 5
ACTORS = (1, 4, 16, 64, 200, 400)
ACTOR_REPETITIONS = 3
REVERB_CHUNK, REVERB_IN_FLIGHT = 5, 64  # faster than chunks of 1 or 20, and than 32 or 512 samples in flight

Rates = dict[str, float]
"""Per second, by the name of the work."""


class Recorded(NamedTuple):
    """The same steps in both forms."""

    chunks: list[Chunk]
    arrays: dict[str, NDArray[Any]]  # frames, actions, rewards, ends, priorities


def record(config: Config) -> Recorded:
    """Real transitions of Breakout, played at random; |TD errors| are made up, so that priorities are spread."""
    env = build_env(config, seed=0, training=True)
    actor = Actor(config, build_agent(config, env, seed=0), [env], None, np.random.default_rng(0))
    size = config.system.chunk
    rows: deque[Transitions] = deque()
    while len(rows) < CHUNKS * size:
        if insert := actor.step():
            rows.append(insert.transitions)
    played = concatenate(rows)
    errors = np.random.default_rng(0).lognormal(-3.0, 2.0, len(played))
    nothing = np.zeros(0)
    chunks = [
        Chunk(0, played.rows(i, i + size), errors[i : i + size], nothing, nothing.astype(np.int64))
        for i in range(0, len(played), size)
    ]
    arrays = {
        "frames": env.codec.inflate_stacks([stack[-1:] for stack in played.s_t])[:, 0],
        "actions": played.a_tm1,
        "rewards": played.r_t,
        "ends": played.terminal,
        "priorities": errors,
    }
    return Recorded(chunks, arrays)


class Reading(NamedTuple):
    """How far the replay's process is."""

    wall: float
    cpu: float
    inserted: int
    batches: int


class Load(NamedTuple):
    """What the replay carried per second, of wall time or of its CPU time."""

    transitions: float
    batches: float

    @property
    def times_apex(self) -> float:
        """How many times Ape-X's published load it is."""
        return min(self.transitions / APEX_IN, self.batches / APEX_OUT)


class Ours:
    """The real replay process with a reader; writers come and go."""

    def __init__(self, config: Config, run: RunDirectory, pid: int, chunks: Path) -> None:
        self._address = address_of(run)
        self._run_id = ask_terms(self._address).run_id
        self._config = config
        self._pid = pid
        self._chunks = chunks
        self._reader = Clients(
            "reader", self._address.endpoint, self._run_id, config.learner.batch_size, config.system.prefetch
        )

    def writers(self, count: int, kind: str = "recording") -> Clients:
        """So many more actors; of kind "playing" they squeeze and encode everything anew."""
        window = self._config.system.window
        return Clients("writers", self._address.endpoint, self._run_id, count, window, kind, self._chunks)

    def set_rate(self, steps_per_update: int) -> None:
        """So many transitions per batch from now on; 0: as it comes."""
        ask(self._address, SetRate(steps_per_update), 10.0)

    def read(self, seconds: float, inflates: bool = False, answers: bool = False) -> float:
        """Batches per second."""
        return per_second(self._reader.ask(seconds, inflates, answers))

    def reading(self) -> Reading:
        """How far it is now."""
        cpu = cpu_of(self._pid)
        answer = ask(self._address, StatsRequest(), 10.0)
        assert isinstance(answer, Stats)
        facts = json.loads(answer.facts)
        return Reading(time.perf_counter(), cpu, facts["t"], facts["rate"]["batches"])

    def close(self) -> None:
        """Let the reader leave."""
        self._reader.close()


class Theirs:
    """Reverb with a writer and a reader."""

    def __init__(self, recorded: Recorded, folder: Path) -> None:
        file = folder / "recorded.npz"
        np.savez(file, allow_pickle=False, **recorded.arrays)
        script = "reverb_traffic.py"
        self._server = Peer(REVERB, script, "server", CAPACITY)
        port = int(self._server.ask("port")[0])
        self.writer = Peer(REVERB, script, "writer", port, file, REVERB_CHUNK)
        self._reader = Peer(REVERB, script, "reader", port, BATCH, REVERB_IN_FLIGHT)

    def write(self, seconds: float) -> float:
        """Transitions per second."""
        return per_second(self.writer.ask(f"seconds {seconds}"))

    def read(self, seconds: float) -> float:
        """Batches per second."""
        return per_second(self._reader.ask(f"seconds {seconds}"))

    def close(self) -> None:
        """End all three processes."""
        for peer in (self._reader, self.writer, self._server):
            peer.close()


def per_second(done: Sequence[float]) -> float:
    """Of how much was done, and in how many seconds."""
    return done[0] / done[1]


def at_once(write: Callable[[], float], read: Callable[[], float]) -> tuple[float, float]:
    """Both at the same time."""
    with ThreadPoolExecutor() as threads:
        written, was_read = threads.submit(write), threads.submit(read)
        return written.result(), was_read.result()


def configure(capacity: int, batch_size: int) -> Config:
    overrides = (
        *("env.name=Breakout", "replay.method=double", f"replay.capacity={capacity}", "replay.replace_candidates=256"),
        *("actor.exploration=1.0", f"learner.batch_size={batch_size}", "learner.learning_starts=1000"),
        *("learner.steps_per_update=0", "run.total_steps=1000000000", "run.log_period=100000", "system.actors=4"),
        *("run.checkpoint_period=0", "run.threads=1"),
    )
    return load_config("breakout_short", overrides=overrides)


@contextmanager
def serving(config: Config, recorded: Recorded) -> Iterator[Ours]:
    """The real replay process, while inside."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory.create(Path(folder) / "run")
        write_config(config, run)
        chunks = Path(folder) / "chunks"
        save_chunks(recorded.chunks, chunks)
        command = [sys.executable, "-m", "dpsr_apex.cli", "replay", "--run-dir", str(run.path)]
        with (run.logs / "replay.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                while not run.connection.exists():
                    assert process.poll() is None, (run.logs / "replay.log").read_text()
                    time.sleep(0.05)
                with closing(Ours(config, run, process.pid, chunks)) as ours:
                    yield ours
            finally:
                process.kill()
                process.wait()


# Beside Reverb.

LINES: dict[str, tuple[str, str, float | None]] = {  # what is measured, its unit, the goal
    "in": ("transitions into the replay over sockets", "transitions/s", 4.0),
    "out": ("batches of 32 out of the replay over sockets, as arrays", "batches/s", 4.0),
    "squeezed": ("batches of 32 out of the replay, ours still squeezed", "batches/s", None),
    "both, in": ("both at once: transitions in", "transitions/s", 4.0),
    "both, out": ("both at once: batches of 32 out, as arrays", "batches/s", 4.0),
}


def measure_ours(ours: Ours, writer: Clients) -> Rates:
    """One repetition of every work."""
    written = per_second(writer.ask(SECONDS))
    arrays = ours.read(SECONDS, inflates=True)
    squeezed = ours.read(SECONDS)
    both = at_once(lambda: per_second(writer.ask(SECONDS)), lambda: ours.read(SECONDS, inflates=True))
    return {"in": written, "out": arrays, "squeezed": squeezed, "both, in": both[0], "both, out": both[1]}


def measure_theirs(theirs: Theirs) -> Rates:
    """The same of Reverb, which gives nothing but arrays."""
    written, arrays = theirs.write(SECONDS), theirs.read(SECONDS)
    both = at_once(lambda: theirs.write(SECONDS), lambda: theirs.read(SECONDS))
    return {"in": written, "out": arrays, "squeezed": arrays, "both, in": both[0], "both, out": both[1]}


def compare(report: Report, ours: Ours, recorded: Recorded) -> None:
    """All works, ours and Reverb's in turns; a first round, in which caches fill, is thrown away."""
    with ExitStack() as stack:
        theirs = stack.enter_context(
            closing(Theirs(recorded, Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        )
        writer = stack.enter_context(closing(ours.writers(1, "playing")))
        writer.ask(0.0, CAPACITY)
        theirs.writer.ask(f"count {CAPACITY}")
        rounds = [(measure_ours(ours, writer), measure_theirs(theirs)) for _ in range(1 + REPETITIONS)][1:]
    for name, (work, unit, goal) in LINES.items():
        own, peer = [mine[name] for mine, _ in rounds], [other[name] for _, other in rounds]
        ratios = [mine / other for mine, other in zip(own, peer, strict=True)]
        report.compare(Comparison(work, "Reverb 0.14", unit, spread(own), spread(peer), spread(ratios), goal))


# Under Ape-X's load.


def carry_load(report: Report, recorded: Recorded) -> None:
    """How much of Ape-X's published load one replay process carries, per core and beside what else runs here."""
    with serving(configure(LARGE_CAPACITY, LARGE_BATCH), recorded) as ours, closing(ours.writers(4)) as writers:
        began = time.perf_counter()
        writers.ask(0.0, LARGE_CAPACITY)
        print(f"N = {LARGE_CAPACITY:,} was filled in {time.perf_counter() - began:.0f} s")
        ours.set_rate(APEX_IN // APEX_OUT)
        loads = [one_load(ours, writers) for _ in range(1 + REPETITIONS)][1:]
    published = Spread(1.0, 1.0, 1.0)
    for clock, where, goal in (("cpu", "on one core", 3.0), ("wall", "beside its clients on this machine", None)):
        times = spread([load[clock].times_apex for load in loads])
        report.figures[f"N={LARGE_CAPACITY} batch={LARGE_BATCH} per {clock} second"] = {
            field: spread([getattr(load[clock], field) for load in loads])._asdict() for field in Load._fields
        }
        work = f"one replay process {where}, N = 1,000,000: 12,500 transitions in and 19 batches of 512 out a second"
        report.compare(Comparison(work, "Ape-X's published load", "loads", times, published, times, goal))


def one_load(ours: Ours, writers: Clients) -> dict[str, Load]:
    """One repetition, by either clock."""
    before = ours.reading()
    at_once(lambda: per_second(writers.ask(LOAD_SECONDS)), lambda: ours.read(LOAD_SECONDS, answers=True))
    return loads_between(before, ours.reading())


def loads_between(before: Reading, after: Reading) -> dict[str, Load]:
    inserted, batches = after.inserted - before.inserted, after.batches - before.batches
    clocks = {"cpu": after.cpu - before.cpu, "wall": after.wall - before.wall}
    return {clock: Load(inserted / seconds, batches / seconds) for clock, seconds in clocks.items()}


# Ever more actors.


def add_actors(report: Report, ours: Ours) -> dict[int, dict[str, Spread]]:
    """Transitions per second of either clock, by the number of actors."""
    found = {}
    for count in ACTORS:
        with closing(ours.writers(count)) as writers:
            writers.ask(0.5)
            loads = [one_of_many(ours, writers) for _ in range(ACTOR_REPETITIONS)]
        found[count] = {clock: spread([load[clock].transitions for load in loads]) for clock in ("cpu", "wall")}
    report.figures["transitions per second by actors"] = {
        str(count): {clock: rate._asdict() for clock, rate in rates.items()} for count, rates in found.items()
    }
    report.table(
        f"transitions into one replay process, N = {CAPACITY:,}",
        ("actors", "per second of its CPU time", "per second"),
        [[str(count), rates["cpu"].show(0), rates["wall"].show(0)] for count, rates in found.items()],
    )
    return found


def one_of_many(ours: Ours, writers: Clients) -> dict[str, Load]:
    before = ours.reading()
    writers.ask(SECONDS)
    return loads_between(before, ours.reading())


def plot(found: Mapping[int, Mapping[str, Spread]], path: Path) -> None:
    """Throughput against the number of actors, by either clock."""
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.subplots()
    counts = list(found)
    for clock, colour, label in (
        ("cpu", "#1f6fb2", "per second of the replay's CPU time"),
        ("wall", "#c2571a", "per second, with the clients on the same machine"),
    ):
        rates = [found[count][clock] for count in counts]
        axes.plot(counts, [rate.median / 1e3 for rate in rates], "o-", color=colour, linewidth=2, label=label)
        axes.fill_between(
            counts, [rate.low / 1e3 for rate in rates], [rate.high / 1e3 for rate in rates], color=colour, alpha=0.2
        )
    axes.set_xscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("actors")
    axes.set_ylabel("thousand transitions")
    axes.set_title("Transitions into one replay process")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> int:
    options = parse_options(__doc__)
    report = Report("replay_traffic")
    config = configure(CAPACITY, BATCH)
    recorded = record(config)
    first = recorded.chunks[0]
    report.figures["bytes of a transition on the wire"] = sum(map(len, encode(first))) / len(first.transitions)
    with serving(config, recorded) as ours:
        compare(report, ours, recorded)
        found = add_actors(report, ours)
    if options.plots:
        plot(found, options.plots / "throughput_by_actors.png")
    carry_load(report, recorded)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
