"""Where the transitions of a run are read from: one of its checkpoints, or the head of a running run.

Only the requested parts of a checkpoint are read: a replay of a million transitions takes gigabytes, the numbers in it
some megabytes. So the checksum of the whole file is not verified; what is read is validated instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from dpsr_apex import timeouts
from dpsr_apex.config import Config
from dpsr_apex.inspection.stored import StoredTransition, plain_transitions
from dpsr_apex.processes.head_client import HeadClient
from dpsr_apex.protocol.conversions import MOST_SURVEYED, stored_rows
from dpsr_apex.record.checkpoint import MANIFEST, clock_of
from dpsr_apex.replay.records import SLOT_COLUMNS, SlotColumns, StoredRows
from dpsr_apex.replay.survey import Survey, survey_of
from dpsr_apex.replay.transitions import PackedRows, Transitions
from dpsr_apex.web import Refusal


class Found(NamedTuple):
    """One transition of a source: as plain values, and as a row, which can be stored elsewhere."""

    plain: StoredTransition
    row: Transitions


class Source(Protocol):
    """Where transitions are read from. Its methods raise Refusal if they cannot."""

    @property
    def label(self) -> str:
        """Its name in URLs: "live", or the clock of a checkpoint."""

    def survey(self) -> Survey:
        """Return the numbers of every transition."""

    def find(self, identities: Sequence[int]) -> list[Found]:
        """Return those of these transitions that are stored, in any order."""


class CheckpointSource:
    """The replay in a checkpoint; it stays readable if the run removes the checkpoint."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self._config = config
        self._rows: PackedRows | None = None
        try:
            _check_sizes(path)
            self._facts = json.loads((path / "replay.json").read_bytes())["replay"]
            self._arrays = _LazyArrays(path / "replay.safetensors")
            self._identities = self._arrays["identities"]
            if len(self._identities) != self._facts["size"]:
                raise ValueError(f"{len(self._identities)} identities for {self._facts['size']} transitions")
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise Refusal(409, f"The checkpoint {path.name} cannot be read ({error}).") from error

    @property
    def label(self) -> str:
        """The clock of the checkpoint."""
        return str(clock_of(self.path))

    def survey(self) -> Survey:
        """Return the numbers of every transition."""
        filled = np.arange(self._facts["size"])
        return survey_of(self._facts["t"], self._config.replay.capacity, filled, self._arrays, MOST_SURVEYED)

    def find(self, identities: Sequence[int]) -> list[Found]:
        """Return those of these transitions that are stored."""
        rows = np.flatnonzero(np.isin(self._identities, np.array(identities, np.int64)))
        try:
            if self._rows is None:
                self._rows = PackedRows(self._arrays, self._arrays.piece)
            transitions = self._rows.read(rows.tolist())
        except (SafetensorError, IndexError, KeyError, ValueError) as error:
            raise Refusal(409, f"The checkpoint {self.path.name} is damaged ({error}).") from error
        slots = SlotColumns(*(self._column(column.name, column.blank, rows) for column in SLOT_COLUMNS))
        return _found(StoredRows(slots, self._arrays["priorities"][rows], transitions), self._facts["t"])

    def _column(self, name: str, blank: Any, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return a column of some transitions; a checkpoint of an earlier version may lack it."""
        return self._arrays[name][rows] if name in self._arrays else np.full(len(rows), blank)


class LiveSource:
    """The replay of a running run, through its head; `client` is used by one thread at a time."""

    label = "live"

    def __init__(self, client: HeadClient) -> None:
        self._client = client

    def survey(self) -> Survey:
        """Return the numbers of every transition now."""
        return self._client.survey(timeouts.CONTROL_ANSWER)

    def find(self, identities: Sequence[int]) -> list[Found]:
        """Return those of these transitions that are stored now."""
        answer = self._client.stored(np.array(identities, np.int64), timeouts.CONTROL_ANSWER)
        return _found(stored_rows(answer), answer.t)


def _found(rows: StoredRows, t: int) -> list[Found]:
    plain = plain_transitions(rows, t)
    return [Found(one, rows.transitions.rows(row, row + 1)) for row, one in enumerate(plain)]


class _LazyArrays(Mapping[str, NDArray[Any]]):
    """The arrays of a safetensors file, each read on first use; the pieces are never read as a whole."""

    def __init__(self, path: Path) -> None:
        opened: Any = safe_open(path, framework="numpy")  # without types
        self._file = opened
        self._names = set(self._file.keys())
        self._pieces = self._file.get_slice("pieces")
        self._read: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._read:
            self._read[name] = self._file.get_tensor(name)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def piece(self, start: int, end: int) -> bytes:
        """Return some bytes of all pieces."""
        found: bytes = self._pieces[start:end].tobytes()  # reads no more than these
        if len(found) != end - start:
            raise ValueError("a piece is missing")
        return found


def _check_sizes(path: Path) -> None:
    """Raise ValueError unless the files of a checkpoint have the sizes of its manifest."""
    manifest = json.loads((path / MANIFEST).read_bytes())
    for name in ("replay.json", "replay.safetensors"):
        size = (path / name).stat().st_size
        if manifest["files"][name]["size"] != size:
            raise ValueError(f"{name} has {size} bytes instead of {manifest['files'][name]['size']}")
