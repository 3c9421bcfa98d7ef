"""The layout of transitions: what all transitions of one environment have in common."""

from __future__ import annotations

from typing import Final, NamedTuple


class Layout(NamedTuple):
    """The actions and the frames of one environment; all zero where they are not known."""

    actions: int = 0  # actions are 0 to `actions` - 1
    frames: int = 0  # per state
    frame_bytes: int = 0  # of a decompressed frame
    is_vector: bool = False  # frames are float32 numbers, which are not compressed; otherwise they are pixels

    @property
    def is_known(self) -> bool:
        """Whether transitions can be checked against it."""
        return min(self.actions, self.frames, self.frame_bytes) > 0


UNKNOWN: Final = Layout()
