"""When the replay asks the learner for its state: for a checkpoint, and at the end of a run.

A state machine without sockets and clock.
"""

from __future__ import annotations

from typing import NamedTuple

from dpsr_apex.protocol.replay_service import Outgoing, ReplayService


class Answer(NamedTuple):
    """Whether the state has arrived, and the messages to send if not."""

    has_come: bool
    outgoing: list[Outgoing]


class StateRequests:
    """Requests of one replay process for the learner's state."""

    def __init__(self, service: ReplayService) -> None:
        self._service = service
        self._used = 0  # states saved in a checkpoint
        self._before_last: int | None = None  # states received before the last one of the run was requested

    def for_checkpoint(self) -> Answer:
        """Return whether there is a state that is not in a checkpoint yet, which counts as used from now on.

        Without a learner no state arrives, and the checkpoint must wait.
        """
        service = self._service
        if service.states_received > self._used:
            self._used = service.states_received
            return Answer(True, [])
        return Answer(False, service.request_save())

    def for_end(self) -> Answer:
        """Return whether the learner has sent its state after the last update of a finished run.

        If the learner ends before that, its successor is awaited: it starts from fewer updates, and the rest are due
        again.
        """
        service = self._service
        if not service.finished:
            self._before_last = None
            return Answer(False, [])
        if self._before_last is not None and service.states_received > self._before_last:
            return Answer(True, [])
        if service.awaiting_state:
            return Answer(False, [])
        self._before_last = service.states_received if service.sessions.learner else None
        return Answer(False, service.request_save())
