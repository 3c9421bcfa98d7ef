"""Both ends of every conversation are state machines: `protocol/` has no clock, socket, thread, file or randomness."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dpsr_apex.protocol
from tests.unit.test_laws import imports, sources, within

PACKAGE = Path(dpsr_apex.protocol.__file__).parent
MAY_IMPORT = {
    *("__future__", "collections", "dataclasses", "enum", "itertools", "json", "logging", "math", "typing", "numpy"),
    *("pathlib.PurePath", "pathlib.PurePosixPath"),  # paths that cannot touch a file
    *("dpsr_apex.config", "dpsr_apex.config_files", "dpsr_apex.exploration", "dpsr_apex.state", "dpsr_apex.timeouts"),
    *(
        "dpsr_apex.protocol",
        "dpsr_apex.checksums",
        "dpsr_apex.formatting",
        "dpsr_apex.rate_limit",
        "dpsr_apex.replay",
        "dpsr_apex.wire.messages",
        "dpsr_apex.wire.statistics",
    ),
}


def impurities(tree: ast.Module) -> list[str]:
    """What in a file of the protocol reaches for more than its arguments."""
    from_paths = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} & {"pathlib"}
    whole = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    allowed = MAY_IMPORT | {"dpsr_apex"}
    modules = [name for name in imports(tree) if not within(name, allowed) and name not in from_paths]
    modules += [name for name in whole if name == "pathlib"]
    own = [name for name in imports(tree) if within(name, {"dpsr_apex"}) and not within(name, MAY_IMPORT)]
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    reaching = [name for name in calls if name in {"open", "print", "input"} or name.startswith("np.random")]
    return modules + [name for name in own if name != "dpsr_apex"] + reaching


def test_the_protocol_is_sans_io() -> None:
    files = sources(PACKAGE)
    assert {"membership.py", "outbox.py", "replay_service.py"} <= {file.name for file in files}
    assert {file.name: found for file, tree in files.items() if (found := impurities(tree))} == {}


@pytest.mark.parametrize(
    "broken",
    [
        "import time",
        "from time import monotonic",
        "import threading",
        "import socket",
        "from pathlib import Path",
        "import pathlib",
        "from dpsr_apex.wire.sockets import ClientSocket",
        "from dpsr_apex.processes.link import ask",
        "open('file')",
        "np.random.default_rng()",
    ],
)
def test_io_in_the_protocol_would_be_noticed(broken: str) -> None:
    assert impurities(ast.parse(broken))
