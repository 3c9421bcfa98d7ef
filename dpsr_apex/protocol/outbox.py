"""An actor's transitions on their way to the replay, in numbered chunks that are kept until they are acknowledged.

A state machine without sockets and clock. Lost chunks are resent, starting from the first unacknowledged one
(go-back-N); the replay accepts each number once, so duplicates are harmless.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from dpsr_apex import timeouts
from dpsr_apex.protocol.client_instructions import Send
from dpsr_apex.replay.transitions import Transitions, concatenate
from dpsr_apex.wire.messages import Chunk


class Outbox:
    """Collects transitions until `in_flight` of them are not acknowledged; then the actor must wait.

    They are sent in chunks of up to `chunk`; of up to half of `in_flight`, so that some are on their way while others
    are collected; and sooner while steps are slow. Chunks are resent when nothing was acknowledged for `patience`
    seconds.
    """

    def __init__(self, chunk: int, in_flight: int, patience: float, now: float) -> None:
        self.sent = 0  # transitions, without repeats
        self._chunk = chunk
        self._in_flight = in_flight
        self._patience = patience
        self._transitions: list[Transitions] = []  # not yet in a chunk
        self._td_errors: list[NDArray[np.float64]] = []  # of those, if they have any
        self._episodes: list[tuple[float, int]] = []
        self._policies: list[int] = []  # for each of those additions, the updates of the policy
        self._collecting_since = now
        self._unacknowledged: deque[Chunk] = deque()
        self._next_sequence = 0
        self._progress_at = now  # when a chunk was last acknowledged, or all were resent

    @property
    def is_full(self) -> bool:
        """Whether the actor must wait for acknowledgements."""
        return self.unacknowledged + self._collected >= self._in_flight

    @property
    def oldest(self) -> int:
        """The first chunk that can still be sent; all earlier ones were acknowledged."""
        return self._unacknowledged[0].sequence if self._unacknowledged else self._next_sequence

    @property
    def unacknowledged(self) -> int:
        """Transitions that were sent but not acknowledged."""
        return sum(len(chunk.transitions) for chunk in self._unacknowledged)

    @property
    def acknowledged(self) -> int:
        """Transitions that were sent and acknowledged."""
        return self.sent - self.unacknowledged

    def add(self, transitions: Transitions, td_errors: NDArray[np.float64] | None, policy: int) -> None:
        """Add transitions to the next chunk; either all transitions of an actor have TD errors, or none.

        `policy` is the number of updates of the policy that chose their actions.
        """
        self._transitions.append(transitions)
        self._policies.append(policy)
        if td_errors is not None:
            self._td_errors.append(td_errors)

    def add_episode(self, score: float, steps: int) -> None:
        """Add the result of an episode to the next chunk."""
        self._episodes.append((score, steps))

    def tick(self, actors: int, now: float) -> list[Send]:
        """Send a chunk that is full or has waited long enough, and resend chunks that are overdue.

        With more `actors` a chunk waits longer, because each one costs the replay time.
        """
        if not self._transitions:
            self._collecting_since = now
        is_full = self._collected >= min(self._chunk, max(self._in_flight // 2, 1))
        is_late = now - self._collecting_since >= min(actors * timeouts.CHUNK_PACE, timeouts.CHUNK_FLUSH)
        sends = self.flush(now) if is_full or is_late else []
        if self._unacknowledged and now - self._progress_at > self._patience:
            sends = self.resume(0, now)
        return sends

    def flush(self, now: float) -> list[Send]:
        """Send all transitions that are not in a chunk yet."""
        if not self._transitions:
            return []
        chunk = Chunk(
            self._next_sequence,
            concatenate(self._transitions),
            np.concatenate(self._td_errors) if self._td_errors else None,
            np.array([score for score, _ in self._episodes], dtype=np.float64),
            np.array([steps for _, steps in self._episodes], dtype=np.int64),
            float(np.average(self._policies, weights=[len(rows) for rows in self._transitions])),
        )
        for waiting in (self._transitions, self._td_errors, self._episodes, self._policies):
            waiting.clear()
        if not self._unacknowledged:
            self._progress_at = now
        self._unacknowledged.append(chunk)
        self._next_sequence += 1
        self.sent += len(chunk.transitions)
        return [Send(chunk)]

    def acknowledge(self, sequence: int, in_flight: int, now: float) -> None:
        """Discard all chunks before `sequence`, which the replay has settled; set a new limit of `in_flight`."""
        self._in_flight = in_flight
        while self._unacknowledged and self._unacknowledged[0].sequence < sequence:
            self._unacknowledged.popleft()
            self._progress_at = now

    @property
    def _collected(self) -> int:
        """Transitions that are not in a chunk yet."""
        return sum(map(len, self._transitions))

    def resume(self, sequence: int, now: float) -> list[Send]:
        """Resend from chunk `sequence` on, the next one that the replay expects."""
        self._progress_at = now
        return [Send(chunk) for chunk in self._unacknowledged if chunk.sequence >= sequence]
