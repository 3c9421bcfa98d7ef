"""Stored transitions as JSON and bytes, on their way to an emulator process."""

from __future__ import annotations

import math
from typing import Any

from dpsr_apex.inspection.stored import StoredTransition

_BYTES = ("s_tm1", "s_t", "snapshot")


def encode_transition(stored: StoredTransition) -> tuple[dict[str, Any], list[bytes]]:
    """Return a transition as facts for JSON, and its frames and snapshot."""
    facts = {name: value for name, value in stored._asdict().items() if name not in _BYTES}
    facts["gain"] = None if math.isnan(stored.gain) else stored.gain
    return facts | {"depth_of_stack": len(stored.s_tm1)}, [*stored.s_tm1, *stored.s_t, stored.snapshot]


def decode_transition(facts: dict[str, Any], parts: list[bytes]) -> StoredTransition:
    """Return the transition that `encode_transition` has encoded."""
    depth = facts["depth_of_stack"]
    known = {name: value for name, value in facts.items() if name != "depth_of_stack"}
    known["gain"] = math.nan if known["gain"] is None else known["gain"]
    s_tm1, s_t = tuple(parts[:depth]), tuple(parts[depth:-1])
    return StoredTransition(**known, s_tm1=s_tm1, s_t=s_t, snapshot=parts[-1])
