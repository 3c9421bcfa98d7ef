"""The answers of the server about a real run: facts, news, maps, pictures, moments, stars, files and pages."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from base64 import b64decode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.applications import Starlette
from starlette.testclient import TestClient

from dpsr_apex.config_files import load_config
from dpsr_apex.files import UnusablePath, append_row, read_rows
from dpsr_apex.record.metrics import truncate_after
from dpsr_apex.record.moments import decode_moments
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.web.app import build_app
from dpsr_apex.web.export import export_run
from dpsr_apex.web.feed import MOST_ROWS, Feed, Reader
from dpsr_apex.web.runs import Runs
from dpsr_apex.web.security import Access
from tests.unit.web.test_web_sources import columns_of

ACCESS = Access(8265)
RUN = "/api/run/cart%20pole"


@pytest.fixture(scope="module")
def client(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client with the token; its server describes the environment once, with a real emulator process."""
    root = tmp_path_factory.mktemp("pages")
    shutil.copytree(trained, root / "cart pole")
    app = build_app(Runs(root), ACCESS, most_emulators=1)
    with TestClient(app, base_url="http://127.0.0.1:8265") as client:
        client.cookies.set(ACCESS.cookie, ACCESS.token)
        yield client


def identities(client: TestClient) -> list[int]:
    found: list[int] = columns_of(client.get(f"{RUN}/map").content)[1]["identity"].tolist()
    return found


def test_the_pages_of_the_application_are_one_file(client: TestClient) -> None:
    page = client.get("/").text
    for url in ("/compare", "/run/cart%20pole", "/run/cart%20pole/map", "/run/a/b/c/moment/7"):
        assert client.get(url).text == page
    assert "http" not in re.sub(r"http-equiv", "", page), "nothing is loaded from elsewhere"
    scripts = re.findall(r"(?:src|href)=\"([^\"]+)\"", page)
    assert all(client.get(script).status_code == 200 for script in scripts)


def test_an_address_without_a_page_is_answered_by_the_application_or_in_one_line(client: TestClient) -> None:
    page = client.get("/elsewhere")
    assert (page.status_code, page.text) == (404, client.get("/").text)
    for url in ("/api/elsewhere", "/api/run/cart%20pole/elsewhere", "/static/a/b"):
        found = client.get(url)
        assert (found.status_code, found.text.count("\n"), "<" in found.text) == (404, 0, False)


def test_plotly_comes_from_its_package(client: TestClient) -> None:
    found = client.get("/static/plotly.js")
    assert found.status_code == 200
    assert len(found.content) > 1_000_000


def test_facts_describe_the_run(client: TestClient, trained: Path) -> None:
    facts = client.get(f"{RUN}/facts").json()
    assert (facts["environment"], facts["method"], facts["has_head"]) == ("CartPole-v1", "dpsr", False)
    assert facts["sources"][0] == "600"
    assert [weights["key"] for weights in facts["weights"]][-2:] == ["best", "last"]
    assert all(weights["path"] is None for weights in facts["weights"])
    assert facts["config"] == (trained / "config.toml").read_text()


def test_the_environment_is_described_by_an_emulator_process(client: TestClient) -> None:
    found = client.get(f"{RUN}/environment").json()
    assert (found["actions"], found["noop"], found["shape"]) == (["left", "right"], None, [4])
    assert (found["restorable"], found["pixels"]) == (True, False)


def test_maps_name_their_source(client: TestClient) -> None:
    found = client.get(f"{RUN}/map")
    assert found.headers["x-source"] == "600"
    assert columns_of(found.content)[0]["rows"] == 200
    assert columns_of(client.get(f"{RUN}/map", params={"most": "50"}).content)[0]["rows"] == 50
    for wrong in ("0", "-1", "x", "", "9" * 30):
        assert client.get(f"{RUN}/map", params={"most": wrong}).status_code == 400
    assert client.get(f"{RUN}/map", params={"at": "7"}).status_code == 404
    assert client.get(f"{RUN}/map", params={"at": "live"}).status_code == 409
    assert client.get("/api/run/missing/map").status_code == 404


