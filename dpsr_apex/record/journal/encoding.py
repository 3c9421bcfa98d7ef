"""The content of one record of the journal: the events of a replay service, each encoded as on the wire."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import cast, get_args

from dpsr_apex.protocol.events import Event
from dpsr_apex.protocol.replay_service import ReplayService
from dpsr_apex.wire.codec import BadMessage, Codec, Frame

_COUNT, _SIZE = struct.Struct("<B"), struct.Struct("<I")
_CODEC = Codec(get_args(Event))


Received = Mapping[int, Sequence[Frame]]
"""The frames of messages from which events were made, by the id of the message: an event that is one is not encoded."""


def encode_events(events: Iterable[Event], received: Received = MappingProxyType({})) -> list[Frame]:
    """Return the parts of a record."""
    return [part for event in events for part in join_frames(_frames_of(event, received.get(id(event))))]


def _frames_of(event: Event, received: Sequence[Frame] | None) -> list[Frame]:
    return _CODEC.encode(event) if received is None else _CODEC.adopt(type(event), received)


def decode_events(record: Frame) -> Iterator[Event]:
    """Yield the events of a record; raise BadMessage if it is invalid."""
    return (cast(Event, _CODEC.decode(frames)) for frames in split_frames(record))


def join_frames(frames: Sequence[Frame]) -> list[Frame]:
    """Return the parts of one message: the number of its frames and their sizes, then the frames."""
    sizes = b"".join(_SIZE.pack(len(frame)) for frame in frames)
    return [_COUNT.pack(len(frames)) + sizes, *frames]


def split_frames(content: Frame) -> Iterator[list[Frame]]:
    """Yield the frames of each message in joined parts; raise BadMessage if one is incomplete."""
    content, place = memoryview(content), 0
    while place < len(content):
        try:
            (count,) = _COUNT.unpack_from(content, place)
            sizes = struct.unpack_from(f"<{count}I", content, place + _COUNT.size)
        except struct.error as error:
            raise BadMessage(f"it ends within a message ({error})") from None
        place += _COUNT.size + count * _SIZE.size
        ends = [place := place + size for size in sizes]
        yield [content[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def digest_of(service: ReplayService) -> str:
    """Return a digest of everything that a recovery restores exactly."""
    digest = hashlib.blake2b(digest_size=16)
    service.feed(digest.update)
    return digest.hexdigest()
