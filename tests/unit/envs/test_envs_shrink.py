from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsr_apex.envs.shrink import Shrinker

HEIGHTS = (210, 214, 220, 230, 250)  # of all screens that the emulator has
SHRINKERS = {height: Shrinker(height, 160, 84) for height in HEIGHTS}


def assert_as_opencv(one: np.ndarray, other: np.ndarray) -> None:
    expected = cv2.resize(np.maximum(one, other), (84, 84), interpolation=cv2.INTER_AREA)
    np.testing.assert_array_equal(SHRINKERS[one.shape[0]](one, other), expected)


@settings(deadline=None)
@given(st.sampled_from(HEIGHTS), st.integers(2, 256), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_noise_and_blocks_shrink_as_in_opencv(height: int, colours: int, block: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    palette = random.integers(256, size=colours).astype(np.uint8)
    coarse = palette[random.integers(colours, size=(2, height // block + 1, 160 // block + 1))]
    one, other = np.repeat(np.repeat(coarse, block, axis=1), block, axis=2)[:, :height, :160]
    assert_as_opencv(np.ascontiguousarray(one), np.ascontiguousarray(other))


def test_a_flat_screen_stays_as_bright_as_it_is() -> None:
    for height in HEIGHTS:
        for brightness in range(256):
            screen = np.full((height, 160), brightness, np.uint8)
            assert_as_opencv(screen, screen)


def test_sizes_that_it_is_not_made_for_are_refused() -> None:
    with pytest.raises(ValueError, match="do not shrink"):
        Shrinker(210, 320, 84)
