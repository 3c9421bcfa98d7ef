"""When the replay asks the learner for its state: for a checkpoint, and at the end of a run.

A state machine without sockets and clock.
"""

from __future__ import annotations

from typing import NamedTuple

from dpsr_apex import timeouts
from dpsr_apex.protocol.replay_service import Outgoing, ReplayService


class Answer(NamedTuple):
    """Whether to proceed with the newest state, whether that is a new one, and the messages to send if not."""

    may_proceed: bool
    outgoing: list[Outgoing]
    is_new: bool = False


class StateRequests:
    """Requests of one replay process for the learner's state."""

    def __init__(self, service: ReplayService) -> None:
        self._service = service
        self._due: tuple[float, int] | None = None  # since when a checkpoint is due, and states received before
        self._last: int | None = None  # the batches that the last state must cover; None before the run is finished

    def for_checkpoint(self, now: float) -> Answer:
        """Return whether to write the checkpoint that is due: a new state has arrived, or was awaited for long enough.

        A learner that is missing or frozen must not keep the replay from saving what it has acknowledged.
        """
        service = self._service
        if self._due is None:
            self._due = now, service.learner.states_received
        since, before = self._due
        is_new = service.learner.states_received > before
        if is_new or now - since >= timeouts.CHECKPOINT_STATE:
            self._due = None
            return Answer(True, [], is_new)
        return Answer(False, service.request_save())

    def for_crash(self) -> list[Outgoing]:
        """Return the request for the state that is due because the learner has made many updates since the last one.

        So a crash repeats `run.learner_state_period` updates at most, and those made while the state was on its way.
        """
        service, learner = self._service, self._service.learner
        period = service.config.run.learner_state_period
        saved = max(learner.covered, learner.updates)  # some batches may have been lost with the learner's link
        is_due = period > 0 and service.rate.batches - saved >= period and not service.finished
        return service.request_save() if is_due else []

    def for_end(self) -> Answer:
        """Return whether the learner has sent its state after the last update of a finished run.

        If the learner ends before that, its successor is awaited: it starts from fewer updates, and the rest are due
        again. In free running there is no last update: batches may be sent until the members are told to leave.
        """
        service = self._service
        if not service.finished or service.held:
            self._last = None
            return Answer(False, [])
        batches = service.rate.batches
        self._last = batches if self._last is None or service.rate.steps_per_update else min(self._last, batches)
        if service.learner.covered >= self._last:
            return Answer(True, [], is_new=True)
        return Answer(False, service.request_save())
