"""Start the explorer: its address, its token, and the line that is printed."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import uvicorn

from dpsr_apex.web import WebError
from dpsr_apex.web.app import build_app
from dpsr_apex.web.runs import Runs
from dpsr_apex.web.security import MOST_BODY, TOKEN, Access, own_names
from dpsr_apex.wire.addresses import is_loopback

CONNECTIONS = 256  # at the same time; more are refused
LEAVE = 3  # seconds for open pages, when the server is stopped


def serve(root: Path, host: str, port: int, most_emulators: int) -> int:
    """Serve the runs at or below `root` until Ctrl-C; return the exit code."""
    runs = Runs(root)
    listening = listen(host, port)
    port = listening.getsockname()[1]
    is_local = is_loopback(f"tcp://{_bracketed(host)}:{port}")
    others = () if is_local else (socket.gethostname(), socket.getfqdn())
    access = Access(port, own_names(host, others), is_local)
    sys.stdout.write(f"{_shown(access, host)}\n")
    sys.stdout.flush()
    app = build_app(runs, access, most_emulators, is_warm=True)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="websockets-sansio",
        ws_max_size=MOST_BODY,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=LEAVE,
    )
    _Server(config, app.state.explorer.ending).run(sockets=[listening])
    return 0


class _Server(uvicorn.Server):
    """Ends the streams of open pages when it is stopped."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving."""
        self._ending.set()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, so that a browser that connects before requests are served waits for the answer.

    Its protocol is named, because asyncio disables Nagle's algorithm only for sockets that it recognizes as TCP: with
    the algorithm, an answer waits for the delayed acknowledgement of its headers.
    """
    try:
        family, kind, protocol, *_ = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as on_failure:
            listening = on_failure.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((host.strip("[]"), port))
            listening.listen(CONNECTIONS)
            on_failure.pop_all()
    except (OSError, OverflowError) as error:  # OverflowError: a port above 65535
        reason = str(getattr(error, "strerror", None) or error).rstrip(".")
        remedy = "choose another --port, or stop the other program" if port else "choose another --host"
        raise WebError(f"cannot listen on {host}:{port} ({reason}): {remedy}") from error
    return listening


def _shown(access: Access, host: str) -> str:
    """Return what is printed at the start."""
    name = host if access.is_local or host not in ("0.0.0.0", "::", "[::]") else socket.gethostname()
    url = f"http://{_bracketed(name)}:{access.port}/?{TOKEN}={access.token}"
    note = "" if access.is_local else "  (anyone who has this address can see and change these runs)"
    return f"Explorer: {url}{note}\nPress Ctrl-C to stop it; runs are not affected."


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
