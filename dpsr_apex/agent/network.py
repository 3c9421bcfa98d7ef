"""The dueling network: Q(s, a) = V(s) + A(s, a) - mean of A(s, .), from raw observations.

Only the shape of the function lives here: nothing about rewards, targets, devices or learning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride
_LARGE = 36  # pixels a side that still leave one pixel after the last convolution
_CONVOLUTIONS_OF_SMALL = ((16, 3, 1),)  # of frames with a shorter side; as in the MinAtar paper
_SMALLEST = 3  # pixels a side


class DuelingNetwork(nn.Module):
    """Q-values of shape (batch, actions) for a batch of observations as the environment shows them.

    Pixels are uint8 of shape (batch, stack, height, width) or (batch, stack, planes, height, width) and pass three
    convolutions, or one if they are few, after a division by 255; vectors are float32 of shape (batch, stack, size)
    and pass an MLP of `hidden` layers. `observation_shape` is the shape without the batch.
    """

    def __init__(
        self, observation_shape: Sequence[int], *, pixels: bool, actions: int, hidden: Sequence[int], head: int
    ) -> None:
        super().__init__()
        self._pixels = pixels
        self.torso, features = _convolutions(observation_shape) if pixels else _mlp(observation_shape, hidden)
        self.value = _head(features, head, 1)
        self.advantage = _head(features, head, actions)

    def forward(self, observations: Tensor) -> Tensor:
        """Q-values of every action in every observation."""
        # To float first: torch divides bytes one by one. Then every plane of every frame is a channel.
        features = self.torso(observations.float().div_(255).flatten(1, -3) if self._pixels else observations)
        advantage: Tensor = self.advantage(features)
        value: Tensor = self.value(features)
        return value + advantage - advantage.mean(dim=1, keepdim=True)


def is_small(observation_shape: Sequence[int], pixels: bool) -> bool:
    """Whether the network of such observations is done before a second thread has woken up."""
    return not pixels or min(observation_shape[-2:]) < _LARGE


def _convolutions(observation_shape: Sequence[int]) -> tuple[nn.Sequential, int]:
    *depths, height, width = observation_shape
    if min(height, width) < _SMALLEST:
        raise ValueError(
            f"frames of {height} x {width} pixels are too small for the convolutions: "
            f"each side needs at least {_SMALLEST}"
        )
    channels = math.prod(depths)
    layers: list[nn.Module] = []
    for filters, kernel, stride in _CONVOLUTIONS_OF_SMALL if is_small(observation_shape, True) else _CONVOLUTIONS:
        layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU(inplace=True)]
        channels = filters
        height, width = ((side - kernel) // stride + 1 for side in (height, width))
    torso = nn.Sequential(*layers, nn.Flatten())
    torso.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs leave this form out
    return torso, channels * height * width


def _mlp(observation_shape: Sequence[int], hidden: Sequence[int]) -> tuple[nn.Sequential, int]:
    features = math.prod(observation_shape)
    layers: list[nn.Module] = [nn.Flatten()]
    for units in hidden:
        layers += [nn.Linear(features, units), nn.ReLU(inplace=True)]
        features = units
    return nn.Sequential(*layers), features


def _head(features: int, units: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, units), nn.ReLU(), nn.Linear(units, outputs))
