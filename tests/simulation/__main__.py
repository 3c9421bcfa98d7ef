"""`python -m tests.simulation SEED` prints one history; without a seed, many histories are run until one fails."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from itertools import count
from typing import TextIO

from tests.simulation.world import HistoryFailed, World, run

PROGRESS_SECONDS = {True: 1.0, False: 30.0}  # between two lines of progress: in a terminal, and in a log


def main(words: list[str] | None = None) -> int:
    """Print one history, or run many; return 0 if no check has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="of the history that is repeated and printed")
    parser.add_argument("--first", type=int, default=0, help="seed of the first of many histories (default: 0)")
    parser.add_argument("--histories", type=int, help="how many to run")
    parser.add_argument("--minutes", type=float, default=10.0, help="without --histories: for how long (default: 10)")
    given, out = parser.parse_args(words), sys.stdout
    logging.disable(logging.CRITICAL)
    try:
        if given.seed is not None:
            return repeat(given.seed, out)
        return run_many(given.first, given.histories, given.minutes, out)
    finally:
        logging.disable(logging.NOTSET)


def repeat(seed: int, out: TextIO) -> int:
    """Run the history of this seed, and print all of its events."""
    world = World(seed)
    try:
        world.play()
    finally:
        out.write("\n".join([*world.tell(), ""]))
    return 0


def run_many(first: int, histories: int | None, minutes: float, out: TextIO) -> int:
    """Run this number of histories, or as many as fit into the time; stop at the first that fails."""
    progress = Progress(out)
    last = None if histories is None else first + histories
    deadline = None if histories is not None else time.monotonic() + 60.0 * minutes
    for seed in count(first):
        if seed == last or (deadline is not None and time.monotonic() > deadline):
            break
        try:
            progress.add(run(seed))
        except HistoryFailed as failure:
            progress.end()
            out.write(f"{failure}\n\nTo repeat this history: .venv/bin/python -m tests.simulation {seed}\n")
            return 1
    progress.end()
    return 0


class Progress:
    """Prints how many histories were run, at which speed, and what has happened in them."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._histories = 0
        self._counts: Counter[str] = Counter()
        self._cpu_began = time.process_time()
        self._shown_at = time.monotonic()

    def add(self, world: World) -> None:
        """Count a history that is over."""
        self._histories += 1
        self._counts.update(world.counts)
        self._counts["recoveries compared"] += world.promise.recoveries
        is_terminal = self._out.isatty()
        if time.monotonic() - self._shown_at >= PROGRESS_SECONDS[is_terminal]:
            self._shown_at = time.monotonic()
            self._out.write(f"{self._speed}\r" if is_terminal else f"{self._speed}\n")
            self._out.flush()

    def end(self) -> None:
        """Print the totals."""
        common = ", ".join(f"{name} {number:,}" for name, number in self._counts.most_common())
        self._out.write(f"{self._speed}\n{common}\n")

    @property
    def _speed(self) -> str:
        seconds = time.process_time() - self._cpu_began
        per_hour = self._histories / seconds * 3600 if seconds else 0.0
        return f"{self._histories:,} histories in {seconds:,.0f} s of CPU time: {per_hour:,.0f} per hour on one core"


if __name__ == "__main__":
    sys.exit(main())
