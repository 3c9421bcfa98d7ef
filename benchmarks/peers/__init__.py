"""Alternatives that are compared with `dpsr_apex`, each driven by its own script in a separate environment.

The scripts do not import `dpsr_apex` and are never imported by it. `Peer` starts a script and communicates with it: the
script prints "ready" once it is set up; then it reads one command per line and prints one answer per line.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Elapsed

FOLDER = Path(__file__).parent
TORCH = FOLDER / ".venv-torch" / "bin" / "python"  # tianshou, cpprb, stable-baselines3
SCORE = FOLDER / ".venv-score" / "bin" / "python"  # training programs
ENVPOOL = FOLDER / ".venv-envpool" / "bin" / "python"
TORCHRL = FOLDER / ".venv-torchrl" / "bin" / "python"  # torchrl with the torch that it was built for
REVERB = FOLDER / ".venv-reverb" / "bin" / "python"  # Reverb with TensorFlow, which need another numpy


class Peer:
    """A script of this folder, running in its own process."""

    def __init__(self, python: Path, script: str, *arguments: object) -> None:
        if not python.exists():
            raise FileNotFoundError(f"{python} is missing: `make bench` creates it")
        command = [str(python), "-P", str(FOLDER / script), *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while self._read() != "ready":
            pass  # skip output of its imports

    def ask(self, command: object) -> list[float]:
        """Send one command and return the numbers of the answer."""
        assert self._process.stdin
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return [float(number) for number in self._read().split()]

    def task(self, name: str, count: int) -> Callable[[], Elapsed]:
        """Return a task that runs the operation `name` `count` times in the peer and returns the time of one."""

        def repeat() -> Elapsed:
            cpu, wall = self.ask(f"{name} {count}")
            return Elapsed(cpu, wall).per(count)

        return repeat

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with exit code {self._process.wait()}")
        return line.strip()
