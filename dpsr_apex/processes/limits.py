"""What the machine allows a process."""

from __future__ import annotations

import resource

MOST_FILES = 65_536  # open at once


def allow_many_connections() -> None:
    """For who listens. Each connection takes a file, and the usual limit is soon reached.

    Then the process could not open its own files any more, and would have to end.
    """
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(MOST_FILES, most)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
