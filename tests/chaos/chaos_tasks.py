"""The environment of a run under chaos, and the ledger that each of its actors keeps outside the run.

Every observation is unique, so that a transition can be recognized wherever it is. The ledger of an actor process has a
line for each chunk before it is sent, and for each acknowledgement before it is acted on. It is written with single
appends, which survive `kill -9`. The file is copied to where the run is started, as a user's own environment would be.
"""

from __future__ import annotations

import os
import secrets
import struct
import sys
import time
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium
import numpy as np
from numpy.typing import NDArray

from dpsr_apex.envs.classic import ClassicControl, StepResult
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.protocol.client_instructions import Send
from dpsr_apex.protocol.outbox import Outbox
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.wire.messages import Chunk

LEDGERS = "DPSR_APEX_CHAOS_LEDGERS"  # environment variable with the folder
STEP_SECONDS = 0.002  # of an actor's step, so that a run of ten minutes stays small
TAGS = 2**24  # numbers that are exact in single precision
DAMAGED_PERIOD = 50  # steps between two states that no actor can re-enter

_TAG = struct.Struct("<II")


class Tagged(ClassicControl):
    """CartPole whose observations end with a random number of the environment and a serial number, both in [0, 1).

    Both belong to the state, so that snapshots are exact.
    """

    def __init__(self) -> None:
        super().__init__("CartPole-v1")
        space: Any = self.env.observation_space
        self.observation_space = gymnasium.spaces.Box(
            np.append(space.low, [0.0, 0.0]).astype(np.float32), np.append(space.high, [1.0, 1.0]).astype(np.float32)
        )
        self._tag, self._serial = secrets.randbelow(TAGS), 0
        self._is_acting = "actor" in sys.argv

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a new episode."""
        observation, info = super().reset(seed=seed, options=options)
        return self._tagged(observation), info

    def step(self, action: int) -> StepResult:
        """Take one step, no faster than an actor should."""
        if self._is_acting:
            time.sleep(STEP_SECONDS)
        observation, reward, terminal, truncated, info = super().step(action)
        return self._tagged(observation), reward, terminal, truncated, info

    def snapshot(self) -> bytes:
        """Serialize the state."""
        return _TAG.pack(self._tag, self._serial) + super().snapshot()

    def restore(self, snapshot: bytes, frames: NDArray[Any]) -> None:
        """Return to the state of a snapshot; no actor can return to some of them."""
        tag, serial = _TAG.unpack_from(snapshot)
        if self._is_acting and serial % DAMAGED_PERIOD == 0:
            raise DamagedSnapshot("a state that cannot be re-entered")
        super().restore(snapshot[_TAG.size :], frames)
        self._tag, self._serial = tag, serial

    def _tagged(self, observation: NDArray[Any]) -> NDArray[np.float32]:
        self._serial = (self._serial + 1) % TAGS
        return np.append(observation, [self._tag / TAGS, self._serial / TAGS]).astype(np.float32)


def keys_of(transitions: Transitions) -> list[str]:
    """Return a name for each transition: no two that were played have the same."""
    numbers = zip(transitions.a_tm1.tolist(), transitions.r_t.tolist(), transitions.terminal.tolist(), strict=True)
    states = zip(transitions.s_tm1, transitions.s_t, strict=True)
    return [
        blake2b(b"".join((*before, *after, repr(rest).encode())), digest_size=8).hexdigest()
        for (before, after), rest in zip(states, numbers, strict=True)
    ]


def keep_ledger(folder: Path) -> None:
    """From now on, write down what this process sends and what is acknowledged to it."""
    flush, acknowledge = Outbox.flush, Outbox.acknowledge
    path = folder / f"{secrets.token_hex(8)}.ledger"

    def write(words: Iterable[object]) -> None:
        with path.open("ab", buffering=0) as ledger:
            ledger.write((" ".join(map(str, words)) + "\n").encode())

    def flush_and_write(outbox: Outbox, now: float) -> list[Send]:
        sends = flush(outbox, now)
        for send in sends:
            if isinstance(chunk := send.message, Chunk):
                write(["sent", chunk.sequence, *keys_of(chunk.transitions)])
        return sends

    def write_and_acknowledge(outbox: Outbox, sequence: int, in_flight: int, now: float) -> None:
        if sequence > outbox.oldest:
            write(["acknowledged", sequence])
        acknowledge(outbox, sequence, in_flight, now)

    patch.object(Outbox, "flush", flush_and_write).start()
    patch.object(Outbox, "acknowledge", write_and_acknowledge).start()


if LEDGERS in os.environ and "actor" in sys.argv:
    keep_ledger(Path(os.environ[LEDGERS]))