def test_pictures_of_transitions_are_drawn(client: TestClient) -> None:
    identity = identities(client)[3]
    strip = Image.open(BytesIO(client.get(f"{RUN}/strip/{identity}.png").content))
    thumb = Image.open(BytesIO(client.get(f"{RUN}/thumb/{identity}.png", params={"at": "600"}).content))
    assert strip.width > strip.height
    assert thumb.height > thumb.width
    gone = client.get(f"{RUN}/thumb/1999999.png", params={"at": "live"})  # it was replaced since its map was drawn
    assert (gone.status_code, Image.open(BytesIO(gone.content)).format) == (200, "PNG")
    assert "max-age" not in gone.headers["cache-control"]
    for wrong in ("7x", "-1", "1" * 30, "9" * 19):
        assert client.get(f"{RUN}/strip/{wrong}.png").status_code in (400, 404)


def test_a_moment_is_everything_that_is_stored_about_it(client: TestClient) -> None:
    survey = columns_of(client.get(f"{RUN}/map").content)[1]
    row = int(np.flatnonzero(survey["recycles"])[0])
    moment = client.get(f"{RUN}/moment/{survey['identity'][row]}").json()
    assert moment["identity"] == str(survey["identity"][row])
    assert (moment["source"], moment["n_steps"], moment["note"]) == ("600", 1, None)
    assert moment["recycles"] == survey["recycles"][row]
    assert int(moment["origin"]) >= 0
    assert np.float32(moment["priority"]) == survey["priority"][row]
    assert Image.open(BytesIO(b64decode(moment["frames"][0]))).format == "PNG"
    assert np.array(moment["vectors"]).shape == (2, 1, 4)
    gone = client.get(f"{RUN}/moment/1999999")
    assert gone.status_code == 404
    assert "was replaced" in gone.text


def test_curves_of_several_runs_are_grouped(client: TestClient) -> None:
    for kind in ("evaluation", "training"):
        found = client.get("/api/curves", params={"run": "cart pole", "kind": kind}).json()
        (group,) = found["environments"][0]["groups"]
        assert group["seeds"] == 1
        assert len(group["points"][0]["t"]) > 1
    for wrong in ({"run": "cart pole", "kind": "x"}, {"run": [f"r{i}" for i in range(101)]}, {}):
        assert client.get("/api/curves", params=wrong).status_code == 400


def test_stars_are_kept_exported_and_removed(client: TestClient) -> None:
    first, second = identities(client)[:2]
    assert client.post(f"{RUN}/stars/{first}", json={"note": "<b>bold</b>"}).status_code == 200
    client.post(f"{RUN}/stars/{second}", json={})
    client.post(f"{RUN}/stars/{second}", json={"note": "changed"})
    notes = {star["identity"]: star["note"] for star in client.get(f"{RUN}/stars").json()["stars"]}
    assert notes == {str(first): "<b>bold</b>", str(second): "changed"}
    assert client.get(f"{RUN}/moment/{second}").json()["note"] == "changed"
    assert client.get(f"{RUN}/moment/{first}", params={"at": "starred"}).json()["source"] == "starred"
    found = client.get(f"{RUN}/stars/file", params={"id": str(first)})
    assert "cart-pole-moments.safetensors" in found.headers["content-disposition"]
    assert [fact.identity for fact in decode_moments(found.content, "x").facts] == [first]
    page = client.get(f"{RUN}/export")
    assert_self_contained(page.text)
    assert "<b>bold" not in page.text
    client.delete(f"{RUN}/stars/{first}")
    client.delete(f"{RUN}/stars/{second}")
    assert client.get(f"{RUN}/stars").json() == {"stars": []}
    assert client.get(f"{RUN}/stars/file").status_code == 404


@pytest.mark.parametrize(
    ("url", "content"),
    [
        *(("stars/7", b"[]"), ("stars/7", b"{"), ("stars/x", b"{}"), ("rate", b'{"steps_per_update": -1}')),
        *(("rate", b'{"steps_per_update": true}'), ("actors", b'{"actors": 0}'), ("actors", b'{"actors": "3"}')),
    ],
)
def test_a_wrong_change_is_refused(client: TestClient, url: str, content: bytes) -> None:
    assert client.post(f"{RUN}/{url}", content=content).status_code == 400


