"""The run directory: where everything that a run leaves behind has its place.

Only names and folders here: what is in the files is the business of those who write them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dpsr_apex.config import Config
from dpsr_apex.config_files import dump_config

_PACKAGE = "dpsr_apex"


class RunDirectoryError(Exception):
    """A path that cannot be used as a run directory: why, and what to do instead."""


@dataclass(frozen=True)
class RunDirectory:
    """The places in one run directory. Get one by `create` or `open`."""

    path: Path

    @property
    def config(self) -> Path:
        """The run's full config, which can be run again as it is. Its presence makes a folder a run directory."""
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        """One JSON line per logging interval."""
        return self.path / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        """One JSON line per evaluation, with every single score."""
        return self.path / "evaluations.jsonl"

    @property
    def tensorboard(self) -> Path:
        """The folder to point TensorBoard at."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """The folder of log files, one for each process."""
        return self.path / "logs"

    @property
    def curve(self) -> Path:
        """The learning curve as a picture."""
        return self.path / "curve.png"

    @property
    def identity(self) -> Path:
        """The run's name for itself, by which processes tell it from others."""
        return self.path / "run_id"

    @property
    def connection(self) -> Path:
        """Where a run of several processes can be talked to, as JSON; there while it is running."""
        return self.path / "connection.json"

    @property
    def keys(self) -> Path:
        """The folder of the keys that processes on other machines need."""
        return self.path / "keys"

    @property
    def client_key(self) -> Path:
        """All that such a process needs of them."""
        return self.keys / "client.key"

    @property
    def best_weights(self) -> Path:
        """The weights of the best evaluation, as safetensors."""
        return self.path / "weights" / "best.safetensors"

    @property
    def last_weights(self) -> Path:
        """The weights of the last evaluation."""
        return self.path / "weights" / "last.safetensors"

    @classmethod
    def create(cls, path: Path) -> RunDirectory:
        """A new run directory; an existing folder must be empty, since a run never writes over another."""
        cls.ensure_free(path)
        run = cls(path)
        for folder in (run.tensorboard, run.checkpoints, run.logs):
            folder.mkdir(parents=True, exist_ok=True)
        return run

    @staticmethod
    def is_free(path: Path) -> bool:
        """Whether there is no file: empty folders are those of a run that was killed before it had written a word."""
        return not path.is_dir() or not any(entry.is_file() for entry in path.rglob("*"))

    @staticmethod
    def ensure_free(path: Path) -> None:
        """Refuse a path that `create` could not take."""
        if path.exists() and not path.is_dir():
            raise RunDirectoryError(f"{path} is a file: choose another name for the run directory")
        if not RunDirectory.is_free(path):
            raise RunDirectoryError(
                f"{path} exists and is not empty: continue it with `dpsr-apex resume {path}`, or choose a new name"
            )

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """The run directory that is at `path` already."""
        run = cls(path)
        if not path.is_dir():
            raise RunDirectoryError(f"{path} is not a run directory: there is no such folder")
        if not run.config.is_file():
            raise RunDirectoryError(f"{path} is not a run directory: it has no {run.config.name}")
        return run

    @contextmanager
    def log_to(self, name: str) -> Iterator[logging.Logger]:
        """While inside, what the package logs is appended to `logs/<name>.log`; gives the package's logger."""
        self.logs.mkdir(exist_ok=True)
        handler = _LogFile(self.logs / f"{name}.log", encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger = logging.getLogger(_PACKAGE)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        try:
            yield logger
        finally:
            logger.removeHandler(handler)
            handler.close()


class _LogFile(logging.FileHandler):
    """A log on a disk that may be full: lines that cannot be written are lost, and nothing else is."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- named so by logging
        """Say nothing: the run says by itself that the disk is full."""

    def close(self) -> None:
        """Close the file, whatever is left of it to write."""
        with suppress(OSError):
            super().close()


def default_path(config_name: str, method: str, seed: int, now: datetime, root: Path = Path("runs")) -> Path:
    """Where a run goes that was given no name, such as `runs/breakout-dpsr-seed0-20261116-101500`."""
    slug = re.sub(r"[^a-z0-9]+", "-", config_name.lower()).strip("-") or "run"
    return root / f"{slug}-{method}-seed{seed}-{now:%Y%m%d-%H%M%S}"


def title_of(config: Config, path: Path) -> str:
    """Which run it is, in one line."""
    return f"{config.env.name} · {config.replay.method} · seed {config.run.seed} · {path}"


def write_config(config: Config, run: RunDirectory) -> None:
    """Whole or not at all: without it a run cannot be continued."""
    temporary = run.config.with_name(f".unfinished-{run.config.name}")
    try:
        temporary.write_text(dump_config(config), encoding="utf-8")
        temporary.replace(run.config)
    finally:
        temporary.unlink(missing_ok=True)
