"""The one command, `dpsr-apex`: reads the command line and nothing else."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from dpsr_apex import __version__
from dpsr_apex.cli import looking, processes, running
from dpsr_apex.cli.arguments import fail

EXAMPLES = """examples:
  dpsr-apex train cartpole --actors 2
  dpsr-apex experiment cartpole
  dpsr-apex train --help
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 for a failed run, 2 for wrong input, 130 after Ctrl-C."""
    parsed = parser().parse_args(arguments)
    try:
        return _run(parsed)
    except (FloatingPointError, OSError) as error:
        return fail(f"{type(error).__name__}: {error}", 1)
    except KeyboardInterrupt:
        return 130


def _run(parsed: argparse.Namespace) -> int:
    # Here and in the commands imports come late: help and a mistyped key should not wait for torch.
    from dpsr_apex.cluster import ClusterError
    from dpsr_apex.config import ConfigError
    from dpsr_apex.envs.snapshot import UnusableEnvironment
    from dpsr_apex.inspection import InspectionError
    from dpsr_apex.processes.link import RefusedByReplay, ReplayLost
    from dpsr_apex.run.checkpoint import DamagedCheckpoint
    from dpsr_apex.run.run_directory import RunDirectoryError
    from dpsr_apex.run.supervisor import RunFailed
    from dpsr_apex.run.video import VideoError
    from dpsr_apex.wire.addresses import BadAddress
    from dpsr_apex.wire.keys import BadKeyFile
    from dpsr_apex.wire.sockets import BindError

    wrong_input = (ConfigError, UnusableEnvironment, RunDirectoryError, DamagedCheckpoint, InspectionError, VideoError)
    try:
        code: int = parsed.command(parsed)
    except (*wrong_input, BadKeyFile, BadAddress, BindError, ClusterError, RefusedByReplay) as error:
        return fail(str(error), 2)
    except (ReplayLost, RunFailed) as error:
        return fail(str(error), 1)
    return code


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="dpsr-apex",
        description="Double Prioritized State Recycled experience replay for DQN.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    running.add_to(commands)
    looking.add_to(commands)
    processes.add_to(commands)
    return top
