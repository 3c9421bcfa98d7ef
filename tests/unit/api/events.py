"""Callbacks for tests, which another process can import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dpsr_apex as da
from dpsr_apex.callbacks import Stop


class WriteEvents(da.Callback):
    """Appends every event to `events.jsonl` in the run directory."""

    def on_step(self, run: da.LiveRun, transitions: int) -> None:
        _write(run, "step", transitions)

    def on_update(self, run: da.LiveRun, report: dict[str, float]) -> None:
        _write(run, "update", report["updates"])

    def on_episode(self, run: da.LiveRun, score: float, steps: int) -> None:
        _write(run, "episode", [score, steps])

    def on_evaluation(self, run: da.LiveRun, row: dict[str, Any]) -> None:
        _write(run, "evaluation", row)

    def on_checkpoint(self, run: da.LiveRun, path: Path) -> None:
        _write(run, "checkpoint", path.name)

    def on_end(self, run: da.LiveRun, finished: bool) -> None:
        _write(run, "end", [finished, run.updates])


class StopAt300(da.Callback):
    """Stops the run when 300 transitions are inserted."""

    def on_step(self, run: da.LiveRun, transitions: int) -> Stop | None:  # noqa: ARG002 -- the interface
        return da.STOP if run.t >= 300 else None


class FailAtEpisode(da.Callback):
    """Raises at the end of the first episode."""

    def on_episode(self, run: da.LiveRun, score: float, steps: int) -> Stop | None:  # noqa: ARG002 -- the interface
        raise RuntimeError("no more episodes")


def _write(run: da.LiveRun, event: str, value: object) -> Stop | None:
    with (run.path / "events.jsonl").open("a") as file:
        file.write(json.dumps([event, run.t, value]) + "\n")
    return None


def read_events(run: da.Run) -> dict[str, list[Any]]:
    """Return the values of each event, in their order."""
    found: dict[str, list[Any]] = {}
    for line in (run.path / "events.jsonl").read_text().splitlines():
        event, _, value = json.loads(line)
        found.setdefault(event, []).append(value)
    return found
