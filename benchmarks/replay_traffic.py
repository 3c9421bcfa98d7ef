"""The replay process over real sockets: compared with Reverb, under Ape-X's load, and with more and more actors.

Both servers run in their own process, with one writer process and one reader process, the same recorded frames of
Breakout, and a full replay of N = 50,000. Reverb is used as its documentation recommends (`peers/reverb_traffic.py`),
with the fastest of the settings that were tried. Both writers start from pixels and compress every frame. Reverb
returns batches as arrays, ours returns compressed bytes that the learner decompresses; so batch rates include
decompression in the reader's process. Neither reader sends priorities. OurReplay does more work: every insertion
samples 256 candidates by priority and replaces the oldest of them, and every transition includes a snapshot (taken
beforehand), while Reverb removes the oldest item.

Under Ape-X's load the reader also sends priorities, and the ratio of transitions to batches is the published one. Rates
"on one core" are per CPU second of the replay process, all its threads included; the clients use the other core.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks.measure import APEX_IN, APEX_OUT, Comparison, Report, Spread, cpu_of, parse_options, spread
from benchmarks.peers import REVERB, Peer
from benchmarks.process_memory import prediction, resident_memory
from benchmarks.replay_clients import Clients
from benchmarks.replay_head import Recorded, ReplayHead, configure, record, replay_process
from dpsr_apex.config import Config
from dpsr_apex.processes.control import address_of
from dpsr_apex.processes.link import ask
from dpsr_apex.processes.statistics import ask_stats
from dpsr_apex.roles.memory import estimate_memory
from dpsr_apex.usability import ensure_usable
from dpsr_apex.wire.codec import encode
from dpsr_apex.wire.messages import SetRate, StatsRequest

CAPACITY, LARGE_CAPACITY = 50_000, 1_000_000
BATCH, LARGE_BATCH = 32, 512
SECONDS = 2.0  # per task and repetition
LOAD_SECONDS = 3.0
REPETITIONS = 5
ACTORS = (1, 4, 16, 64, 200, 400)
ACTOR_REPETITIONS = 3
REVERB_CHUNK, REVERB_IN_FLIGHT = 5, 64  # faster than chunks of 1 or 20, and than 32 or 512 samples in flight

Rates = dict[str, float]
"""Per second, by the name of the task."""


class Counters(NamedTuple):
    """Clocks and counters of the replay process at one time."""

    wall: float
    cpu: float
    inserted: int
    batches: int


class Load(NamedTuple):
    """The replay's throughput per second of wall time or of its CPU time."""

    transitions: float
    batches: float

    @property
    def apex_multiple(self) -> float:
        """The load as a multiple of Ape-X's published load."""
        return min(self.transitions / APEX_IN, self.batches / APEX_OUT)


class OurReplay:
    """The real replay process with a reader; writers can be added and removed."""

    def __init__(self, config: Config, head: ReplayHead) -> None:
        self._address = address_of(head.run)
        self._head = head
        self._config = config
        self._reader = Clients("reader", head.run.path, config.learner.batch_size, config.system.prefetch)

    def writers(self, count: int, encoding: str = "recorded") -> Clients:
        """Start `count` actors; with encoding "live" they compress and encode every chunk."""
        window = self._config.system.in_flight // self._config.system.chunk  # chunks
        return Clients("writers", self._head.run.path, count, window, encoding, self._head.chunks)

    def set_rate(self, steps_per_update: int) -> None:
        """Set the number of transitions per batch; 0: no limit."""
        ask(self._address, SetRate(steps_per_update), 10.0)

    def read(self, seconds: float, decompresses: bool = False, answers: bool = False) -> float:
        """Read batches for `seconds` and return batches per second."""
        return per_second(self._reader.ask(seconds, decompresses, answers))

    def counters(self) -> Counters:
        """Return the current counters."""
        cpu = cpu_of(self._head.pid)
        stats = ask_stats(self._address, StatsRequest(), 10.0)
        return Counters(time.perf_counter(), cpu, stats.t, stats.rate.batches)

    def resident(self) -> int:
        """Return the resident memory of the replay process in bytes."""
        return resident_memory(self._head.pid)

    def close(self) -> None:
        """Stop the reader."""
        self._reader.close()


