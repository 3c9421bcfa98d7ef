"""Command-line options that choose where the processes of a run are started: on this machine, or on a Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dpsr_apex import timeouts
from dpsr_apex.cli.arguments import THIS_MACHINE, natural, positive, positive_number
from dpsr_apex.errors import MissingPackage

if TYPE_CHECKING:
    from dpsr_apex.running import EngineFor

CLUSTER_OPTIONS = ("cpus_per_actor", "learner_cpus", "learner_gpus")


class Place(NamedTuple):
    """Where to start the processes of a run."""

    engine_for: EngineFor
    default_actors: Callable[[], int]  # as many as there are resources for
    lock_release: float  # seconds for which a process that has ended may still hold the lock of its run


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Add the options for a Ray cluster."""
    cluster = command.add_argument_group("Ray cluster")
    cluster.add_argument(
        "--cluster", metavar="ADDRESS", help="HOST:PORT of the cluster's head, or auto for the cluster of this machine"
    )
    cluster.add_argument(
        "--cpus-per-actor", type=positive_number, metavar="N", help="cores per actor, may be a fraction (default: 1)"
    )
    cluster.add_argument("--learner-cpus", type=positive, metavar="N", help="cores of the learner (default: 1)")
    cluster.add_argument(
        "--learner-gpus", type=natural, metavar="N", help="GPUs of the learner (default: 1 if the cluster has any)"
    )


def choose_place(given: argparse.Namespace, is_solo: bool) -> Place:
    """Return the chosen place, after connecting to its cluster; raise ConfigError if options contradict each other."""
    from dpsr_apex.config import ConfigError

    if given.cluster is None:
        if named := [name for name in CLUSTER_OPTIONS if getattr(given, name) is not None]:
            raise ConfigError(f"--{named[0].replace('_', '-')} needs a cluster: add --cluster ADDRESS")
        return _this_machine(given.bind)
    if is_solo:
        raise ConfigError(f"--cluster {given.cluster}: a single-process run cannot use a cluster; omit --cluster")
    if given.bind != THIS_MACHINE:
        raise ConfigError(f"--bind {given.bind}: on a cluster every node listens on its own address; omit --bind")
    return _cluster(given)


def _this_machine(bind: str) -> Place:
    from dpsr_apex.record.run_directory import RunDirectory
    from dpsr_apex.supervise.engines import ThisMachine, default_actors
    from dpsr_apex.wire.addresses import parse_address

    endpoint = parse_address(bind)
    return Place(lambda path: ThisMachine(RunDirectory(path), endpoint), default_actors, timeouts.LOCK_RELEASE)


def _cluster(given: argparse.Namespace) -> Place:
    try:
        from dpsr_apex.supervise.ray.connection import connect
        from dpsr_apex.supervise.ray.engine import Demands, RayCluster, default_actors
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingPackage("--cluster", "ray", "ray>=2.52", "cluster") from None

    connect(given.cluster)
    demands = Demands(given.cpus_per_actor or 1, given.learner_cpus or 1, given.learner_gpus)

    def engine_for(path: Path) -> RayCluster:
        return RayCluster(given.cluster, path, demands)

    return Place(engine_for, lambda: default_actors(demands), timeouts.RAY_LOCK_RELEASE)
