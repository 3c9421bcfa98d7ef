"""The replay explorer: a local web server that shows runs, maps their replays and plays on from any stored moment.

It reads runs and asks their heads; a run never depends on it. Starlette and uvicorn are imported only here. Emulators
and networks run in processes of their own, so that this one loads neither torch nor an emulator.
"""

from __future__ import annotations

from dpsr_apex.errors import UserError


class WebError(UserError):
    """Raised when the explorer cannot be started or used: the reason, and what to do."""


class Refusal(Exception):
    """Raised by a handler for a request that cannot be answered: an HTTP status and the reason in one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