class ReverbReplay:
    """A Reverb server with a writer and a reader."""

    def __init__(self, recorded: Recorded, folder: Path) -> None:
        file = folder / "recorded.npz"
        np.savez(file, allow_pickle=False, **recorded.arrays)
        script = "reverb_traffic.py"
        self._server = Peer(REVERB, script, "server", CAPACITY)
        port = int(self._server.ask("port")[0])
        self.writer = Peer(REVERB, script, "writer", port, file, REVERB_CHUNK)
        self._reader = Peer(REVERB, script, "reader", port, BATCH, REVERB_IN_FLIGHT)

    def write(self, seconds: float) -> float:
        """Write for `seconds` and return transitions per second."""
        return per_second(self.writer.ask(f"seconds {seconds}"))

    def read(self, seconds: float) -> float:
        """Read for `seconds` and return batches per second."""
        return per_second(self._reader.ask(f"seconds {seconds}"))

    def close(self) -> None:
        """End all three processes."""
        for peer in (self._reader, self.writer, self._server):
            peer.close()


def per_second(count_and_seconds: Sequence[float]) -> float:
    """Return a rate from a count and a time in seconds."""
    return count_and_seconds[0] / count_and_seconds[1]


def concurrently(write: Callable[[], float], read: Callable[[], float]) -> tuple[float, float]:
    """Run both functions at the same time and return their results."""
    with ThreadPoolExecutor() as threads:
        written, read_back = threads.submit(write), threads.submit(read)
        return written.result(), read_back.result()


@contextmanager
def serving(config: Config, recorded: Recorded) -> Iterator[OurReplay]:
    """Run the real replay process, with a reader, inside the block."""
    with replay_process(config, recorded) as head, closing(OurReplay(config, head)) as ours:
        yield ours


# Compared with Reverb.

TASKS: dict[str, tuple[str, str, float | None]] = {  # description, unit, goal
    "in": ("insert transitions over sockets", "transitions/s", 5.0),
    "out": ("sample batches of 32 over sockets, as arrays", "batches/s", 5.0),
    "compressed": ("sample batches of 32 over sockets, ours compressed", "batches/s", None),
    "both, in": ("insert and sample concurrently: transitions", "transitions/s", 5.0),
    "both, out": ("insert and sample concurrently: batches of 32, as arrays", "batches/s", 5.0),
}


def measure_ours(ours: OurReplay, writer: Clients) -> Rates:
    """Run one repetition of every task on our replay."""
    written = per_second(writer.ask(SECONDS))
    arrays = ours.read(SECONDS, decompresses=True)
    compressed = ours.read(SECONDS)
    both = concurrently(lambda: per_second(writer.ask(SECONDS)), lambda: ours.read(SECONDS, decompresses=True))
    return {"in": written, "out": arrays, "compressed": compressed, "both, in": both[0], "both, out": both[1]}


def measure_theirs(theirs: ReverbReplay) -> Rates:
    """Run one repetition of every task on Reverb, which returns only arrays."""
    written, arrays = theirs.write(SECONDS), theirs.read(SECONDS)
    both = concurrently(lambda: theirs.write(SECONDS), lambda: theirs.read(SECONDS))
    return {"in": written, "out": arrays, "compressed": arrays, "both, in": both[0], "both, out": both[1]}


