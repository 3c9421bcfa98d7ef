"""The network: shapes, scaling, and the dueling identity."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dpsr_apex.agent.networks import TorsoNetwork, build_network, is_small
from dpsr_apex.config import ConfigError, LearnerConfig


def _built(config: LearnerConfig, shape: tuple[int, ...], pixels: bool, actions: int) -> TorsoNetwork:
    network = build_network(config, shape, pixels, actions, 1)
    assert isinstance(network, TorsoNetwork)
    return network


def pixel_network(shape: tuple[int, ...] = (4, 84, 84)) -> TorsoNetwork:
    torch.manual_seed(0)
    return _built(LearnerConfig(head=16), shape, True, 6)


def vector_network(hidden: tuple[int, ...] = (8, 8)) -> TorsoNetwork:
    torch.manual_seed(0)
    return _built(LearnerConfig(hidden=hidden, head=16), (2, 3), False, 4)


def convolutions(network: TorsoNetwork) -> list[tuple[int, ...]]:
    return [tuple(weight.shape) for weight in network.torso.parameters() if weight.ndim == 4]


def frames(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    "shape", [(4, 84, 84), (1, 36, 36), (3, 40, 64), (2, 35, 84), (1, 3, 3), (2, 3, 84, 84), (1, 4, 10, 10)]
)
def test_pixels_of_any_size_that_the_convolutions_accept(shape: tuple[int, ...]) -> None:
    assert pixel_network(shape)(frames(2, *shape)).shape == (2, 6)


def test_frames_below_the_minimum_size_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'small' needs frames of at least 3 x 3 pixels \(got 2 x 84\)"):
        pixel_network((4, 2, 84))


def test_small_frames_use_one_small_convolution() -> None:
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
def test_is_small_for_vectors_and_small_frames(shape: tuple[int, ...], pixels: bool, small: bool) -> None:
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


def test_pixels_are_divided_by_255() -> None:
    network, observations = pixel_network(), frames(2, 4, 84, 84)
    features = network.torso(observations.float() / 255)
    advantage = network.advantage(features)
    assert network.value is not None
    expected = network.value(features) + advantage - advantage.mean(1, keepdim=True)
    torch.testing.assert_close(network(observations), expected)


@pytest.mark.parametrize(
    ("network", "observations"),
    [(pixel_network(), frames(3, 4, 84, 84)), (vector_network(), torch.randn(3, 2, 3))],
    ids=["pixels", "vectors"],
)
def test_the_mean_q_value_is_the_state_value(network: TorsoNetwork, observations: Tensor) -> None:
    scaled = observations / 255 if observations.dtype == torch.uint8 else observations
    assert network.value is not None
    value = network.value(network.torso(scaled))
    torch.testing.assert_close(network(observations).mean(1, keepdim=True), value)


def test_adding_a_constant_to_all_advantages_does_not_change_q() -> None:
    network, observations = vector_network(), torch.randn(3, 2, 3)
    before = network(observations)
    with torch.no_grad():
        network.advantage[-1].bias.add_(7.0)  # type: ignore[operator]  # the last layer is Linear
    torch.testing.assert_close(network(observations), before)
