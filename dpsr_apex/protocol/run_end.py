"""How a replay process ends: it gets the learner's last state, tells the members to leave, and waits for them.

A state machine without sockets and clock.
"""

from __future__ import annotations

import math
from enum import Enum

from dpsr_apex import timeouts
from dpsr_apex.protocol.replay_service import Outgoing, ReplayService
from dpsr_apex.protocol.state_requests import StateRequests


class Phase(Enum):
    """The phase of a replay process."""

    SERVING = "the run continues"
    AWAITING_STATE = "the run should be stopped: the learner's state is awaited"
    LEAVING = "the members were told to leave"


class RunEnd:
    """Ends the run that a service serves: by itself when the run is finished, otherwise when it is asked to.

    A run is finished when its learner has sent its state after the last update that is due.
    """

    def __init__(self, service: ReplayService, states: StateRequests) -> None:
        self.phase = Phase.SERVING
        self.is_finished = False
        self._service = service
        self._states = states
        self._batches = 0  # sent before it was asked to stop
        self._deadline = math.inf  # of the present phase

    def tick(self, is_asked: bool, now: float) -> list[Outgoing]:
        """Do what is due, several times a second; `is_asked`: the run should be stopped."""
        if self.phase is Phase.LEAVING:
            return []
        answer = self._states.for_end()
        if answer.may_proceed:
            return self._say_goodbye(is_finished=True, now=now)
        if self.phase is Phase.SERVING:
            if not is_asked:
                return answer.outgoing + self._states.for_crash()
            self.phase, self._deadline = Phase.AWAITING_STATE, now + timeouts.LEARNER_STATE
            self._batches = self._service.rate.batches
        return answer.outgoing + self._stop(now)

    def may_save(self, now: float) -> bool:
        """Whether the last checkpoint may be written: all members have left, or the time for that is up."""
        return self.phase is Phase.LEAVING and (self._service.everybody_left or now >= self._deadline)

    def _stop(self, now: float) -> list[Outgoing]:
        """Wait for a state of the learner that was requested after all batches so far."""
        service, learner = self._service, self._service.learner
        is_missing = service.sessions.learner is not None and learner.covered < self._batches
        if is_missing and now < self._deadline:
            return service.request_save()
        if is_missing:
            service.notes.add(f"The learner did not answer: the last checkpoint has {learner.describe_state(now)}.")
        return self._say_goodbye(is_finished=False, now=now)

    def _say_goodbye(self, is_finished: bool, now: float) -> list[Outgoing]:
        self.phase, self.is_finished = Phase.LEAVING, is_finished
        self._deadline = now + timeouts.MEMBERS_LEAVE
        return self._service.goodbye(is_finished, f"the run {'is finished' if is_finished else 'was stopped'}")
