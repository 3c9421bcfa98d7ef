"""The way into a Ray cluster, and why it is closed."""

from __future__ import annotations

import logging
import os
import socket

os.environ.setdefault("RAY_AUTH_MODE", "token")  # who wants a cluster that is open to all must say so

import ray
from ray.exceptions import AuthenticationError, RayError

from dpsr_apex.cluster import ClusterError

CONNECT_SECONDS = 5.0


def connect(address: str) -> None:
    """Become a client of the cluster at HOST:PORT, or of the one that this machine is in ("auto")."""
    if address != "auto":
        _ensure_listening(address)
    # Ray prints all that it hears of nodes, whatever it is told, in many lines. Here that is said in one, by the run.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    try:
        ray.init(address, namespace="dpsr_apex", log_to_driver=False, logging_level=logging.ERROR)
    except AuthenticationError as error:
        raise ClusterError(_why_denied(str(error))) from error
    except ConnectionError as error:
        raise ClusterError(_why_unreachable(address, str(error))) from error
    except (RayError, RuntimeError, ValueError) as error:  # such as another version of Ray or of Python
        raise ClusterError(f"The Ray cluster at {address} cannot be used: {' '.join(str(error).split())}") from error


def _ensure_listening(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterError(f"--cluster {address}: write auto, or HOST:PORT of its head, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise ClusterError(_why_unreachable(address, str(error))) from error


def _why_unreachable(address: str, error: str) -> str:
    where = "on this machine" if address == "auto" else f"at {address}"
    first = error.strip().partition("\n")[0].partition(". ")[0]
    return (
        f"There is no Ray cluster {where} that lets this machine in ({first}). Start one by `ray start --head`, have "
        "this machine join it by `ray start --address HOST:6379`, and have the same token on both (docs/cluster.md)"
    )


def _why_denied(error: str) -> str:
    return (
        f"{error.strip().partition('.')[0]}. Copy ~/.ray/auth_token from the cluster's head, or make one for a new "
        "cluster by `ray get-auth-token --generate`"
    )


def wants_token() -> bool:
    """Whether only a cluster that asks for a token is to be used."""
    return os.environ["RAY_AUTH_MODE"].lower() == "token"
