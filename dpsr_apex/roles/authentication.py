"""Authentication of snapshots with a key that only the actors of a run have.

An emulator trusts the bytes that it restores, and crafted ones can crash its process or do worse. So an actor restores
only what an actor of the run has made. Whoever else can change what a replay stores or sends cannot make it restore
anything new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.roles.experience import Faults

NOT_AUTHENTIC: Final = "the snapshot was not made by an actor of this run, or was made with keys that were replaced"
_TAG = np.dtype("<u8")


class SnapshotKey:
    """Makes and verifies the tags of snapshots: 64 bits of keyed BLAKE2b."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, transitions: Transitions) -> Transitions:
        """Return the transitions with the tags of their snapshots."""
        return replace(transitions, snapshot_tags=self._tags(transitions.snapshots))

    def faults(self, transitions: Transitions) -> Faults:
        """Return the transitions whose snapshots do not have the right tag."""
        wrong = np.flatnonzero(transitions.snapshot_tags != self._tags(transitions.snapshots))
        return dict.fromkeys(wrong.tolist(), NOT_AUTHENTIC)

    def _tags(self, snapshots: Sequence[bytes]) -> NDArray[np.uint64]:
        digests = [blake2b(snapshot, digest_size=_TAG.itemsize, key=self._key).digest() for snapshot in snapshots]
        return np.frombuffer(b"".join(digests), _TAG).astype(np.uint64)
