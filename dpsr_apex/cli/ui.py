"""`dpsr-apex ui`: the replay explorer in a browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsr_apex.cli.arguments import natural, positive
from dpsr_apex.errors import MissingPackage

SUMMARY = "explore runs and their replays in a browser, and play on from any stored moment"
EXAMPLES = """\
  dpsr-apex ui                                             all runs in runs/
  dpsr-apex ui runs/kungfumaster-dpsr-seed0-20260101-120000
  dpsr-apex ui runs --host 0.0.0.0                         for other machines; the printed address has a token
  dpsr-apex ui runs/kungfumaster-dpsr-seed0-20260101-120000 --export kungfumaster.html
"""
PORT = 8265
EMULATORS = 4


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    command.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("runs"),
        metavar="DIR",
        help="a run, or a folder with runs (default: runs)",
    )
    command.add_argument(
        "--port", type=natural, default=PORT, metavar="N", help=f"port to listen on, 0 for any (default: {PORT})"
    )
    command.add_argument(
        "--host", default="127.0.0.1", metavar="HOST", help="address to listen on (default: this machine only)"
    )
    command.add_argument(
        "--emulators",
        type=positive,
        default=EMULATORS,
        metavar="N",
        help=f"maximum number of emulator processes (default: {EMULATORS})",
    )
    command.add_argument(
        "--export", type=Path, metavar="FILE.html", help="write the map and the stars of a run to this file, and exit"
    )


def run(given: argparse.Namespace) -> int:
    """Serve the explorer, or write one page; return the exit code."""
    try:
        from dpsr_apex.web.export import export_run
        from dpsr_apex.web.server import serve
    except ImportError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        needed = ("starlette", "uvicorn", "websockets", "plotly")
        raise MissingPackage("the explorer", error.name, needed, "web") from error
    if given.export:
        return export_run(given.folder, given.export)
    return serve(given.folder, given.host, given.port, given.emulators)
