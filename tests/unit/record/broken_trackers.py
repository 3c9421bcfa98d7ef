"""Trackers that fail or do not answer, in place of those in the table."""

from __future__ import annotations

from threading import Event
from typing import Any, ClassVar

from dpsr_apex.files import Row


class FailsAtOpen:
    id = "never"

    def __init__(self, *_arguments: Any) -> None:
        raise RuntimeError("the server\nis away")


class FailsAtSecondRow:
    id = "some"
    written: ClassVar[list[Row]] = []
    closed: ClassVar[list[str]] = []

    def __init__(self, *_arguments: Any) -> None:
        self.written.clear()
        self.closed.clear()

    def write(self, row: Row) -> None:
        self.written.append(row)
        if len(self.written) == 2:
            raise ConnectionError("the server is away")

    def close(self) -> None:
        self.closed.append(self.id)


class NeverCloses:
    id = "slow"
    released = Event()

    def __init__(self, *_arguments: Any) -> None:
        pass

    def write(self, row: Row) -> None:
        pass

    def close(self) -> None:
        self.released.wait()
