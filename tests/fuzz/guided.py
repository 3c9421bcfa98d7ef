"""Fuzz the codec and the services with libFuzzer, guided by the coverage of the Python code: `python -m tests.fuzz`.

Arguments are those of libFuzzer. An input is a sequence of messages for a fresh head, encoded with msgpack; mutations
are those of `tests.fuzz.mutations` and libFuzzer's own.
"""

from __future__ import annotations

import logging
import sys
from random import Random

import atheris
import msgpack

import dpsr_apex.replay.replay  # noqa: F401 -- compiled by numba, which cannot compile instrumented code

with atheris.instrument_imports(include=["dpsr_apex"]):
    from tests.fuzz.head import Message, play
    from tests.fuzz.mutations import mutated, seeds

LONGEST = 12  # messages of an input

_SEEDS = seeds()


def packed(messages: list[Message]) -> bytes:
    """Return an input."""
    encoded: bytes = msgpack.packb([[message.sender, message.frames] for message in messages])
    return encoded


def unpacked(data: bytes) -> list[Message]:
    """Return the messages of an input; [] for bytes that are none."""
    try:
        found = [Message(sender % 8, frames) for sender, frames in msgpack.unpackb(data)]
        is_input = all(type(frame) is bytes for message in found for frame in message.frames)
    except Exception:  # libFuzzer starts with bytes of its own
        return []
    return found if is_input else []


def handle(data: bytes) -> None:
    """Let a fresh head handle an input."""
    play(unpacked(data)[:LONGEST])


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Return a changed input."""
    rng, messages = Random(seed), unpacked(data)
    at = rng.randrange(len(messages)) if messages else 0
    match rng.randrange(8):
        case 0 | 1 if len(messages) < LONGEST:
            messages.insert(rng.randrange(len(messages) + 1), rng.choice(_SEEDS))
        case 2 if len(messages) > 1:
            del messages[at]
        case 3 if messages:
            messages.append(messages[at])
        case 4 if messages and messages[at].frames:
            frames = list(messages[at].frames)
            frame = rng.randrange(len(frames))
            frames[frame] = bytes(atheris.Mutate(frames[frame], len(frames[frame]) + 16))
            messages[at] = Message(messages[at].sender, frames)
        case _ if messages:
            messages[at] = mutated(messages[at], _SEEDS, rng)
        case _:
            messages = [rng.choice(_SEEDS)]
    made = packed(messages)
    return made if len(made) <= max_size else data


def main() -> None:
    """Fuzz until libFuzzer ends this process."""
    logging.disable(logging.CRITICAL)
    atheris.Setup(sys.argv, handle, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
