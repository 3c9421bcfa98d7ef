"""The run directory: the paths of all files and folders of a run, without their content."""

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
from dpsr_apex.errors import UserError
from dpsr_apex.files import UNFINISHED, write_atomically

_PACKAGE = "dpsr_apex"


class RunDirectoryError(UserError):
    """Raised for a path that cannot be used as a run directory: the reason, and what to do."""


@dataclass(frozen=True)
class RunDirectory:
    """The paths in one run directory; created by `create` or `open`."""

    path: Path

    @property
    def config(self) -> Path:
        """The run's complete config, from which it can be repeated. A folder that has one is a run directory."""
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
    def random_play(self) -> Path:
        """The evaluation of a random policy, as JSON, if the config asks for it."""
        return self.path / "random_play.json"

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
        """The folder of log files, one per process."""
        return self.path / "logs"

    @property
    def curve(self) -> Path:
        """The learning curve as a picture."""
        return self.path / "curve.png"

    @property
    def video(self) -> Path:
        """An episode of the trained agent, if the config asks for it."""
        return self.path / "video.mp4"

    @property
    def identity(self) -> Path:
        """The random id of the run, which its processes compare."""
        return self.path / "run_id"

    @property
    def connection(self) -> Path:
        """The address of the head of a multi-process run, as JSON; exists while it is running."""
        return self.path / "connection.json"

    @property
    def ending(self) -> Path:
        """How the run ended, as JSON; missing while it is running, and after a kill."""
        return self.path / "ending.json"

    @property
    def keys(self) -> Path:
        """The folder of the keys that processes on other machines need."""
        return self.path / "keys"

    @property
    def client_key(self) -> Path:
        """The only key file that a process on another machine needs."""
        return self.keys / "client.key"

    @property
    def best_weights(self) -> Path:
        """The weights of the best evaluation, as safetensors."""
        return self.path / "weights" / "best.safetensors"

    @property
    def last_weights(self) -> Path:
        """The weights of the last evaluation, as safetensors."""
        return self.path / "weights" / "last.safetensors"

    @classmethod
    def create(cls, path: Path) -> RunDirectory:
        """Create a run directory; an existing folder must be empty, because a run never overwrites another."""
        cls.ensure_free(path)
        run = cls(path)
        for folder in (run.tensorboard, run.checkpoints, run.logs):
            folder.mkdir(parents=True, exist_ok=True)
        return run

    @staticmethod
    def is_free(path: Path) -> bool:
        """Whether it contains no completed file; a run that was killed early leaves only empty folders."""
        files = (entry for entry in path.rglob("*") if entry.is_file() and not entry.name.startswith(UNFINISHED))
        return not path.is_dir() or not any(files)

    @staticmethod
    def ensure_free(path: Path) -> None:
        """Raise RunDirectoryError for a path that `create` would reject."""
        if path.exists() and not path.is_dir():
            raise RunDirectoryError(f"{path} is a file. Choose another name for the run directory")
        if not RunDirectory.is_free(path):
            raise RunDirectoryError(
                f"{path} exists and is not empty. Continue it with `dpsr-apex resume {path}`, or choose a new name"
            )

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Return the existing run directory at `path`."""
        run = cls(path)
        if not path.is_dir():
            raise RunDirectoryError(f"{path} is not a run directory: there is no such folder")
        if not run.config.is_file():
            raise RunDirectoryError(f"{path} is not a run directory: it has no {run.config.name}")
        return run

    @contextmanager
    def log_to(self, name: str) -> Iterator[logging.Logger]:
        """Append the package's log to `logs/<name>.log` inside the block; yield the package's logger."""
        self.logs.mkdir(exist_ok=True)
        handler = _LogFile(self.logs / f"{name}.log", encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger = logging.getLogger(_PACKAGE)
        level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        try:
            yield logger
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            handler.close()


class _LogFile(logging.FileHandler):
    """A log file on a disk that may be full: lines that cannot be written are silently lost."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 -- name defined by logging
        """Ignore the error: the run itself reports that the disk is full."""

    def close(self) -> None:
        """Close the file, even if its last lines cannot be written."""
        with suppress(OSError):
            super().close()


def name_of(config: Config) -> str:
    """Return a short name of a run's environment: "LunarLander" for "LunarLander-v3", "Maze" for "my.module:Maze"."""
    inner = config.env.arguments.get("env")  # what an environment such as ByHistory wraps
    name = inner if isinstance(inner, str) else config.env.name
    return re.sub(r"-v\d+$", "", name.rpartition(":")[2])


def default_path(env_name: str, method: str, seed: int, now: datetime, root: Path = Path("runs")) -> Path:
    """Return the default path of a run, such as `runs/breakout-dpsr-seed0-20261116-101500`."""
    slug = re.sub(r"[^a-z0-9]+", "-", env_name.lower()).strip("-") or "run"
    return root / f"{slug}-{method}-seed{seed}-{now:%Y%m%d-%H%M%S}"


def title_of(config: Config, path: Path) -> str:
    """Return one line that names a run."""
    return f"{config.env.name} · {config.replay.method} · seed {config.run.seed} · {path}"


def write_config(config: Config, run: RunDirectory) -> None:
    """Write the config of a run, without which it cannot be continued."""
    write_atomically(run.config, dump_config(config))
