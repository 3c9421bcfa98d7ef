"""Pictures show what is stored: pixels enlarged and nothing else, planes and bars where they belong."""

from __future__ import annotations

import numpy as np

from dpsr_apex.inspection.pictures import change_of, fitted, picture_of, trail_of


def test_a_grey_frame_is_enlarged_a_whole_number_of_times() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (84, 84), np.uint8)
    picture = picture_of(frame, 420)
    assert picture.shape == (420, 420, 3)
    for row, column in ((0, 0), (2, 3), (4, 4)):
        for channel in range(3):
            np.testing.assert_array_equal(picture[row::5, column::5, channel], frame)


def test_what_is_too_large_is_made_smaller() -> None:
    assert fitted(np.zeros((400, 600, 3), np.uint8), 168, 168).shape == (112, 168, 3)
    assert fitted(np.zeros((210, 160, 3), np.uint8), 420, 420).shape == (420, 320, 3)


def test_planes_have_colours_of_their_own() -> None:
    planes = np.zeros((3, 10, 10), np.uint8)
    planes[0, 0, 0] = planes[1, 1, 1] = planes[2, 2, 2] = 255
    picture = picture_of(planes, 168)
    assert picture.shape == (160, 160, 3)
    colours = {tuple(picture[16 * place, 16 * place].tolist()) for place in range(4)}
    assert len(colours) == 4
    np.testing.assert_array_equal(picture[:16, :16], np.broadcast_to(picture[0, 0], (16, 16, 3)))


def test_bars_go_up_for_more_than_nothing_and_down_for_less() -> None:
    picture = picture_of(np.array([2.0, -0.5, 0.0], np.float32), 300)
    ground = picture[0, 0]
    painted = (picture != ground).any(axis=2)
    above, below = painted[:150], painted[151:]
    assert above[:, 20:80].any()
    assert not below[:, 20:80].any()
    assert below[:, 120:180].any()
    assert not above[:100, 120:180].any()
    assert above[:, 50].sum() > below[:, 150].sum()


def test_only_what_moved_is_coloured() -> None:
    frames = np.full((4, 84, 84), 100, np.uint8)
    for step in range(4):
        frames[step, 40, 10 * step] = 255
    later = np.roll(frames, -1, axis=0)
    for picture, places in (
        (trail_of(frames, 84), [(40, 0), (40, 10), (40, 20)]),
        (change_of(frames, later, 84), [(40, 30)]),
    ):
        coloured = np.ptp(picture, axis=2) > 0
        moved = {(int(row), int(column)) for row, column in np.argwhere(coloured)}
        assert moved >= set(places)
        assert moved <= {*places, (40, 0), (40, 30)}
