"""A viewer and its emulator: a real process with a real agent, commanded as a browser does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient, WebSocketTestSession

from dpsr_apex.web.app import build_app
from dpsr_apex.web.channel import Message, unpack
from dpsr_apex.web.map_bytes import DIAMOND, RECYCLED
from dpsr_apex.web.play import PLAIN
from dpsr_apex.web.runs import Runs
from dpsr_apex.web.security import Access
from tests.unit.web.test_web_sources import columns_of

RUN = "/api/run/cart%20pole"
PATIENCE = 120.0  # seconds for a process to end or to start on a busy machine


@contextmanager
def serving(trained: Path, most: int) -> Iterator[TestClient]:
    app = build_app(Runs(trained.parent), Access(8265), most)
    with TestClient(app, base_url="http://127.0.0.1:8265") as client:
        yield client


@pytest.fixture(scope="module")
def client(trained: Path) -> Iterator[TestClient]:
    with serving(trained, most=1) as client:
        yield client


@pytest.fixture(scope="module")
def viewer(client: TestClient) -> Iterator[Viewer]:
    """One viewer for all tests, because a process takes seconds to start; each of them opens the moment again."""
    with viewing(client) as viewer:
        yield viewer


@pytest.fixture(scope="module")
def identity(client: TestClient) -> int:
    """A recycled transition, which is of a single step and can be compared, as early in its episode as possible."""
    columns = columns_of(client.get(f"{RUN}/map").content)[1]
    rows = np.flatnonzero(columns["look"] == RECYCLED + DIAMOND)
    return int(columns["identity"][rows[columns["position"][rows].argmin()]])


class Viewer:
    """A browser's side of the connection."""

    def __init__(self, socket: WebSocketTestSession) -> None:
        self._socket = socket

    def send(self, command: str, **given: Any) -> None:
        self._socket.send_json({"do": command, **given})

    def send_text(self, text: str) -> None:
        self._socket.send_text(text)

    def hear(self, *wanted: str) -> Message:
        """Return the next event of these kinds; others are passed over."""
        while True:
            message = unpack(self._socket.receive_bytes())
            if message.head["event"] in wanted:
                return message

    def enter(self, identity: int) -> Message:
        """Open a moment, and return its first frame."""
        self.send("enter", id=str(identity), at="", weights="")
        assert self.hear("verified").head["is_exact"]
        return self.hear("frame")


@contextmanager
def viewing(client: TestClient) -> Iterator[Viewer]:
    with client.websocket_connect(f"ws://127.0.0.1:8265{RUN}/play") as socket:
        yield Viewer(socket)


def test_a_viewer_sees_what_the_agent_thinks_tries_every_action_and_plays(viewer: Viewer, identity: int) -> None:
    viewer.send("enter", id=str(identity), at="600", weights="")
    weights, verified = viewer.hear("weights", "verified"), viewer.hear("weights", "verified")
    facts = weights.head | verified.head
    assert (facts["key"], facts["is_exact"], facts["identity"]) == ("600", True, str(identity))
    expected = viewer.hear("expectation").head
    assert len(expected["q"]) == 2
    assert expected["greedy"] == int(np.argmax(expected["q"]))
    assert len(expected["saliency"]) == 4
    first = viewer.hear("frame")
    assert (first.head["frame"], first.head["parent"], first.head["step"]) == (0, None, 0)
    assert first.parts[first.head["players"][0]["screen"]][:4] == b"\x89PNG"
    viewer.send("try")
    outcomes = viewer.hear("tried").head["outcomes"]
    assert [outcome["action"] for outcome in outcomes] == [0, 1]
    assert sum(outcome["is_stored"] for outcome in outcomes) == 1
    viewer.send("play", speed="most")
    steps = [viewer.hear("frame").head for _ in range(5)]
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5]
    assert {step["players"][0]["by"] for step in steps} == {"agent"}
    viewer.send("pause")
    viewer.hear("paused")


def test_a_viewer_takes_over_branches_and_saves_a_video(viewer: Viewer, identity: int) -> None:
    viewer.enter(identity)
    viewer.send("drive", who="you")
    for action in (0, 1):
        viewer.send("keys", action=action)
        found = viewer.hear("frame").head
        assert (found["players"][0]["action"], found["players"][0]["by"]) == (action, "you")
    viewer.send("branch", frame=1)
    assert viewer.hear("frame").head["frame"] == 1
    viewer.send("drive", who="agent")
    viewer.send("step")
    branched = viewer.hear("frame").head
    assert (branched["frame"], branched["parent"], branched["step"]) == (3, 1, 2)
    viewer.send("save")
    video = viewer.hear("video")
    assert video.parts[0][4:8] == b"ftyp"
    assert video.head["name"] == f"moment-{identity}.mp4"


def test_two_agents_play_side_by_side(viewer: Viewer, identity: int) -> None:
    viewer.enter(identity)
    viewer.send("compare", run="cart pole", weights="best")
    assert len(viewer.hear("frame").head["players"]) == 2
    viewer.send("step")
    frame = viewer.hear("frame").head
    assert [player["by"] for player in frame["players"]] == ["agent", "agent"]
    for wrong, reason in (
        ({"run": "../x", "weights": ""}, "outside"),
        ({"run": "cart pole", "weights": "7"}, "not have weights"),
    ):
        viewer.send("compare", **wrong)
        assert reason in viewer.hear("problem").head["reason"]


WRONG = (
    *("nonsense", "[]", '{"do": "quit"}', '{"do": "open", "run": "/etc"}', '{"do": "play", "speed": "warp"}'),
    *('{"do": "keys", "action": true}', '{"do": "branch", "frame": "0"}', '{"do": "step", "more": 1}'),
    *('{"do": "enter", "id": "../7", "at": "", "weights": ""}', '{"do": "enter", "id": "7"}'),
)


def test_wrong_commands_are_refused_and_the_viewer_is_served_again(viewer: Viewer, identity: int) -> None:
    for text in WRONG:
        viewer.send_text(text)
        assert viewer.hear("problem").head["reason"]
    viewer.send("enter", id=str(10**12), at="", weights="")
    assert "not in the replay" in viewer.hear("problem").head["reason"]
    viewer.enter(identity)
    for command, given in (("branch", {"frame": 99}), ("keys", {"action": 77})):
        viewer.send(command, **given)
        assert viewer.hear("problem").head["reason"]
    assert set(PLAIN) >= {"try", "play", "pause", "step", "drive", "keys", "branch", "saliency", "save"}
