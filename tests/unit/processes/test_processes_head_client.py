"""An observer's questions to a head that serves a real replay: answers in many parts, refusals, and silence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dpsr_apex import timeouts
from dpsr_apex.processes.discovery import HeadRecord, MemoryRegistry, follow_head
from dpsr_apex.processes.head_client import HeadClient
from dpsr_apex.processes.link import RefusedByReplay, ReplayLost
from dpsr_apex.protocol import conversions
from dpsr_apex.protocol.conversions import stored_rows
from dpsr_apex.protocol.replay_service import MOST_STORED, ReplayService
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.keys import load_keys, make_keys
from dpsr_apex.wire.messages import OWNER, SERVER
from dpsr_apex.wire.sockets import ServerSocket, wait
from tests.unit.protocol.watched_service import filled

POLL = 0.05  # seconds
PATIENCE = 20.0  # seconds


@contextmanager
def observed(folder: Path, service: ReplayService) -> Iterator[HeadClient]:
    """A client of a head that serves this service in a thread."""
    make_keys(folder)
    keys = load_keys(folder / "server.key", SERVER)
    server = ServerSocket("tcp://127.0.0.1:0", keys, accepted=[OWNER])
    registry, ended = MemoryRegistry(), threading.Event()
    registry.publish(HeadRecord(server.endpoint, keys.public[SERVER].decode(), 1))

    def serve() -> None:
        now = 0.0
        while not ended.is_set():
            wait([server], POLL)
            while (received := server.receive()) is not None:
                now += timeouts.SURVEY_GAP / 2
                for outgoing in service.handle(received.sender, decode(received.frames), now, OWNER):
                    if outgoing.address == received.sender:
                        server.send(received.sender, encode(outgoing.message))
        server.close()

    thread = threading.Thread(target=serve)
    thread.start()
    client = HeadClient(lambda: follow_head(registry, folder / "owner.key", OWNER))
    try:
        yield client
    finally:
        client.close()
        ended.set()
        thread.join()


def test_a_survey_and_transitions_are_those_of_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversions, "ROWS_PER_PART", 7)
    service, _ = filled()
    replay = service.replay
    with observed(tmp_path / "keys", service) as client:
        survey = client.survey(PATIENCE)
        identities = replay.identities
        assert survey.identities.tolist() == identities.tolist()
        assert (survey.t, survey.stored) == (replay.t, 20)
        stored = client.stored(identities[[3, 1]], PATIENCE)
        assert stored_rows(stored).transitions.snapshots == replay.read(identities[[3, 1]]).snapshots
        with pytest.raises(RefusedByReplay, match="at most"):
            client.stored(np.arange(MOST_STORED + 1), PATIENCE)


def test_a_survey_that_is_asked_for_too_soon_is_refused(tmp_path: Path) -> None:
    service, _ = filled()
    with observed(tmp_path / "keys", service) as client:
        client.survey(PATIENCE)
        with pytest.raises(RefusedByReplay, match="one survey"):
            client.survey(PATIENCE)
        client.survey(PATIENCE)


def test_a_head_that_is_missing_or_silent_is_reported() -> None:
    client = HeadClient(lambda: None)
    with pytest.raises(ReplayLost, match="has not answered"):
        client.survey(0.1)
    assert not client.is_connected
