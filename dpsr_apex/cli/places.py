"""Where a run is to live, as the command line says: on this machine, or on a cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dpsr_apex.cli.arguments import HERE, natural, positive, positive_number

if TYPE_CHECKING:
    from dpsr_apex.run.commands import EngineFor

CLUSTER_OPTIONS = ("cpus_per_actor", "learner_cpus", "learner_gpus")


class Home(NamedTuple):
    """A place for a run."""

    engine_for: EngineFor
    room_for_actors: Callable[[], int]


def add_cluster(command: argparse.ArgumentParser) -> None:
    """How a command is told to use a cluster."""
    cluster = command.add_argument_group("on a Ray cluster")
    cluster.add_argument("--cluster", metavar="ADDRESS", help="HOST:PORT of its head, or auto: that of this machine")
    cluster.add_argument(
        "--cpus-per-actor", type=positive_number, metavar="N", help="may be a part of one (default: 1)"
    )
    cluster.add_argument("--learner-cpus", type=positive, metavar="N", help="and threads of torch (default: 1)")
    cluster.add_argument("--learner-gpus", type=natural, metavar="N", help="(default: 1 where the cluster has any)")


def find_home(given: argparse.Namespace, is_solo: bool) -> Home:
    """The place that was named; a cluster is connected to."""
    from dpsr_apex.config import ConfigError

    if given.cluster is None:
        if named := [name for name in CLUSTER_OPTIONS if getattr(given, name) is not None]:
            raise ConfigError(f"--{named[0].replace('_', '-')} is about a cluster: name it with --cluster ADDRESS")
        return _this_machine(given.bind)
    if is_solo:
        raise ConfigError(f"--cluster {given.cluster}: a run of one process has no use for it; leave it out")
    if given.bind != HERE:
        raise ConfigError(f"--bind {given.bind}: on a cluster every node listens at its own address; leave it out")
    return _cluster(given)


def _this_machine(bind: str) -> Home:
    from dpsr_apex.run.engines import ThisMachine, room_for_actors
    from dpsr_apex.run.run_directory import RunDirectory
    from dpsr_apex.wire.addresses import parse_address

    endpoint = parse_address(bind)
    return Home(lambda path: ThisMachine(RunDirectory(path), endpoint), room_for_actors)


def _cluster(given: argparse.Namespace) -> Home:
    from dpsr_apex.cluster import ClusterError

    try:
        from dpsr_apex.cluster.engine import Demands, RayCluster, connect, room_for_actors
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ClusterError("--cluster needs Ray, which is not installed: pip install 'dpsr_apex[cluster]'") from None

    connect(given.cluster)
    demands = Demands(given.cpus_per_actor or 1, given.learner_cpus or 1, given.learner_gpus)

    def engine_for(path: Path) -> RayCluster:
        return RayCluster(given.cluster, path.resolve(), demands)

    return Home(engine_for, lambda: room_for_actors(demands))
