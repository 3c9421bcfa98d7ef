from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsr_apex.envs.downsample import Downsampler

HEIGHTS = (210, 214, 220, 230, 250)  # all screen heights of the emulator


class Emulator:
    """Returns its screen as colour indices and as grey levels."""

    def __init__(self, height: int, palette: np.ndarray) -> None:
        self.palette = palette
        self.colours = np.zeros((height, 160), np.uint8)
        self.grey_reads = 0
        self.downsampler = Downsampler(self.colours, self.read_grey, 84)

    def read_grey(self, out: np.ndarray) -> None:
        self.grey_reads += 1
        out[:] = self.palette[self.colours]

    def assert_matches_opencv(self, one: np.ndarray, other: np.ndarray) -> None:
        for index, self.colours in enumerate((one, other)):
            self.downsampler.set_screen(index, self.colours)
        brighter = np.maximum(self.palette[one], self.palette[other])
        expected = cv2.resize(brighter, (84, 84), interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(self.downsampler.frame(), expected)


EMULATORS = {height: Emulator(height, np.arange(256, dtype=np.uint8)) for height in HEIGHTS}


@settings(deadline=None)
@given(st.sampled_from(HEIGHTS), st.integers(2, 256), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_noise_and_blocks_match_opencv(height: int, colours: int, block: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    palette = random.integers(256, size=colours).astype(np.uint8)
    coarse = palette[random.integers(colours, size=(2, height // block + 1, 160 // block + 1))]
    one, other = np.repeat(np.repeat(coarse, block, axis=1), block, axis=2)[:, :height, :160]
    EMULATORS[height].assert_matches_opencv(np.ascontiguousarray(one), np.ascontiguousarray(other))


def test_a_uniform_screen_keeps_its_brightness() -> None:
    for height in HEIGHTS:
        for brightness in range(256):
            screen = np.full((height, 160), brightness, np.uint8)
            EMULATORS[height].assert_matches_opencv(screen, screen)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.tuples(st.integers(0, 209), st.integers(0, 3)), max_size=30))
def test_screens_with_few_changed_rows_match_opencv(seed: int, changes: list[tuple[int, int]]) -> None:
    random = np.random.default_rng(seed)
    emulator = Emulator(210, random.permutation(256).astype(np.uint8))
    screens = np.zeros((2, 210, 160), np.uint8)
    for row, kind in changes:
        if kind < 2:
            screens[kind, row, random.integers(160)] = random.integers(256)  # one pixel of one screen
        elif kind == 2:
            screens[:, row] = random.integers(256, size=160)
        emulator.assert_matches_opencv(screens[0].copy(), screens[1].copy())


def test_a_frame_is_a_new_array() -> None:
    emulator = Emulator(210, np.arange(256, dtype=np.uint8))
    emulator.assert_matches_opencv(emulator.colours, emulator.colours)
    emulator.downsampler.frame()[:] = 7
    emulator.assert_matches_opencv(emulator.colours, emulator.colours)


def test_grey_levels_are_read_only_for_new_colours() -> None:
    emulator = Emulator(210, np.arange(256, dtype=np.uint8)[::-1].copy())
    screen = np.zeros((210, 160), np.uint8)
    for colour, grey_reads in ((0, 2), (9, 3), (0, 3), (9, 3), (5, 4)):  # two reads at construction
        screen[100:104, 30:40] = colour
        emulator.assert_matches_opencv(screen.copy(), screen.copy())
        assert emulator.grey_reads == grey_reads


def test_unsupported_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be downsampled"):
        Downsampler(np.zeros((210, 320), np.uint8), lambda _: None, 84)