def compare(report: Report, ours: OurReplay, recorded: Recorded) -> None:
    """Measure all tasks, ours and Reverb's in turn; a first warm-up round is discarded."""
    with ExitStack() as stack:
        theirs = stack.enter_context(
            closing(ReverbReplay(recorded, Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        )
        writer = stack.enter_context(closing(ours.writers(1, "live")))
        writer.ask(0.0, CAPACITY)
        theirs.writer.ask(f"count {CAPACITY}")
        rounds = [(measure_ours(ours, writer), measure_theirs(theirs)) for _ in range(1 + REPETITIONS)][1:]
    for name, (work, unit, goal) in TASKS.items():
        our_rates, their_rates = ([rates[name] for rates in side] for side in zip(*rounds, strict=True))
        ratios = [our / their for our, their in zip(our_rates, their_rates, strict=True)]
        comparison = Comparison(work, "Reverb 0.14", unit, spread(our_rates), spread(their_rates), spread(ratios), goal)
        report.compare(comparison)


# Under Ape-X's load.


def carry_load(report: Report, recorded: Recorded) -> None:
    """Measure the load of one replay process as a multiple of Ape-X's, by its CPU time and by wall time."""
    config = configure(LARGE_CAPACITY, LARGE_BATCH)
    with serving(config, recorded) as ours, closing(ours.writers(4)) as writers:
        started = time.perf_counter()
        writers.ask(0.0, 2 * LARGE_CAPACITY)  # twice, because neighbours share frames until one of them is replaced
        compare_memory(report, config, ours.resident())
        print(f"N = {LARGE_CAPACITY:,} filled in {time.perf_counter() - started:.0f} s")
        ours.set_rate(APEX_IN // APEX_OUT)
        loads = [one_load(ours, writers) for _ in range(1 + REPETITIONS)][1:]
    published = Spread(1.0, 1.0, 1.0)
    for clock, where, goal in (("cpu", "on one core", 3.0), ("wall", "sharing the machine with its clients", None)):
        multiples = spread([load[clock].apex_multiple for load in loads])
        report.figures[f"N={LARGE_CAPACITY} batch={LARGE_BATCH} per {clock} second"] = {
            field: spread([getattr(load[clock], field) for load in loads])._asdict() for field in Load._fields
        }
        work = f"one replay process {where}, N = 1,000,000: 12,500 transitions and 19 batches of 512 per second"
        report.compare(Comparison(work, "Ape-X's published load", "loads", multiples, published, multiples, goal))


def compare_memory(report: Report, config: Config, measured: int) -> None:
    """Compare the resident memory of a full replay process with the prediction that is printed before a run starts."""
    predicted = estimate_memory(config, ensure_usable(config).sizes).replay_process
    report.compare(prediction(f"the replay process, Breakout, N = {LARGE_CAPACITY:,}", measured, predicted))


def one_load(ours: OurReplay, writers: Clients) -> dict[str, Load]:
    """Run one repetition and return the load by CPU and wall time."""
    before = ours.counters()
    concurrently(lambda: per_second(writers.ask(LOAD_SECONDS)), lambda: ours.read(LOAD_SECONDS, answers=True))
    return loads_between(before, ours.counters())


def loads_between(before: Counters, after: Counters) -> dict[str, Load]:
    inserted, batches = after.inserted - before.inserted, after.batches - before.batches
    clocks = {"cpu": after.cpu - before.cpu, "wall": after.wall - before.wall}
    return {clock: Load(inserted / seconds, batches / seconds) for clock, seconds in clocks.items()}


# More and more actors.


def add_actors(report: Report, ours: OurReplay) -> dict[int, dict[str, Spread]]:
    """Measure transitions per second of CPU and wall time by the number of actors."""
    results = {}
    for count in ACTORS:
        with closing(ours.writers(count)) as writers:
            writers.ask(0.5)
            loads = [insert_only(ours, writers) for _ in range(ACTOR_REPETITIONS)]
        results[count] = {clock: spread([load[clock].transitions for load in loads]) for clock in ("cpu", "wall")}
    report.figures["transitions per second by actors"] = {
        str(count): {clock: rate._asdict() for clock, rate in rates.items()} for count, rates in results.items()
    }
    report.table(
        f"Transitions into one replay process, N = {CAPACITY:,}",
        ("actors", "per second of its CPU time", "per second"),
        [[str(count), rates["cpu"].show(0), rates["wall"].show(0)] for count, rates in results.items()],
    )
    return results


def insert_only(ours: OurReplay, writers: Clients) -> dict[str, Load]:
    """Run one repetition with writers only and return the load by CPU and wall time."""
    before = ours.counters()
    writers.ask(SECONDS)
    return loads_between(before, ours.counters())


def plot(results: Mapping[int, Mapping[str, Spread]], path: Path) -> None:
    """Plot throughput against the number of actors, by CPU and wall time."""
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.subplots()
    counts = list(results)
    for clock, colour, label in (
        ("cpu", "#1f6fb2", "per second of the replay's CPU time"),
        ("wall", "#c2571a", "per second, with the clients on the same machine"),
    ):
        rates = [results[count][clock] for count in counts]
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
    report.figures["has_keys"] = True
    report.figures["bytes of a transition on the wire"] = sum(map(len, encode(first))) / len(first.transitions)
    with serving(config, recorded) as ours:
        compare(report, ours, recorded)
        results = add_actors(report, ours)
    if options.plots:
        plot(results, options.plots / "throughput_by_actors.png")
    carry_load(report, recorded)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
