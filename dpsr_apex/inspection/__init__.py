"""Inspect the replay of a run, and continue from the state of any stored transition."""

from __future__ import annotations

from dpsr_apex.errors import UserError


class InspectionError(UserError):
    """Raised when a replay or a transition cannot be inspected: the reason, and what to do instead."""
