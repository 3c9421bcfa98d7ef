"""Keys of states: equal for similar states, different for others, and the same in every process."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from dpsr_apex.envs.keys import GREY_LEVELS, PICTURE_CELLS, coarse_grey, coarse_key_for, hash_key
from dpsr_apex.envs.make import make_stacked

KNOWN = 525067319171584501  # blake2b of eight bytes, little-endian


def test_a_key_has_64_bits_and_never_changes() -> None:
    assert hash_key(b"corridor") == KNOWN
    assert hash_key(b"a") != hash_key(b"b")


def test_a_grey_frame_is_coarsened_to_mean_levels_of_its_cells() -> None:
    frame = np.zeros((84, 84), np.uint8)
    frame[:42] = 200
    cells = np.frombuffer(coarse_grey(frame), np.uint8).reshape(PICTURE_CELLS, PICTURE_CELLS)
    half = PICTURE_CELLS // 2
    assert cells[:half].min() == cells[:half].max() == 200 * GREY_LEVELS // 256
    assert not cells[half:].any()
    noisy = frame.copy()
    noisy[50, 50] = 255
    assert coarse_grey(noisy) == coarse_grey(frame)
    moved = np.roll(frame, 14, axis=0)
    assert coarse_grey(moved) != coarse_grey(frame)


def test_planes_are_coarsened_each_by_itself() -> None:
    planes = np.zeros((2, 10, 10), np.uint8)
    planes[0, 4, 4] = 255
    near, far, other = np.zeros_like(planes), planes.copy(), planes[::-1].copy()
    near[0, 5, 5] = 255
    far[0, 9, 9] = 255
    assert coarse_grey(near) == coarse_grey(planes)
    assert len({coarse_grey(each) for each in (planes, far, other)}) == 3


def test_colour_images_have_different_keys() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 3, 64, 64)).astype(np.uint8) // 2
    images += np.arange(20, dtype=np.uint8)[:, np.newaxis, np.newaxis, np.newaxis] * 6
    assert len(set(map(coarse_grey, images))) > 10


def test_a_vector_is_rounded_by_its_bounds() -> None:
    high = np.array([1.0, np.inf, np.finfo(np.float32).max], np.float32)
    key = coarse_key_for(spaces.Box(-high, high))
    assert key(np.array([0.01, 0.1, 0.1])) == key(np.array([0.1, 0.4, 0.4]))
    for other in ([0.2, 0.1, 0.1], [0.01, 0.6, 0.1], [0.01, 0.1, -0.1]):
        assert key(np.array(other)) != key(np.array([0.01, 0.1, 0.1]))


def test_an_environments_own_key_is_used() -> None:
    env = make_stacked("Corridor", training=True, seed=0)
    keys = []
    for _ in range(30):
        keys.append(env.state_key())
        env.step(1)
    assert len(set(keys)) == 30
    assert keys[0] == hash_key(b"\0\0\0\0\0")


def test_every_kind_of_observation_has_a_key() -> None:
    for name in ("CartPole-v1", "MinAtar/Breakout", "Pong"):
        env = make_stacked(name, training=True, seed=0)
        first = env.state_key()
        snapshot, stack = env.snapshot(), env.stack
        seen = {first}
        for action in [1, 0, 1, 1] * 10:
            step = env.step(action)
            seen.add(env.state_key())
            if step.terminal or step.truncated:
                env.reset()
        assert len(seen) > 1
        env.restore(snapshot, stack)
        assert env.state_key() == first
