"""The learner as the replay knows it: its newest state, the requests for it, and its reports.

A state that was accepted is checkpointed, and starts the next learner. A state machine without sockets and clock.
"""

from __future__ import annotations

import json

from dpsr_apex.wire.messages import LearnerState, Learning, Message, SaveRequest

_SIZE = 8  # bytes before the header of safetensors, which contain its length


class LearnerRecord:
    """The newest state and the reports of the learner of a run, whichever process that is.

    A request or its answer may be lost with a connection. So after `patience` seconds without an answer the request is
    repeated. An answer names its request, so that it is not taken for that to a later one, or of another `era`.
    """

    def __init__(self, patience: float, era: int) -> None:
        self.report: Learning | None = None  # the newest
        self.state = LearnerState("", b"")  # the newest; empty if there is none
        self.state_t = 0  # clock at which that state arrived
        self.states_received = 0
        self.owes_state = False  # whether a running learner still has to answer the last request for its state
        self.covered = -1  # batches sent before the last request that this learner has answered; -1: none
        self.trained_by: int | None = None  # incarnation of the learner that has made all updates so far
        self.request = SaveRequest(era, 0)  # the last one
        self._patience = patience
        self._arrived_at: float | None = None  # when the state arrived; None: it is from a checkpoint
        self._batches_asked = 0  # batches sent before the last request
        self._asked_at: float | None = None  # when it was last sent, set at the next tick
        self._reports: list[Learning] = []

    @property
    def updates(self) -> int:
        """The updates in the state that a new learner starts from: those lost in a crash are due again."""
        return updates_in(self.state)

    def seated(self, incarnation: int) -> None:
        """Note that another process makes the updates from now on."""
        self.trained_by, self.covered = incarnation, -1

    def request_state(self, batches: int) -> list[Message]:
        """Return the request to a running learner for its state after this number of batches, unless one is open."""
        if self.owes_state:
            return []
        self.owes_state, self._batches_asked = True, batches
        self.request = self.request._replace(number=self.request.number + 1)
        return self._ask()

    def tick(self, now: float) -> list[Message]:
        """Repeat the request to a running learner if it has not answered for long."""
        if not self.owes_state:
            return []
        if self._asked_at is None:
            self._asked_at = now
        return self._ask() if now - self._asked_at >= self._patience else []

    def welcome(self) -> list[Message]:
        """Return what a learner gets after its Welcome: the state to start from, and the request that is still open."""
        return [self.state, *(self._ask() if self.owes_state else [])]

    def ended(self) -> None:
        """Note that the learner has ended: nobody will answer."""
        self.owes_state = False

    def take_state(self, state: LearnerState, t: int, most_updates: int, now: float) -> None:
        """Keep a state that arrived at clock t; raise ValueError, without changing anything, if it is not plausible."""
        ensure_plausible(state, self.state, most_updates)
        self.state, self.state_t, self._arrived_at = state, t, now
        self.states_received += 1
        if self.owes_state and (state.era, state.request) == self.request:
            self.owes_state, self.covered = False, self._batches_asked

    def describe_state(self, now: float) -> str:
        """Describe the newest state, and how old it is."""
        if not self.state.arrays:
            return "no state of the learner, which has not sent any yet"
        age = "" if self._arrived_at is None else f", which is {now - self._arrived_at:.0f} s old"
        return f"the learner's state of t = {self.state_t:,}{age}"

    def take_report(self, report: Learning) -> None:
        """Keep a report until it is drained."""
        self.report = report
        self._reports.append(report)

    def drain_reports(self) -> list[Learning]:
        """Return the reports since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def take_over(self, former: LearnerRecord) -> None:
        """Take the state and the reports of a record that is not used any more."""
        self.state, self.report, self._reports = former.state, former.report, former._reports

    def _ask(self) -> list[Message]:
        self._asked_at = None
        return [self.request]


def ensure_plausible(state: LearnerState, known: LearnerState, most_updates: int) -> None:
    """Raise ValueError for a state with other arrays than the `known` one, or with more updates than are possible.

    `known` is empty if there is none yet. That the arrays are valid and finite was checked when it was decoded.
    """
    if known.arrays and _header(state.arrays) != _header(known.arrays):
        raise ValueError("the state of the learner has arrays of other names, shapes or types than the one before it")
    updates = updates_in(state)
    if updates > most_updates:
        raise ValueError(f"the state of the learner claims {updates:,} updates, of {most_updates:,} at most")


def updates_in(state: LearnerState) -> int:
    """Return the number of updates that a state contains; 0 for an empty one."""
    return int(json.loads(state.facts)["updates"]) if state.facts else 0


def _header(arrays: bytes) -> bytes:
    """Return the part of safetensors that describes the arrays; `pack_weights` always writes it in the same order."""
    return arrays[: _SIZE + int.from_bytes(arrays[:_SIZE], "little")]
