"""The network: shapes, scaling, and the dueling identity."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dpsr_apex.agent.network import DuelingNetwork, is_small


def pixel_network(shape: tuple[int, ...] = (4, 84, 84)) -> DuelingNetwork:
    torch.manual_seed(0)
    return DuelingNetwork(shape, pixels=True, actions=6, hidden=(), head=16)


def vector_network(hidden: tuple[int, ...] = (8, 8)) -> DuelingNetwork:
    torch.manual_seed(0)
    return DuelingNetwork((2, 3), pixels=False, actions=4, hidden=hidden, head=16)


def convolutions(network: DuelingNetwork) -> list[tuple[int, ...]]:
    return [tuple(weight.shape) for weight in network.torso.parameters() if weight.ndim == 4]


def frames(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    "shape", [(4, 84, 84), (1, 36, 36), (3, 40, 64), (2, 35, 84), (1, 3, 3), (2, 3, 84, 84), (1, 4, 10, 10)]
)
def test_pixels_of_any_size_that_the_convolutions_accept(shape: tuple[int, ...]) -> None:
    assert pixel_network(shape)(frames(2, *shape)).shape == (2, 6)


def test_frames_that_are_too_small_are_refused_with_the_least_size() -> None:
    with pytest.raises(ValueError, match=r"2 x 84 pixels are too small.*at least 3"):
        pixel_network((4, 2, 84))


def test_small_frames_pass_one_small_convolution() -> None:
    assert convolutions(pixel_network((2, 3, 10, 10))) == [(16, 6, 3, 3)]
    assert convolutions(pixel_network((2, 3, 36, 36))) == [(32, 6, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]


@pytest.mark.parametrize("side", [10, 40])
def test_every_plane_of_every_frame_is_a_channel(side: int) -> None:
    as_planes, as_grey = pixel_network((2, 3, side, side)), pixel_network((6, side, side))
    observations = frames(2, 2, 3, side, side)
    channels = torch.stack([observations[:, frame, plane] for frame in range(2) for plane in range(3)], dim=1)
    torch.testing.assert_close(as_planes(observations), as_grey(channels), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("shape", "pixels", "small"),
    [((4, 84, 84), True, False), ((3, 3, 84, 84), True, False), ((1, 4, 10, 10), True, True), ((4, 99), False, True)],
)
def test_a_network_is_small_that_one_thread_is_done_with_soonest(
    shape: tuple[int, ...], pixels: bool, small: bool
) -> None:
    assert is_small(shape, pixels) == small


@pytest.mark.parametrize("hidden", [(), (8,), (8, 8)])
def test_vectors_are_flattened_into_an_mlp(hidden: tuple[int, ...]) -> None:
    assert vector_network(hidden)(torch.randn(5, 2, 3)).shape == (5, 4)


def test_nature_convolutions_in_channels_last() -> None:
    network = pixel_network()
    assert convolutions(network) == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
    assert all(
        weight.is_contiguous(memory_format=torch.channels_last)
        for weight in network.torso.parameters()
        if weight.ndim == 4
    )


def test_pixels_are_scaled_to_one_inside() -> None:
    network, observations = pixel_network(), frames(2, 4, 84, 84)
    features = network.torso(observations.float() / 255)
    advantage = network.advantage(features)
    expected = network.value(features) + advantage - advantage.mean(1, keepdim=True)
    torch.testing.assert_close(network(observations), expected)


@pytest.mark.parametrize(
    ("network", "observations"),
    [(pixel_network(), frames(3, 4, 84, 84)), (vector_network(), torch.randn(3, 2, 3))],
    ids=["pixels", "vectors"],
)
def test_the_mean_advantage_is_zero_so_that_the_mean_q_is_the_value(
    network: DuelingNetwork, observations: Tensor
) -> None:
    scaled = observations / 255 if observations.dtype == torch.uint8 else observations
    value = network.value(network.torso(scaled))
    torch.testing.assert_close(network(observations).mean(1, keepdim=True), value)


def test_a_shift_of_all_advantages_changes_no_q_value() -> None:
    network, observations = vector_network(), torch.randn(3, 2, 3)
    before = network(observations)
    with torch.no_grad():
        network.advantage[-1].bias.add_(7.0)  # type: ignore[operator]  # the last layer is Linear
    torch.testing.assert_close(network(observations), before)
