"""The rows of metrics as a table, `RUN_DIR/metrics.csv`: one column per scalar, empty where there is no value."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from dpsr_apex.config import Config
from dpsr_apex.files import Row, append_whole, to_json, write_atomically
from dpsr_apex.record.run_directory import RunDirectory

Cells = dict[str, str]


class CsvFile:
    """A table that is extended row by row. A continued run drops the rows after its clock."""

    id = ""

    def __init__(self, _config: Config, run: RunDirectory, _known: str, resumed_at: int | None) -> None:
        self._path = run.table
        self._columns: list[str] = []
        self._rows: list[Cells] = []
        if self._path.exists():
            self._read(resumed_at)
            self._rewrite()

    def write(self, row: Row) -> None:
        """Append a row; values for the `t` of the last row are added to it."""
        cells = {name: _cell(value) for name, value in to_json(row).items() if not isinstance(value, list | dict)}
        is_same = bool(self._rows) and self._rows[-1]["t"] == cells["t"]
        new = [name for name in cells if name not in self._columns]
        self._columns += new
        if is_same:
            self._rows[-1] |= cells
        else:
            self._rows.append(cells)
        if new or is_same:
            self._rewrite()
        else:
            with self._path.open("ab", buffering=0) as file:
                append_whole(file, self._encode([cells]))

    def close(self) -> None:
        """Do nothing: the file is closed after every row."""

    def _read(self, resumed_at: int | None) -> None:
        with self._path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            self._columns = list(reader.fieldnames or [])
            rows = [dict(row) for row in reader]
        self._rows = [row for row in rows if resumed_at is None or int(row["t"]) <= resumed_at]

    def _rewrite(self) -> None:
        head = dict(zip(self._columns, self._columns, strict=True))
        write_atomically(self._path, self._encode([head, *self._rows]))

    def _encode(self, rows: Iterable[Mapping[str, Any]]) -> bytes:
        text = io.StringIO()
        csv.DictWriter(text, self._columns, restval="", lineterminator="\n").writerows(rows)
        return text.getvalue().encode()


def _cell(value: Any) -> str:
    return "" if value is None else str(value)
