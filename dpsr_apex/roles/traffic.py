"""What went through the replay service, counted, and what was wrong, logged with measure."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass

log = logging.getLogger(__name__)


@dataclass
class Traffic:
    """Counters since the run began. Always: received = inserted + refused + those in the queue."""

    sent: int = 0  # transitions, as the actors say, those that are gone included
    received: int = 0  # transitions of chunks that were taken into the queue, each once
    inserted: int = 0  # transitions
    refused: int = 0  # transitions: after the last step, or not fit for the replay

    duplicate_chunks: int = 0
    gaps: int = 0  # chunks that came before an earlier one
    overruns: int = 0  # chunks beyond the window of their actor
    dropped_requests: int = 0  # for batches, beyond what may be asked for ahead

    candidates_reissued: int = 0  # their actor went away, another one got them
    candidates_failed: int = 0  # their state could not be re-entered
    candidates_given_up: int = 0  # the second actor went away as well

    malformed: int = 0  # messages that could not be read
    refused_messages: int = 0  # that could be read, and were wrong
    stale_eras: int = 0  # answers to what another life of the replay had asked
    strangers: int = 0  # messages of processes that were not in the run

    joins: int = 0  # in again included
    refused_joins: int = 0
    expired_leases: int = 0

    def counts(self) -> dict[str, int]:
        """All counters by name."""
        return asdict(self)

    def load(self, counts: Mapping[str, int]) -> None:
        """Go on from these."""
        for name, count in counts.items():
            setattr(self, name, count)


class Warner:
    """Logs one kind of fault: the first ten and then every thousandth, since who makes one may make a million."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0

    def warn(self, who: str, reason: str) -> None:
        """Count one, and maybe log it."""
        self._count += 1
        if self._count <= 10 or self._count % 1000 == 0:
            log.warning("%s: %s: %s (number %d)", self._what, who, reason, self._count)
