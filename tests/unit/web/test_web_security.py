"""Who may ask the explorer what: other names, other origins, missing tokens, long requests and paths that lead out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from dpsr_apex.web import WebError
from dpsr_apex.web.app import build_app
from dpsr_apex.web.runs import Runs
from dpsr_apex.web.security import MOST_BODY, Access, own_names
from dpsr_apex.web.server import listen

PORT = 8265
LOCAL = Access(PORT)
OPEN = Access(PORT, own_names("0.0.0.0", ["Workstation"]), is_local=False)
RUN = "/api/run/cart%20pole"
PLAY = f"ws://127.0.0.1:{PORT}/api/run/missing/play"  # refused after the checks, without an emulator
CHANGES = (
    ("POST", f"{RUN}/rate"),
    ("POST", f"{RUN}/actors"),
    ("POST", f"{RUN}/stars/7"),
    ("DELETE", f"{RUN}/stars/7"),
)


@pytest.fixture
def local(run_dir: Path) -> Iterator[TestClient]:
    with client_of(run_dir.parent, LOCAL) as client:
        yield client


@pytest.fixture
def exposed(run_dir: Path) -> Iterator[TestClient]:
    with client_of(run_dir.parent, OPEN) as client:
        yield client


def client_of(root: Path, access: Access) -> TestClient:
    app = build_app(Runs(root), access, most_emulators=1)
    return TestClient(app, base_url=f"http://127.0.0.1:{PORT}", follow_redirects=False)


def with_token(client: TestClient, access: Access) -> TestClient:
    client.cookies.set(access.cookie, access.token)
    return client


def refusal(client: TestClient, headers: dict[str, str]) -> str:
    """Why a WebSocket is refused."""
    with (
        pytest.raises(WebSocketDisconnect) as refused,
        client.websocket_connect(PLAY, headers={"host": f"127.0.0.1:{PORT}"} | headers),
    ):
        pass
    return refused.value.reason


def test_a_permitted_websocket_reaches_its_handler(local: TestClient, exposed: TestClient) -> None:
    assert "There is no run missing" in refusal(local, {"origin": f"http://127.0.0.1:{PORT}"})
    assert "There is no run missing" in refusal(with_token(exposed, OPEN), {})


# Names: an attacker's page that has bound its own name to this address.


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8265", "127.0.0.1.evil.example", "10.0.0.7", "localhost.evil.example", "", "["],
)
def test_another_name_is_refused_on_loopback(local: TestClient, host: str) -> None:
    assert local.get("/", headers={"host": host}).status_code == 403
    assert with_token(local, LOCAL).get("/api/session", headers={"host": host}).status_code == 403
    assert "another name" in refusal(local, {"host": host})


@pytest.mark.parametrize("host", ["127.0.0.1:8265", "localhost:8265", "LOCALHOST:9000", "[::1]:8265", "localhost."])
def test_own_names_are_accepted_with_any_port_because_it_may_be_forwarded(local: TestClient, host: str) -> None:
    assert local.get("/api/session", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(("host", "status"), [("workstation:1", 200), ("10.0.0.7", 200), ("evil.example", 403)])
def test_a_server_for_others_accepts_addresses_and_its_own_names(exposed: TestClient, host: str, status: int) -> None:
    assert with_token(exposed, OPEN).get("/api/session", headers={"host": host}).status_code == status


# Origins: a page from elsewhere in the same browser.


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "https://localhost:8265"])
def test_a_page_from_elsewhere_is_refused(local: TestClient, origin: str) -> None:
    with_token(local, LOCAL)
    headers = {"origin": origin, "host": "127.0.0.1:8265"}
    assert local.get("/api/session", headers=headers).status_code == 403
    for method, url in CHANGES:
        assert local.request(method, url, headers=headers, json={}).status_code == 403
    assert "other sites" in refusal(local, headers)


def test_a_page_from_elsewhere_cannot_embed_anything_but_can_link_here(local: TestClient) -> None:
    foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}
    assert local.get("/api/session", headers=foreign).status_code == 403
    assert local.get("/", headers=foreign | {"sec-fetch-mode": "navigate"}).status_code == 200
    assert local.get("/", headers={"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}).status_code == 200


def test_responses_permit_no_other_site_anything(local: TestClient) -> None:
    own = {"origin": "http://127.0.0.1:8265"}
    for url in ("/", "/static/app.js", "/api/session", "/api/run/missing/facts"):
        headers = local.get(url, headers=own).headers
        assert not [name for name in headers if name.startswith("access-control")]
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"


# The token.


def test_on_loopback_reading_needs_no_token_and_changing_does(local: TestClient) -> None:
    assert local.get("/api/session").json()["may_change"] is False
    assert local.get(f"{RUN}/facts").status_code == 200
    for method, url in CHANGES:
        assert local.request(method, url, json={}).status_code == 401
    assert with_token(local, LOCAL).get("/api/session").json()["may_change"] is True
    assert {local.request(method, url, json={}).status_code for method, url in CHANGES} <= {200, 400, 404, 409}


def test_for_others_everything_needs_the_token(exposed: TestClient) -> None:
    for url in ("/", "/static/app.js", "/api/session", "/api/runs", f"{RUN}/facts", f"{RUN}/map"):
        assert exposed.get(url).status_code == 401
    assert "token is missing" in refusal(exposed, {})
    for wrong in ("", "x", OPEN.token[:-1], OPEN.token + "x", OPEN.token.swapcase(), "ü"):
        exposed.cookies.clear()
        assert exposed.get("/", headers=[(b"cookie", f"{OPEN.cookie}={wrong}".encode())]).status_code == 401
        assert exposed.get("/", params={"token": wrong}).status_code == 403
    assert with_token(exposed, OPEN).get("/").status_code == 200


def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_address(exposed: TestClient) -> None:
    found = exposed.get("/run/cart%20pole/map", params={"token": OPEN.token, "at": "live"})
    assert (found.status_code, found.headers["location"]) == (303, "/run/cart%20pole/map?at=live")
    cookie = found.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert exposed.get("/").status_code == 200
    elsewhere = exposed.get(f"http://127.0.0.1:{PORT}//evil.example/", params={"token": OPEN.token})
    assert elsewhere.headers["location"] == "/evil.example/"
    named = exposed.get("/run/50%25%20of%20what%3F%20%231/map", params={"token": OPEN.token})
    assert named.headers["location"] == "/run/50%25%20of%20what%3F%20%231/map"


def test_each_server_has_another_token_and_another_cookie() -> None:
    assert Access(1).token != Access(1).token
    assert len(Access(1).token) >= 40
    assert Access(1).cookie != Access(2).cookie


# Limits.


def test_a_long_request_is_refused_before_it_is_read(local: TestClient) -> None:
    with_token(local, LOCAL)
    assert local.post(f"{RUN}/stars/7", content=b"x" * (MOST_BODY + 1)).status_code == 413
    assert local.post(f"{RUN}/stars/7", headers={"content-length": "-1"}, content=b"{}").status_code == 413
    unannounced = local.post(f"{RUN}/stars/7", content=(b" " * 4096 for _ in range(100)))
    assert unannounced.status_code == 400


def test_whoever_opens_the_printed_address_at_once_waits_until_it_is_served() -> None:
    with closing(listen("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as waiting:
        waiting.sendall(b"GET / HTTP/1.1\r\n\r\n")


def test_answers_are_sent_without_waiting_for_acknowledgements() -> None:
    async def has_no_delay() -> bool:
        accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            accepted.set_result(bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
            writer.close()

        async with await asyncio.start_server(accept, sock=listening):
            _, client = await asyncio.open_connection(*listening.getsockname())
            found = await accepted
            client.close()
            return found

    with closing(listen("127.0.0.1", 0)) as listening:
        assert asyncio.run(has_no_delay())


def test_an_address_that_cannot_be_used_is_refused_with_the_reason() -> None:
    with closing(listen("127.0.0.1", 0)) as listening:
        used = listening.getsockname()[1]
        for host, port, reason in (
            ("127.0.0.1", used, "in use.*another --port"),
            ("127.0.0.1", 70_000, "0-65535.*another --port"),
            ("nowhere.invalid", 0, "another --host"),
        ):
            with pytest.raises(WebError, match=f"{host}:{port}.*{reason}"):
                listen(host, port)


# Paths.

OUTSIDE = (
    "..",
    "../secret",
    "cart pole/../../secret",
    "/etc",
    "%2e%2e/secret",
    "..%2fsecret",
    "cart%20pole/../../secret",
    "link",
)


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_leads_out_of_the_folder(local: TestClient, run_dir: Path, trained: Path, name: str) -> None:
    secret = run_dir.parent.parent / "secret"
    secret.mkdir()
    for file in ("config.toml", "metrics.jsonl"):
        (secret / file).write_bytes((trained / file).read_bytes())
    (run_dir.parent / "link").symlink_to(secret, target_is_directory=True)
    assert local.get(f"/api/run/{name}/facts").status_code in (403, 404)
    assert local.get("/api/curves", params={"run": name}).status_code in (403, 404)
    assert [line["run"] for line in Runs(run_dir.parent).lines()] == ["cart pole"]


@pytest.mark.parametrize(
    "file", ["..%2fconfig.toml", "../config.toml", "%2fetc%2fpasswd", "link.log", "missing.log", "%00.log"]
)
def test_no_log_leads_out_of_the_run(local: TestClient, run_dir: Path, file: str) -> None:
    (run_dir / "logs" / "link.log").symlink_to("/etc/passwd")
    found = local.get(f"{RUN}/log/{file}")
    assert found.status_code in (403, 404)
    assert "root:" not in found.text
    assert local.get(f"{RUN}/log/solo.log").status_code == 200


@pytest.mark.parametrize("file", ["..%2fapp.py", "%2e%2e/security.py", "style.css%00", ""])
def test_static_files_are_only_those_of_the_explorer(local: TestClient, file: str) -> None:
    assert local.get(f"/static/{file}").status_code == 404
    assert local.get("/static/style.css").status_code == 200
