"""`python -m dpsr_apex.cli.template`: the template of a run, which is forked for each of its processes.

Standard input is a socket to the supervisor. A request is a command line and three file descriptors: the process's
standard input, its output, and a pipe for the answer, its process id. The answer is complete when that pipe is closed,
which is after the supervisor has become the parent of the process, and after the process has its own session and
command line. The template ends with the supervisor.

No thread may be running at a fork: what is loaded here starts none, and is not used here.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from dpsr_apex import cli

LOADED = (
    *("dpsr_apex.agent.dqn", "dpsr_apex.agent.quantile", "dpsr_apex.envs.make"),
    *("dpsr_apex.processes.actor", "dpsr_apex.processes.learner", "dpsr_apex.processes.evaluator"),
)
LONGEST_REQUEST = 65_536  # bytes
DESCRIPTORS = 3


def main() -> int:
    """Load what most processes need, and fork on request; in a forked process, return its exit code."""
    show_command(["dpsr-apex template"])
    for module in LOADED:
        importlib.import_module(module)
    cli.parser()
    gc.freeze()  # so that collections in forked processes do not copy the shared memory
    arguments = forked()
    return 0 if arguments is None else cli.main(arguments)


def forked() -> list[str] | None:
    """Fork on each request; return the arguments in a forked process, and None in the template when it should end."""
    requests = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    while True:
        request, descriptors, *_ = socket.recv_fds(requests, LONGEST_REQUEST, DESCRIPTORS)
        if not request:
            return None
        between = os.fork()
        if between == 0:
            requests.close()
            if pid := os.fork():
                os.write(descriptors[-1], str(pid).encode())
                os._exit(0)
            return take_over(json.loads(request), descriptors)
        os.waitpid(between, 0)  # only then does the forked process have its new parent
        for descriptor in descriptors:
            os.close(descriptor)


def take_over(arguments: list[str], descriptors: Sequence[int]) -> list[str]:
    """Make this forked process look like one that was started with these arguments; return them."""
    os.setsid()
    sys.argv = [cli.__file__, *arguments]
    show_command([sys.executable, "-P", "-m", cli.__name__, *arguments])
    stdin, output, _ = descriptors
    for source, target in ((stdin, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    for descriptor in descriptors:
        os.close(descriptor)
    return arguments


def show_command(words: Sequence[str]) -> None:
    """Replace this process's command line, as `ps` shows it; a longer one is cut off."""
    with suppress(OSError), open("/proc/self/stat", "rb") as status, open("/proc/self/mem", "r+b", 0) as memory:
        start, end = map(int, status.read().rpartition(b")")[2].split()[45:47])
        memory.seek(start)
        memory.write("\0".join(words).encode()[: end - start - 1].ljust(end - start, b"\0"))


if __name__ == "__main__":
    sys.exit(main())