def test_a_run_without_a_head_cannot_be_changed(client: TestClient) -> None:
    found = client.post(f"{RUN}/rate", json={"steps_per_update": 8})
    assert found.status_code == 409
    assert "single-process run" in found.text


def scripts_in(text: str) -> Iterator[str]:
    """The script of a page, and those that are in it as data."""
    yield text
    for script in set(re.findall(r"data:text/javascript;base64,([\w+/=]+)", text)):
        yield from scripts_in(b64decode(script).decode())


def assert_self_contained(page: str) -> None:
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)
    for script in scripts_in(page):
        assert not re.search(r"from \"\.", script), "a module would be loaded from a file"
    facts = json.loads(page.split('id="facts">')[1].split("</script>")[0])
    columns = columns_of(b64decode(facts["survey"]))[1]
    assert len(columns["identity"]) == 200


def test_a_page_can_be_written_without_a_server(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export_run(run_dir, tmp_path / "page.html") == 0
    assert_self_contained((tmp_path / "page.html").read_text())
    assert "page.html" in capsys.readouterr().out


def test_a_page_that_cannot_be_written_is_refused_before_it_is_made(run_dir: Path, tmp_path: Path) -> None:
    for file in (tmp_path / "page.txt", tmp_path / "missing" / "page.html"):
        with pytest.raises(UnusablePath):
            export_run(run_dir, file)


# What is new.


async def events_of(app: Starlette, url: str, count: int) -> list[dict[str, Any]]:
    """The first events of a stream, from the application itself: a client would wait for its end."""
    request = {"type": "http", "method": "GET", "path": url, "raw_path": url.encode(), "query_string": b""}
    scope = request | {"headers": [(b"host", b"localhost")], "http_version": "1.1", "scheme": "http", "root_path": ""}
    found: list[dict[str, Any]] = []
    requests, ended = [{"type": "http.request", "body": b"", "more_body": False}], asyncio.Event()

    async def receive() -> dict[str, Any]:
        if requests:
            return requests.pop()
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        lines = message.get("body", b"").decode().splitlines()
        found.extend(json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))
        if len(found) >= count:
            ended.set()

    await app(scope, receive, send)
    return found[:count]


def test_the_table_and_a_run_are_streamed_and_streams_end_with_their_viewer(trained: Path) -> None:
    app = build_app(Runs(trained.parent), ACCESS, most_emulators=1)

    async def streamed() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:  # in one loop, as in a server
        return await events_of(app, "/api/runs", 2), await events_of(app, "/api/run/cart pole/live", 1)

    (lines, complete), (news,) = asyncio.run(streamed())
    assert [line["run"] for line in lines["lines"]] == ["cart pole"]
    assert (complete["complete"], complete["count"]) == (True, 1)
    assert [row["t"] for row in news["rows"]] == [row["t"] for row in read_rows(trained / "metrics.jsonl")]
    assert news["line"]["state"] == "finished"
    assert app.state.explorer.streams == 0


def test_a_reader_is_told_only_what_is_new_until_the_records_begin_again(run_dir: Path) -> None:
    run = RunDirectory(run_dir)
    feed, reader, late = Feed("x", run, load_config(run.config), None), Reader(), Reader()
    assert len(reader.take(feed.read())["rows"]) == len(read_rows(run.metrics))
    append_row(run.metrics, {"t": 700, "loss": 1.5, "unknown": 1})
    news = reader.take(feed.read())
    assert (news["reset"], news["rows"], news["evaluations"]) == (False, [{"t": 700, "loss": 1.5}], [])
    truncate_after(run.metrics, 400)
    news = reader.take(feed.read())
    assert news["reset"]
    assert max(row["t"] for row in news["rows"]) <= 400
    for t in range(1_000, 6_000):
        append_row(run.metrics, {"t": t})
    thinned = late.take(feed.read())
    assert MOST_ROWS / 2 < len(thinned["rows"]) <= MOST_ROWS
    assert thinned["rows"][-1]["t"] == 5_999
