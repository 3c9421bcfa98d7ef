"""Observations whose frames are stored once, although consecutive observations share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SharedFrames:
    """Observations as references to distinct frames."""

    distinct: NDArray[Any]  # (frames, *frame shape)
    index: NDArray[np.int64]  # (batch, stack): the frames of each observation

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the frames' numbers."""
        return self.distinct.dtype


Observations = NDArray[Any] | SharedFrames
"""A batch of observations of shape (batch, stack, *frame)."""
