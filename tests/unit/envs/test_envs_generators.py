"""A random generator is saved and restored exactly, including half of a 64-bit number that is still unused."""

from __future__ import annotations

import numpy as np
import pytest

from dpsr_apex.envs.generators import GENERATOR_BYTES, pack_generator, set_generator


@pytest.mark.parametrize("used", [0, 1, 2, 7])
def test_a_restored_generator_continues_with_the_same_numbers(used: int) -> None:
    generator, other = np.random.default_rng(1), np.random.default_rng(2)
    generator.integers(0, 100, used, np.uint32)  # an odd number of them leaves one buffered
    packed = pack_generator(generator)
    assert len(packed) == GENERATOR_BYTES
    set_generator(other, packed)
    assert other.bit_generator.state == generator.bit_generator.state
    assert other.integers(0, 100, 9, np.uint32).tolist() == generator.integers(0, 100, 9, np.uint32).tolist()
    assert other.random() == generator.random()


@pytest.mark.parametrize(
    "packed", [b"", bytes(GENERATOR_BYTES), b"\1" * (GENERATOR_BYTES - 1), b"\3" * GENERATOR_BYTES]
)
def test_other_bytes_are_refused_and_change_nothing(packed: bytes) -> None:
    generator = np.random.default_rng(1)
    before = generator.bit_generator.state
    with pytest.raises(ValueError, match="not the state"):
        set_generator(generator, packed)
    assert generator.bit_generator.state == before
