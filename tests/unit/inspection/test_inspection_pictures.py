"""Pictures show exactly what is stored: enlarged pixels, coloured planes, and bars for vectors."""

from __future__ import annotations

import numpy as np

from dpsr_apex.inspection.pictures import frame_picture, next_picture, scale_to_fit, stack_picture


def test_a_grey_frame_is_enlarged_by_an_integer_factor() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (84, 84), np.uint8)
    picture = frame_picture(frame, 420)
    assert picture.shape == (420, 420, 3)
    for row, column in ((0, 0), (2, 3), (4, 4)):
        for channel in range(3):
            np.testing.assert_array_equal(picture[row::5, column::5, channel], frame)


def test_large_pictures_are_scaled_down() -> None:
    assert scale_to_fit(np.zeros((400, 600, 3), np.uint8), 168, 168).shape == (112, 168, 3)
    assert scale_to_fit(np.zeros((210, 160, 3), np.uint8), 420, 420).shape == (420, 320, 3)


def test_planes_have_distinct_colours() -> None:
    planes = np.zeros((3, 10, 10), np.uint8)
    planes[0, 0, 0] = planes[1, 1, 1] = planes[2, 2, 2] = 255
    picture = frame_picture(planes, 168)
    assert picture.shape == (160, 160, 3)
    colours = {tuple(picture[16 * place, 16 * place].tolist()) for place in range(4)}
    assert len(colours) == 4
    np.testing.assert_array_equal(picture[:16, :16], np.broadcast_to(picture[0, 0], (16, 16, 3)))


def test_bars_go_up_for_positive_and_down_for_negative_values() -> None:
    picture = frame_picture(np.array([2.0, -0.5, 0.0], np.float32), 300)
    background = picture[0, 0]
    drawn = (picture != background).any(axis=2)
    above, below = drawn[:150], drawn[151:]
    assert above[:, 20:80].any()
    assert not below[:, 20:80].any()
    assert below[:, 120:180].any()
    assert not above[:100, 120:180].any()
    assert above[:, 50].sum() > below[:, 150].sum()


def test_only_changed_pixels_are_tinted() -> None:
    frames = np.full((4, 84, 84), 100, np.uint8)
    for step in range(4):
        frames[step, 40, 10 * step] = 255
    later = np.roll(frames, -1, axis=0)
    for picture, places in (
        (stack_picture(frames, 84), [(40, 0), (40, 10), (40, 20)]),
        (next_picture(frames, later, 84), [(40, 30)]),
    ):
        coloured = np.ptp(picture, axis=2) > 0
        moved = {(int(row), int(column)) for row, column in np.argwhere(coloured)}
        assert moved >= set(places)
        assert moved <= {*places, (40, 0), (40, 30)}
