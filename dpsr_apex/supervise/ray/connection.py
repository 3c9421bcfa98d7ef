"""Connect to a Ray cluster, and explain why that fails."""

from __future__ import annotations

import contextlib
import logging
import os
import socket

os.environ.setdefault("RAY_AUTH_MODE", "token")  # using a cluster without authentication requires an explicit choice

import ray
from ray.exceptions import AuthenticationError, RayError

from dpsr_apex import timeouts
from dpsr_apex.supervise.ray import ClusterError
from dpsr_apex.supervise.ray.node_check import about_exposed_token, exposed_token


def connect(address: str) -> None:
    """Connect to the cluster at HOST:PORT, or to the one that this machine is part of ("auto")."""
    if file := exposed_token():
        raise ClusterError(about_exposed_token(file))
    if address != "auto":
        _ensure_listening(address)
    # Ray prints many lines for every event of a node, at any log level; the run reports it in one line.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    try:
        with contextlib.chdir("/"):  # Ray's workers import from the current directory of whoever calls this
            ray.init(address, namespace="dpsr_apex", log_to_driver=False, logging_level=logging.ERROR)
    except AuthenticationError as error:
        raise ClusterError(_why_denied(str(error))) from error
    except ConnectionError as error:
        raise ClusterError(_why_unreachable(address, str(error))) from error
    except (RayError, RuntimeError, ValueError) as error:  # for example another version of Ray or Python
        raise ClusterError(f"The Ray cluster at {address} cannot be used: {' '.join(str(error).split())}") from error


def _ensure_listening(address: str) -> None:
    """Reject an address where nothing listens; Ray itself would keep trying for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterError(f"--cluster {address}: write auto, or HOST:PORT of its head, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeouts.RAY_CONNECT).close()
    except OSError as error:
        raise ClusterError(_why_unreachable(address, str(error))) from error


def _why_unreachable(address: str, error: str) -> str:
    where = "on this machine" if address == "auto" else f"at {address}"
    first = error.strip().partition("\n")[0].partition(". ")[0]
    return (
        f"No Ray cluster {where} accepts this machine ({first}). Start one with `ray start --head`, add this machine "
        "with `ray start --address HOST:6379`, and use the same token on both (docs/cluster.md)"
    )


def _why_denied(error: str) -> str:
    return (
        f"{error.strip().partition('.')[0]}. Copy ~/.ray/auth_token from the cluster's head, or create one for a new "
        "cluster with `ray get-auth-token --generate`"
    )
