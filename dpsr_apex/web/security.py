"""Access control: the checks that every request must pass before it reaches a handler.

A page of another site in the same browser can send requests to this server, and with a rebound DNS name it could even
read the responses. So the Host must be a name of this server and the Origin, if there is one, must be this server.
Requests that change something need the token, also on loopback; on any other address all requests do. CORS headers are
never sent.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BODY = 64 * 1024  # bytes of a request; notes are the longest
TOKEN = "token"  # parameter in a URL
SAFE = ("GET", "HEAD")  # methods that change nothing

POLICY = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "connect-src 'self'", "img-src 'self' data: blob:"),
        # plotly.js adds style rules while it draws.
        *("style-src 'self' 'unsafe-inline'", "media-src blob:", "base-uri 'none'", "form-action 'none'"),
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",  # the first URL contains the token
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(frozen=True)
class Access:
    """What a server accepts: `names` are its host names, in lower case, besides loopback addresses."""

    port: int
    names: frozenset[str] = frozenset({"localhost"})
    is_local: bool = True  # only reachable from this machine: reading needs no token
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def cookie(self) -> str:
        """The name of the cookie with the token; several servers on one host must not share it."""
        return f"dpsr_apex_{self.port}"

    def is_own_host(self, host: str) -> bool:
        """Whether a Host header names this server.

        A name that an attacker has bound to this address is not accepted. An address cannot be rebound, so a server
        that others can reach accepts every address.
        """
        name = _name_of(host)
        if name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback if self.is_local else True

    def has_token(self, given: str) -> bool:
        """Compare with the token, in a time that does not depend on where they differ."""
        return secrets.compare_digest(given.encode(), self.token.encode())


class Guard:
    """Passes on only requests that are permitted, and adds headers to every response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if scope["type"] == "websocket":
            if refusal:
                await send({"type": "websocket.close", "code": 1008, "reason": _text(refusal)})  # before it is accepted
            else:
                await self._app(scope, receive, send)
            return
        sender = _with_headers(send)
        if refusal:
            await refusal(scope, receive, sender)
        else:
            await self._app(scope, _limited(receive), sender)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request that must not be passed on; None if it is permitted."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._access.is_own_host(hosts[0]):
            return _refused(403, "This server has another name. Open the address that the command printed.")
        if any(not _is_same(origin, hosts[0]) for origin in headers.getlist("origin")) or _is_cross_site(headers):
            return _refused(403, "Pages of other sites may not use this server.")
        if scope["type"] == "http" and int_of(headers.get("content-length", "0")) > MOST_BODY:
            return _refused(413, f"A request may have at most {MOST_BODY} bytes.")
        if scope["type"] == "http" and scope["method"] in SAFE and (found := _token_in(scope)) is not None:
            return self._admitted(scope, *found)
        scope.setdefault("state", {})["has_token"] = has_token = self._has_cookie(headers)
        changes = scope["type"] == "http" and scope["method"] not in SAFE
        if not has_token and (changes or not self._access.is_local):
            return _refused(401, "The token is missing: open the address that the command printed, with ?token=…")
        return None

    def _admitted(self, scope: Scope, token: str, rest: str) -> Response:
        """Exchange a token in the URL for a cookie, and remove it from the URL."""
        if not self._access.has_token(token):
            return _refused(403, "The token is not valid: it is new at every start of the server.")
        path = "/" + scope["raw_path"].decode("latin-1").lstrip("/")  # "//host" would lead to another host
        response = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        response.set_cookie(self._access.cookie, self._access.token, httponly=True, samesite="strict")
        return response

    def _has_cookie(self, headers: Headers) -> bool:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._access.cookie)
        except CookieError:
            return False
        return cookie is not None and self._access.has_token(cookie.value)


def int_of(text: str) -> int:
    """Parse a number >= 0 from a request; anything else counts as a very large number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 2**62


def own_names(host: str, others: Iterable[str] = ()) -> frozenset[str]:
    """Return the names of a server that listens on `host`, besides addresses."""
    return frozenset({"localhost", host.strip("[]").lower(), *(name.lower() for name in others)} - {""})


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_same(origin: str, host: str) -> bool:
    """Whether an Origin is that of a page of this server; a proxy in front of it may use https."""
    return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def _is_cross_site(headers: Headers) -> bool:
    """Whether a browser reports that another site's page sent the request, other than by a link to this server."""
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "")
    return site not in ("none", "same-origin") and mode != "navigate"


def _token_in(scope: Scope) -> tuple[str, str] | None:
    """Return the token in the URL and the other parameters; None if there is no token."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    given = [value for name, value in pairs if name == TOKEN]
    return (given[0], urlencode([pair for pair in pairs if pair[0] != TOKEN])) if given else None


def _refused(status: int, reason: str) -> Response:
    return PlainTextResponse(reason, status)


def _text(response: Response) -> str:
    return bytes(response.body).decode()


def _limited(receive: Receive) -> Receive:
    """Return a `receive` that ends a request whose body is longer than announced, or was not announced."""
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        return message if received <= MOST_BODY else {"type": "http.disconnect"}

    return limited


def _with_headers(send: Send) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return sender
