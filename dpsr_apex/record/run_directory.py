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
from dpsr_apex.files import UNFINISHED, sync, write_atomically
from dpsr_apex.logs import LimitRepeats, RotatingLog

LOCK, REPLAY_LOCK = "lock", "replay.lock"  # files of `dpsr_apex.record.lock`

_PACKAGE = "dpsr_apex"


class RunDirectoryError(UserError):
    """Raised for a path that cannot be used as a run directory: the reason, and what to do."""


class RunDirectoryRemoved(RunDirectoryError):
    """Raised when the directory of a run in progress was removed."""

    exit_code = 1


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
    def table(self) -> Path:
        """The scalars of `metrics` as a table, if the run is tracked with csv."""
        return self.path / "metrics.csv"

    @property
    def tracking(self) -> Path:
        """The folder of the ids of the run in trackers, and of their local files; missing if there are none."""
        return self.path / "tracking"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def journal(self) -> Path:
        """The folder of the journal of a multi-process run: what has changed since its checkpoints."""
        return self.path / "journal"

    @property
    def logs(self) -> Path:
        """The folder of log files, one per process."""
        return self.path / "logs"

    @property
    def quarantine(self) -> Path:
        """The folder of transitions that could not be used; missing if there are none."""
        return self.path / "quarantine"

    @property
    def moments(self) -> Path:
        """The stored transitions that were chosen in the explorer, each with its snapshot, and notes about them."""
        return self.path / "moments.safetensors"

    @property
    def starts(self) -> Path:
        """The moments at which episodes of the run begin: a copy of `actor.start_from`."""
        return self.path / "starts.safetensors"

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
    def provenance(self) -> Path:
        """The command, versions and machine of every start, and how it ended; two JSON lines each."""
        return self.path / "provenance.jsonl"

    @property
    def keys(self) -> Path:
        """The folder of the key files, one for each role of a process."""
        return self.path / "keys"

    def key_of(self, role: str) -> Path:
        """The key file of a role."""
        return self.keys / f"{role}.key"

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
        run, new = cls(path), [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            for folder in (run.tensorboard, run.checkpoints, run.logs):
                folder.mkdir(parents=True, exist_ok=True)
            for folder in new:  # a power cut must not take the directory with everything in it
                with suppress(PermissionError):  # the folder around it may be one that nobody can list
                    sync(folder.parent)
        except OSError as error:
            raise RunDirectoryError(f"{path} cannot be created: {error.strerror}. Choose another place") from error
        return run

    def ensure_present(self) -> None:
        """Raise RunDirectoryRemoved if the directory of this run in progress was removed."""
        try:
            self.config.stat()
        except FileNotFoundError:
            raise RunDirectoryRemoved(
                f"{self.path} was removed while the run was in progress, so nothing can be saved: the run has ended"
            ) from None
        except OSError:  # a network file system that does not answer at the moment
            pass

    @staticmethod
    def is_free(path: Path) -> bool:
        """Whether it contains no completed file; a run that was killed early leaves only locks and empty folders."""
        files = (entry.name for entry in path.rglob("*") if entry.is_file())
        return not path.is_dir() or all(name in (LOCK, REPLAY_LOCK) or name.startswith(UNFINISHED) for name in files)

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
        handler = RotatingLog(self.logs / f"{name}.log", encoding="utf-8")
        handler.addFilter(LimitRepeats())
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
