"""Observations of a user's space as the replay stores them: tuples of compressed frames, shared where they are equal.

An image with several planes, such as a stack of grey frames, is split into these planes along its shorter outer axis.
Consecutive stacked observations differ in one frame, so that a step stores one frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dpsr_apex.checksums import CHECKSUM_BYTES
from dpsr_apex.envs.compression import FrameCodec
from dpsr_apex.envs.keys import coarse_key_for, hash_key
from dpsr_apex.errors import UserError
from dpsr_apex.replay.transitions import Stack

MOST_FRAMES: Final = 64  # of one observation; an image with more planes is stored as one frame

Known = dict[bytes, bytes]
"""Compressed frames by their content."""


class ObservationCodec:
    """Compresses and decompresses observations of one space."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
            raise UserError(
                f"observation_space must be a Box, Discrete, MultiBinary or MultiDiscrete space (got {space}); "
                "flatten it with gymnasium.wrappers.FlattenObservation"
            )
        self.shape: tuple[int, ...] = space.shape or ()
        self.dtype = np.dtype(space.dtype)
        self._axis = _frame_axis(self.shape, self.dtype)
        frame_shape = self.shape
        if self._axis is not None:
            frame_shape = tuple(np.delete(self.shape, self._axis).tolist())
        self._codec = FrameCodec(frame_shape, self.dtype)
        is_coarse = isinstance(space, spaces.Box) and (self.dtype == np.uint8 or len(self.shape) == 1)
        self._coarse_key = coarse_key_for(space) if is_coarse else lambda frame: frame.tobytes()

    def compress(self, observation: NDArray[Any], known: Known) -> tuple[Stack, Known]:
        """Return the compressed observation, and its frames as `known` for the next one; frames in it are reused."""
        if self._axis is None:
            content = observation.tobytes()
            frame = known.get(content) or self._codec.compress(observation)
            return (frame,), {content: frame}
        frames = self._frames(observation)
        contents = [frame.tobytes() for frame in frames]
        found: Known = {}
        for content, frame in zip(contents, frames, strict=True):
            if content not in found:
                found[content] = known.get(content) or self._codec.compress(frame)
        return tuple(found[content] for content in contents), found

    def decompress_stacks(self, stacks: Sequence[Stack]) -> NDArray[Any]:
        """Return observations as one new array of shape (batch, *observation shape)."""
        frames = self._codec.decompress_stacks(stacks)
        if self._axis is None:
            return frames[:, 0]
        return np.ascontiguousarray(np.moveaxis(frames, 1, 1 + self._axis))

    @property
    def frame_bytes(self) -> int:
        """The size of every compressed frame if each observation is one frame of this size, otherwise 0."""
        is_varying = self._axis is not None or self._codec.is_compressed
        return 0 if is_varying else self._codec.frame_bytes + CHECKSUM_BYTES

    def read_pairs(self, pairs: NDArray[np.void]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the first and the second of each pair of observations of one frame that is not compressed."""
        return self._codec.read_pairs(pairs)

    def key(self, observation: NDArray[Any]) -> int:
        """Return a 64-bit key of the newest frame: equal for frames that count as the same."""
        return hash_key(self._coarse_key(self._frames(observation)[-1]))

    def _frames(self, observation: NDArray[Any]) -> NDArray[Any]:
        if self._axis is None:
            return observation[np.newaxis]
        return np.moveaxis(observation, self._axis, 0)


def _frame_axis(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int | None:
    """Return the axis along which frames are stacked, the shorter of the first and the last; None if there is none."""
    if dtype != np.uint8 or len(shape) < 3:
        return None
    axis = 0 if shape[0] <= shape[-1] else len(shape) - 1
    return axis if 1 <= shape[axis] <= MOST_FRAMES else None
