"""Networks from raw observations to one or more numbers per action.

This module only defines architectures: nothing about rewards, targets, devices or training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpsr_apex.config import ConfigError, LearnerConfig
from dpsr_apex.imports import load_class

Features = tuple[nn.Module, int]
"""A torso from prepared observations of shape (batch, channels, height, width) or (batch, ...) and its output size."""

_LARGE_SIDE = 36  # pixels: the smallest side for which Nature's convolutions leave at least one pixel
_MIN_SIDES = {"nature": _LARGE_SIDE, "pooled": _LARGE_SIDE, "efficient": 25, "small": 3, "impala": 3}  # pixels


class TorsoNetwork(nn.Module):
    """A torso and a head, dueling or plain: raw observations to outputs of shape (batch, actions * per_action).

    Pixels are uint8 of shape (batch, stack, height, width) or (batch, stack, planes, height, width), and are divided by
    255; every plane of every frame is a channel. Vectors are float32 of shape (batch, stack, size).
    """

    def __init__(self, torso: Features, pixels: bool, outputs: tuple[int, int], head: int, dueling: bool) -> None:
        super().__init__()
        self._pixels = pixels
        self._actions, self._per_action = outputs
        self.torso, features = torso
        self.value = _head(features, head, self._per_action) if dueling else None
        self.advantage = _head(features, head, self._actions * self._per_action)

    def forward(self, observations: Tensor) -> Tensor:
        """Return V(s) + A(s, a) - mean of A(s, .) if dueling, else A(s, a), for each of the numbers per action."""
        # Converted to float first, because torch divides bytes one by one.
        features = self.torso(observations.float().div_(255).flatten(1, -3) if self._pixels else observations)
        advantage: Tensor = self.advantage(features)
        if self.value is None:
            return advantage
        by_action = advantage.view(-1, self._actions, self._per_action)
        value: Tensor = self.value(features)
        # The small tensors first, so that only one sum has the size of the output.
        return (by_action + (value[:, None] - by_action.mean(dim=1, keepdim=True))).flatten(1)


def build_network(
    config: LearnerConfig, observation_shape: Sequence[int], pixels: bool, actions: int, per_action: int
) -> nn.Module:
    """Return the network of a config with new weights; raise ConfigError if a user's network cannot be used."""
    if ":" in config.network:
        network = _users_network(config, observation_shape, actions * per_action)
        _try_out(network, config.network, observation_shape, pixels, actions * per_action)
        return network
    name = _default_network(observation_shape, pixels) if config.network == "auto" else config.network
    if (name == "mlp") == pixels:
        shown = "images" if pixels else "vectors"
        raise ConfigError(f"learner.network must fit the observations, which are {shown} (got {config.network!r})")
    torso = _mlp(observation_shape, config.hidden) if name == "mlp" else _images(name, observation_shape)
    return TorsoNetwork(torso, pixels, (actions, per_action), config.head, config.dueling)


def is_small(observation_shape: Sequence[int], pixels: bool) -> bool:
    """Whether the default network for these observations is too small to benefit from a second thread."""
    return not pixels or min(observation_shape[-2:]) < _LARGE_SIDE


def _default_network(observation_shape: Sequence[int], pixels: bool) -> str:
    if not pixels:
        return "mlp"
    return "small" if is_small(observation_shape, pixels) else "nature"


def _images(name: str, observation_shape: Sequence[int]) -> Features:
    *depths, height, width = observation_shape
    least = _MIN_SIDES[name]
    if min(height, width) < least:
        needed = f"frames of at least {least} x {least} pixels"
        raise ConfigError(f"learner.network = {name!r} needs {needed} (got {height} x {width})")
    channels = math.prod(depths)
    layers = _LAYERS[name](channels)
    torso = nn.Sequential(*layers, nn.Flatten())
    torso.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
    with torch.no_grad():
        features = torso(torch.zeros(1, channels, height, width)).shape[1]
    return torso, features


def _nature(channels: int) -> list[nn.Module]:
    """The convolutions of Mnih et al. 2015."""
    shapes = ((channels, 32, 8, 4), (32, 64, 4, 2), (64, 64, 3, 1))
    return [layer for shape in shapes for layer in (nn.Conv2d(*shape), nn.ReLU(inplace=True))]


def _efficient(channels: int) -> list[nn.Module]:
    """The convolutions of data-efficient Rainbow (van Hasselt et al. 2019)."""
    shapes = ((channels, 32, 5, 5), (32, 64, 5, 5))
    return [layer for shape in shapes for layer in (nn.Conv2d(*shape), nn.ReLU(inplace=True))]


def _pooled(channels: int) -> list[nn.Module]:
    """Nature's convolutions, averaged over all positions: a fifteenth of the weights."""
    return [*_nature(channels), nn.AdaptiveAvgPool2d(1)]


def _small(channels: int) -> list[nn.Module]:
    """The single convolution of the MinAtar paper."""
    return [nn.Conv2d(channels, 16, 3, 1), nn.ReLU(inplace=True)]


def _impala(channels: int) -> list[nn.Module]:
    """The residual blocks of Espeholt et al. 2018."""
    layers: list[nn.Module] = []
    for filters in (16, 32, 32):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [_Residual(filters), _Residual(filters)]
        channels = filters
    return [*layers, nn.ReLU(inplace=True)]


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        convolutions = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.block = nn.Sequential(*(layer for conv in convolutions for layer in (nn.ReLU(), conv)))

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = self.block(x)
        return x + residual


_LAYERS = {"nature": _nature, "efficient": _efficient, "pooled": _pooled, "impala": _impala, "small": _small}


def _mlp(observation_shape: Sequence[int], hidden: Sequence[int]) -> Features:
    features = math.prod(observation_shape)
    layers: list[nn.Module] = [nn.Flatten()]
    for units in hidden:
        layers += [nn.Linear(features, units), nn.ReLU(inplace=True)]
        features = units
    return nn.Sequential(*layers), features


def _head(features: int, units: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, units), nn.ReLU(inplace=True), nn.Linear(units, outputs))


def _users_network(config: LearnerConfig, observation_shape: Sequence[int], outputs: int) -> nn.Module:
    try:
        cls = load_class(config.network)
        if not issubclass(cls, nn.Module):
            raise ConfigError(f"learner.network = {config.network!r} is not a torch.nn.Module")
        network: nn.Module = cls(tuple(observation_shape), outputs, **config.network_arguments)
    except ConfigError:
        raise
    except (ImportError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"learner.network = {config.network!r} cannot be built: {error}") from error
    return network


def _try_out(network: nn.Module, name: str, observation_shape: Sequence[int], pixels: bool, outputs: int) -> None:
    """Raise ConfigError if a user's network has no parameters, or maps a first batch to anything but finite outputs."""
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ConfigError(f"learner.network = {name!r} has no parameters to train")
    shape = (2, *observation_shape)
    batch = torch.randint(256, shape, dtype=torch.uint8) if pixels else torch.randn(shape)
    try:
        with torch.no_grad():
            found = network(batch)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise ConfigError(f"learner.network = {name!r} fails on a batch of shape {shape}: {error}") from error
    if not isinstance(found, Tensor) or found.shape != (2, outputs):
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(f"learner.network = {name!r} must map (2, ...) observations to (2, {outputs}) (got {got})")
    if not torch.isfinite(found).all():
        raise ConfigError(f"learner.network = {name!r} returns NaN or infinite values on its first batch")
