"""What users would pick instead, each driven by a script of its own in the peers' environments.

The scripts know nothing of `dpsr_apex` and are never imported by it. `Peer` starts one and talks with it: it prints
"ready" once it is set up; then every line of its input is a command, and every line of its output the answer.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Elapsed

FOLDER = Path(__file__).parent
TORCH = FOLDER / ".venv-torch" / "bin" / "python"  # tianshou, cpprb, stable-baselines3
REVERB = FOLDER / ".venv-reverb" / "bin" / "python"  # Reverb with TensorFlow, which want another numpy


class Peer:
    """A script of this folder, at work in its own process."""

    def __init__(self, python: Path, script: str, *arguments: object) -> None:
        if not python.exists():
            raise FileNotFoundError(f"{python} is missing: `make bench` sets it up")
        command = [str(python), "-P", str(FOLDER / script), *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while self._read() != "ready":
            pass  # whatever its imports print

    def ask(self, command: object) -> list[float]:
        """Give one command, and wait for the numbers of its answer."""
        assert self._process.stdin
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return [float(number) for number in self._read().split()]

    def work(self, name: str, count: int) -> Callable[[], Elapsed]:
        """A work that does `name` `count` times there, and gives the time of one."""

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
