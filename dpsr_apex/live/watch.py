"""Watching a run from another terminal: `dpsr-apex watch`.

It asks the head of the run, or reads what a run of one process writes, a few times a second; it changes nothing, and
nobody waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from dpsr_apex.config_files import load_config
from dpsr_apex.live.view import LiveView
from dpsr_apex.processes.discovery import Address
from dpsr_apex.processes.lock import is_served
from dpsr_apex.processes.onlooker import address_of
from dpsr_apex.run.checkpoint import clock_of, list_checkpoints
from dpsr_apex.run.metrics import Row
from dpsr_apex.run.run_directory import RunDirectory, RunDirectoryError, title_of
from dpsr_apex.wire.codec import BadMessage, decode, encode
from dpsr_apex.wire.messages import Stats, StatsRequest
from dpsr_apex.wire.sockets import Client, wait

LOOK_SECONDS = 0.25
RETURN_SECONDS = 15.0  # for a run to begin, or for its head to come back after it died


def watch_run(path: Path) -> int:
    """Show a run until it ends; the exit code is 130 after Ctrl-C, which ends nothing but the watching."""
    run = RunDirectory.open(path)
    config = load_config(run.config)
    # A shell that starts something in the background has it ignore Ctrl-C, and all that this starts too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    view = LiveView(config.run.total_steps, title=title_of(config, run.path))
    try:
        with view:
            watcher = Watcher(run, view, asks=config.system.actors != 0)
            watcher.watch()
    except KeyboardInterrupt:
        view.note(f"No longer watching {run.path}.")
        return 130
    view.note(f"{'The run has ended' if watcher.saw_it_going_on else 'Not running'}: {_how_it_ended(run, watcher.t)}")
    return 0


class Watcher:
    """Shows one run; `asks` its head where it has one."""

    def __init__(self, run: RunDirectory, view: LiveView, asks: bool) -> None:
        self.saw_it_going_on = False
        self.t = 0  # clock of the newest row
        self._run = run
        self._view = view
        self._head = Head(run) if asks else None
        self._rows, self._evaluations = Tail(run.metrics), Tail(run.evaluations)
        self._served = time.monotonic()  # when it was last seen to be
        self._told_of: float | None = None  # the value of `_served` for which it was said that nobody serves it now
        self._era: int | None = None  # which life of the head `_noted` counts the notes of
        self._noted = 0

    def watch(self) -> None:
        """Until the run ends, or at once if it is not going on."""
        try:
            self.begin()
            while self._goes_on():
                self.look()
            self._read()
        finally:
            if self._head:
                self._head.close()

    def begin(self) -> None:
        """Of what was there before, show the newest row and the curve."""
        rows = self._rows.read()
        self._view.recall(rows[:-1], self._evaluations.read())
        for newest in rows[-1:]:
            self._take(newest)

    def look(self) -> None:
        """Show what is new, in a quarter of a second."""
        if self._head is None:
            time.sleep(LOOK_SECONDS)
            self._view.advance(self.t)  # shows what came too soon after the last drawing
        elif stats := self._head.look(LOOK_SECONDS):
            self._show(stats)
        self._read()

    def _goes_on(self) -> bool:
        now = time.monotonic()
        if is_served(self._run):
            if not self.saw_it_going_on and not self.t:
                self._view.note(f"{self._run.path} is running, and has logged nothing yet")
            self.saw_it_going_on = True
            self._served = now
            return True
        if not self._may_come_back():
            return False
        if self._told_of != self._served:
            self._told_of = self._served
            self._view.note(f"Nobody serves {self._run.path} at the moment; waiting for {RETURN_SECONDS:.0f} s")
        return now - self._served < RETURN_SECONDS

    def _may_come_back(self) -> bool:
        """Whether it has never been served, or its head has died: one that ends in order takes its address away."""
        return not (self._run.path / "lock").exists() or self._run.connection.exists()

    def _read(self) -> None:
        rows = self._rows.read()
        if self._rows.was_replaced:
            self._view.recall(rows[:-1], [])
            rows = rows[-1:]
        for evaluation in self._evaluations.read():
            self._view.evaluated(evaluation)
        for row in rows:
            self._take(row)

    def _take(self, row: Row) -> None:
        self.t = row["t"]
        self._view.update(row)

    def _show(self, stats: dict[str, Any]) -> None:
        if stats["era"] != self._era:
            is_first, self._era = self._era is None, stats["era"]
            self._noted = max((number for number, _ in stats["notes"]), default=0) if is_first else 0
        for number, text in stats["notes"]:
            if number > self._noted:
                self._noted = number
                self._view.note(text)
        self._view.show(stats | {"row": {}})  # the file has every row, also when several come between two looks


class Head:
    """The head of a run as an onlooker sees it, over all its lives."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._address: Address | None = None
        self._client: Client | None = None

    def look(self, seconds: float) -> dict[str, Any] | None:
        """Ask once, and listen for so long; what it said last, None if it did not answer."""
        deadline = time.monotonic() + seconds
        stats = None
        self._connect()
        if self._client is None or not self._client.send(encode(StatsRequest())):
            time.sleep(seconds)
            return None
        while (left := deadline - time.monotonic()) > 0:
            wait([self._client], left)
            while (frames := self._client.receive()) is not None:
                with contextlib.suppress(BadMessage):
                    if isinstance(message := decode(frames), Stats):
                        stats = json.loads(message.facts)
        return stats

    def close(self) -> None:
        """Hang up."""
        if self._client:
            self._client.close()

    def _connect(self) -> None:
        """To where it is now: a run that was continued meanwhile may be elsewhere."""
        with contextlib.suppress(RunDirectoryError):
            address = address_of(self._run)
            if address != self._address:
                self.close()
                self._address, self._client = address, Client(address.endpoint, address.keys)


class Tail:
    """The rows that come into a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.was_replaced = False  # at the last reading: a run that goes back to a checkpoint writes its file anew
        self._path = path
        self._file: int | None = None  # which one it was
        self._end = 0  # of the last whole line that was read

    def read(self) -> list[Row]:
        """Those since the last call; all, when the file is another one."""
        self.was_replaced = False
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            status = os.fstat(file.fileno())  # of this one, whatever takes its name meanwhile
            if status.st_ino != self._file or status.st_size < self._end:
                self.was_replaced = self._file is not None
                self._file, self._end = status.st_ino, 0
            file.seek(self._end)
            whole, newline, _torn = file.read().rpartition(b"\n")
        self._end += len(whole) + len(newline)
        return [json.loads(line) for line in whole.splitlines()]


def _how_it_ended(run: RunDirectory, t: int) -> str:
    if t >= load_config(run.config).run.total_steps:
        return f"finished at t = {t:,}"
    if saved := list_checkpoints(run.checkpoints):
        return f"stopped at t = {clock_of(saved[-1]):,}. To go on: dpsr-apex resume {run.path}"
    return f"stopped at t = {t:,}, before there was anything to save"
