"""A callback that logs the digest of a replay: in the state in which it begins, and before each record of its journal.

The file is copied to where a replay is started, as a user's own callback would be.
"""

from __future__ import annotations

import os
from unittest.mock import patch

from dpsr_apex import Callback
from dpsr_apex.protocol.replay_service import ReplayService
from dpsr_apex.record.journal.commit import Commit
from dpsr_apex.record.journal.disk import Bytes
from dpsr_apex.record.journal.encoding import digest_of
from dpsr_apex.record.journal.journal import Journal

FILE = "digests"
RECOVERED, WRITTEN = "recovered", "written"


class Digests(Callback):
    """Appends lines "what number t digest"; `number` is that of the first record that is not in the state."""

    def __init__(self) -> None:
        self._file = os.open(FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        begin, append = Commit.__init__, Journal.append
        services: list[ReplayService] = []

        def log_and_begin(commit: Commit, service: ReplayService, journal: Journal) -> None:
            services.append(service)
            self._log(RECOVERED, journal.next, service)
            begin(commit, service, journal)

        def log_and_append(journal: Journal, content: list[Bytes], t: int) -> None:
            self._log(WRITTEN, journal.next + 1, services[-1])
            append(journal, content, t)

        patch.object(Commit, "__init__", log_and_begin).start()
        patch.object(Journal, "append", log_and_append).start()

    def _log(self, what: str, number: int, service: ReplayService) -> None:
        os.write(self._file, f"{what} {number} {service.t} {digest_of(service)}\n".encode())
