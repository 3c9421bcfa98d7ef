"""Runs on a cluster: Ray places the processes and gives them the head's address; ZeroMQ transports the data.

No transition and no weight passes through Ray. Ray transports where each process runs, where the head of the run
listens, and how processes ended; the run itself is stored in its directory, which all nodes must share.
"""

from __future__ import annotations

from dpsr_apex.errors import UserError


class ClusterError(UserError):
    """Raised for a cluster that cannot be used: the reason, and what to do."""
