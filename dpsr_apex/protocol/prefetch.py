"""The learner's prefetching of batches, including repeated requests when an answer is lost.

State machines without sockets and clock.
"""

from __future__ import annotations

import numpy as np

from dpsr_apex.protocol.client_instructions import Send
from dpsr_apex.wire.messages import Message, Priorities, SampleRequest


class Prefetch:
    """Keeps up to `depth` batches requested or ready.

    A request or its answer may be lost with a connection. So after `patience` seconds without a batch, all missing ones
    are requested again; the replay ignores requests beyond `depth`.
    """

    def __init__(self, depth: int, patience: float) -> None:
        self._depth = depth
        self._patience = patience
        self._requested = 0  # batches that have not arrived
        self._waiting_since = 0.0  # when the last batch arrived, or the first of these was requested

    def joined(self) -> None:
        """Start over: the replay discards the requests of a client that joins."""
        self._requested = 0

    def arrived(self, now: float) -> None:
        """Note that a batch has arrived."""
        self._requested = max(self._requested - 1, 0)
        self._waiting_since = now

    def undelivered(self) -> None:
        """Note that the socket did not accept a request."""
        self._requested = max(self._requested - 1, 0)

    def tick(self, ready: int, now: float) -> list[Send]:
        """Request the missing batches; `ready` batches are waiting to be trained on."""
        if self._requested and now - self._waiting_since > self._patience:
            self._requested = 0
        if self._requested == 0:
            self._waiting_since = now
        missing = max(self._depth - self._requested - ready, 0)
        self._requested += missing
        return [Send(SampleRequest())] * missing


def merge_priorities(messages: list[Message]) -> list[Message]:
    """Merge consecutive Priorities messages of the same era into one; other messages are unchanged."""
    merged: list[Message] = []
    for message in messages:
        last = merged[-1] if merged else None
        if isinstance(message, Priorities) and isinstance(last, Priorities) and last.era == message.era:
            merged[-1] = Priorities(
                last.era,
                np.concatenate((last.identities, message.identities)),
                np.concatenate((last.td_errors, message.td_errors)),
            )
        else:
            merged.append(message)
    return merged
