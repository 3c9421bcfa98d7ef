"""The folder `quarantine` of a run: transitions that could not be used, and why.

`transitions.jsonl` has a row for each one that was taken out of the replay. The transition itself is in
`<identity>.safetensors`, so that the cause can be looked into later. `refused.jsonl` has a row for each chunk with
transitions that were not stored, and for each kind of fault in it. All are bounded: more are only counted.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from safetensors.numpy import save

from dpsr_apex.files import Row, append_row, read_rows, write_atomically
from dpsr_apex.formatting import counted
from dpsr_apex.protocol.quarantine import Quarantined, Refusal
from dpsr_apex.replay.records import SLOT_COLUMNS
from dpsr_apex.replay.transitions import Transitions, pack

MOST_ROWS: Final = 10_000
MOST_FILES: Final = 200
MOST_BYTES: Final = 64 * 2**20  # of all files together
MOST_REASONS: Final = 3  # in one line for the user
_ROWS = "transitions.jsonl"
_REFUSALS = "refused.jsonl"


class QuarantineFolder:
    """Writes what is quarantined; nothing exists before the first transition is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        rows = read_quarantine(folder)
        self._known = {(row["t"], row["identity"]) for row in rows}  # a recovered replay quarantines again
        self._refusals = len(read_refusals(folder))
        files = list(folder.glob("*.safetensors"))
        self._files, self._bytes = len(files), sum(file.stat().st_size for file in files)

    def keep(self, quarantined: Quarantined) -> None:
        """Write transitions, as far as there is space for them in the folder; raise OSError on a full disk."""
        for number, row in enumerate(_rows_of(quarantined)):
            key = row["t"], row["identity"]
            if key in self._known or len(self._known) >= MOST_ROWS:
                continue
            self._folder.mkdir(exist_ok=True)
            self._keep_file(row["identity"], quarantined.rows.transitions.rows(number, number + 1))
            append_row(self._folder / _ROWS, row)
            self._known.add(key)

    def keep_refusal(self, refusal: Refusal) -> None:
        """Write what was refused, as far as there is space for it in the folder; raise OSError on a full disk."""
        if self._refusals < MOST_ROWS:
            self._folder.mkdir(exist_ok=True)
            append_row(self._folder / _REFUSALS, refusal._asdict())
            self._refusals += 1

    def _keep_file(self, identity: int, transition: Transitions) -> None:
        content = save(pack(transition))
        if self._files < MOST_FILES and self._bytes + len(content) <= MOST_BYTES:
            write_atomically(self._folder / f"{identity}.safetensors", content)
            self._files += 1
            self._bytes += len(content)


def read_quarantine(folder: Path) -> list[Row]:
    """Return the rows of all quarantined transitions; lines that are not rows are left out."""
    return read_rows(folder / _ROWS, bad=[])


def read_refusals(folder: Path) -> list[Row]:
    """Return the rows of all refused transitions; lines that are not rows are left out."""
    return read_rows(folder / _REFUSALS, bad=[])


def quarantine_lines(folder: Path) -> list[str]:
    """Return the numbers of quarantined and refused transitions with their most frequent reasons; [] without any."""
    quarantined = Counter(str(row.get("reason", "")) for row in read_quarantine(folder))
    refused = Counter[str]()
    for row in read_refusals(folder):
        refused[str(row.get("reason", ""))] += int(row.get("transitions", 1))
    return [
        f"{what}: {counted(reasons.total(), 'transition')} ({_most_frequent(reasons)})"
        for what, reasons in (("quarantined", quarantined), ("refused", refused))
        if reasons
    ]


def _most_frequent(reasons: Counter[str]) -> str:
    shown = [f"{count:,} × {reason}" for reason, count in reasons.most_common(MOST_REASONS)]
    return "; ".join([*shown, *(["…"] if len(reasons) > MOST_REASONS else [])])


def _rows_of(quarantined: Quarantined) -> list[dict[str, Any]]:
    slots, priorities, transitions = quarantined.rows
    columns = {column.name: getattr(slots, column.name).tolist() for column in SLOT_COLUMNS}
    columns |= {
        "priorities": priorities.tolist(),
        "actions": transitions.a_tm1.tolist(),
        "rewards": transitions.r_t.tolist(),
        "terminals": transitions.terminal.tolist(),
        "n_steps": transitions.n_steps.tolist(),
        "snapshot_bytes": [len(snapshot) for snapshot in transitions.snapshots],
        "frame_bytes": [[len(frame) for frame in stack] for stack in transitions.s_tm1],
    }
    names = [_SINGULAR.get(name, name) for name in columns]
    common = {"t": quarantined.t, "reason": quarantined.reason}
    return [common | dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


_SINGULAR: Final = {
    "identities": "identity",
    "births": "birth",
    "gains": "gain",
    "depths": "depth",
    "origins": "origin",
    "priorities": "priority",
    "actions": "action",
    "rewards": "reward",
    "terminals": "terminal",
}
