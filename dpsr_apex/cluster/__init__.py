"""Runs on a cluster: Ray decides where processes live and tells them where to connect, ZeroMQ carries the data.

No transition and no weight goes through Ray. What Ray carries is who runs where, where the head of the run listens, and
how processes ended; the run itself is kept in its directory, which all nodes must see.
"""


class ClusterError(Exception):
    """A cluster that cannot be used: why, and what to do."""
