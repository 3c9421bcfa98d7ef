"""The saved weights of a run: of its checkpoints, and of its best and last evaluation.

Listing them does not need torch, loading them does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from dpsr_apex.agent.protocol import Agent
from dpsr_apex.config import Config
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.files import read_rows
from dpsr_apex.record.checkpoint import clock_of, list_checkpoints
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.roles.build import NETWORKS, build_agent, one_thread


class WeightsGone(Exception):
    """Raised for weights that cannot be loaded, with the reason."""


class Weights(NamedTuple):
    """Weights of a run."""

    key: str  # in URLs: the clock of a checkpoint, "best" or "last"
    label: str
    path: Path


def weights_of(run: RunDirectory) -> list[Weights]:
    """Return the weights of a run, those to use by default first: of the newest checkpoint."""
    found = [
        Weights(str(t), f"checkpoint at t = {t:,}", path / "learner.safetensors")
        for path in reversed(list_checkpoints(run.checkpoints))
        for t in [clock_of(path)]
    ]
    rows = [row for row in read_rows(run.evaluations, []) if isinstance(row.get("mean"), int | float)]
    if rows and run.best_weights.is_file():
        best = max(rows, key=lambda row: float(row["mean"]))
        found.append(Weights("best", f"best evaluation, t = {best['t']:,}", run.best_weights))
    if rows and run.last_weights.is_file():
        found.append(Weights("last", f"last evaluation, t = {rows[-1]['t']:,}", run.last_weights))
    return found


def load_weights(config: Config, env: StackedEnv, path: Path | None) -> Agent:
    """Return an agent with the weights in this file, or an untrained one for None.

    Without a target network in the file, both networks are the same.
    """
    agent = build_agent(one_thread(config), env, config.run.seed)
    if path is None:
        return agent
    try:
        opened: Any = safe_open(path, framework="numpy")  # without types
        with opened as file:
            names = list(file.keys())
            if not any(name.startswith("target.") for name in names):
                agent.load_weights("online", {name: file.get_tensor(name) for name in names})
                agent.sync_target()
                return agent
            for network in NETWORKS:
                own = [name for name in names if name.startswith(f"{network}.")]
                agent.load_weights(network, {name: file.get_tensor(name) for name in own})
    except (OSError, SafetensorError) as error:
        raise WeightsGone(f"the weights in {path.parent.name} cannot be read: {error}") from error
    except ValueError as error:
        raise WeightsGone(f"the weights in {path.parent.name} do not fit this run: {error}") from error
    return agent
