"""`dpsr-apex replay` without keys, to measure what keys cost. It listens on this machine only.

The role of a sender is that of the first message that it sends, which is a Join.
"""

from __future__ import annotations

import sys
from typing import Any

from dpsr_apex import cli
from dpsr_apex.processes import replay
from dpsr_apex.wire.codec import decode
from dpsr_apex.wire.keys import Keys
from dpsr_apex.wire.messages import Join
from dpsr_apex.wire.sockets import Received, ServerSocket


class KeylessServer(ServerSocket):
    """A server that accepts everyone."""

    def __init__(self, endpoint: str, _keys: Keys | None, *more: Any) -> None:
        super().__init__(endpoint, None, *more)
        self._roles: dict[bytes, str] = {}  # by sender

    def receive(self) -> Received | None:
        """Return the next message, or None if there is none."""
        received = super().receive()
        if received is None:
            return None
        if received.sender not in self._roles:
            first = decode(received.frames)
            self._roles[received.sender] = first.role if isinstance(first, Join) else ""
        return received._replace(role=self._roles[received.sender])


if __name__ == "__main__":
    setattr(replay, "ServerSocket", KeylessServer)  # noqa: B010 -- it is not exported there
    sys.exit(cli.main())
