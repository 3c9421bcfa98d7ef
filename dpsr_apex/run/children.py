"""A process that is looked after: how it is started, what it said last, and when it may be started again."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

LASTING_SECONDS = 60.0  # one that has lived for so long may die again as often as at first
MOST_DEATHS = {"replay": 3, "learner": 3, "evaluator": 3, "actor": 5, "run": 2}  # in a row
LONGEST_PAUSE = 30.0  # seconds before it is started again


@dataclass
class Child:
    """One process, in all its lives."""

    name: str
    role: str
    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    log_start: int = 0  # where in the log its present life begins
    deaths: int = 0  # in a row
    start_at: float | None = 0.0  # when to start it (again); None: it runs, or is given up

    @property
    def runs(self) -> bool:
        """Whether it is alive."""
        return self.process is not None and self.process.poll() is None

    @property
    def is_done(self) -> bool:
        """Whether it ended because the run did."""
        return self.process is not None and self.process.poll() == 0

    @property
    def died(self) -> bool:
        """Whether it ended otherwise, and was not yet buried."""
        return self.process is not None and self.process.poll() not in (None, 0)

    def start(self) -> None:
        """Start it; its log takes all that it prints, and the pipe tells it when this process is gone."""
        self.start_at = None
        self.started = time.monotonic()
        with self.log.open("ab") as output:
            self.log_start = output.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dpsr_apex.cli", *self.command, "--lifeline"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the supervisor, which then ends the run in order
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it is alive."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        """End it at once, if it is alive."""
        if self.process is not None and self.process.poll() is None:
            log.warning("%s did not leave and is killed", self.name)
            self.process.kill()
            self.process.wait()

    def last_words(self) -> str:
        """The traceback of its present life, or its last lines."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            file.seek(self.log_start)
            lines = file.read().decode(errors="replace").splitlines()
            begins = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
            return "\n".join(f"    {line}" for line in lines[begins[-1] if begins else -5 :])
        return ""

    def bury(self, now: float) -> str:
        """After its death: say what it died of, and plan its next life, unless it has died too often."""
        assert self.process is not None
        code = self.process.returncode
        self.process = None
        self.deaths = 1 if now - self.started > LASTING_SECONDS else self.deaths + 1
        if self.deaths < MOST_DEATHS[self.role]:
            self.start_at = now + min(0.5 * 2**self.deaths, LONGEST_PAUSE)
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    @property
    def given_up(self) -> bool:
        """Whether it has died too often."""
        return self.process is None and self.start_at is None
