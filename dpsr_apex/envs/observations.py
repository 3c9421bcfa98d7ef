"""Convert the observations of an environment into frames: grey images, images of planes, or vectors of float32.

Nothing is scaled or cropped: an image keeps its bytes, and a vector has the numbers of Gymnasium's `flatten`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dpsr_apex.envs.snapshot import UnusableEnvironment
from dpsr_apex.formatting import counted

_PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_SHOWN = 60  # characters of a space in a message
_MOST_COLOURS = 4  # red, green, blue, alpha


class Conversion(NamedTuple):
    """How observations become frames."""

    space: spaces.Box  # of the frames
    convert: Callable[[Any], NDArray[Any]]  # raises an exception for an observation that does not fit its space
    text: str  # what is converted into what; "" if every observation is a frame already


def conversion_for(name: str, space: spaces.Space[Any]) -> Conversion:
    """Return the conversion of observations of `space`; raise UnusableEnvironment if there is none.

    Images are Boxes of uint8 with two or three axes. All else that consists of numbers becomes a vector.
    """
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) > 1:
        return _image(name, space)
    if isinstance(space, spaces.Box) and _is_float(space) and len(space.shape) == 1 and space.shape[0]:
        return Conversion(space, np.asarray, "")
    return _vector(name, space)


def describe(space: spaces.Space[Any]) -> str:
    """Return a space on one line; of a Dict, only the keys."""
    if isinstance(space, spaces.Dict):
        text = f"Dict({', '.join(space.spaces)})"
    elif isinstance(space, spaces.Tuple):
        text = f"Tuple({', '.join(type(part).__name__ for part in space.spaces)})"
    else:
        text = " ".join(str(space).split())
        if isinstance(space, spaces.Box) and len(text) > _SHOWN:  # it lists all bounds
            text = f"Box(..., {space.shape}, {space.dtype})"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _image(name: str, space: spaces.Box) -> Conversion:
    shape = space.shape
    if len(shape) == 2 or (len(shape) == 3 and not _has_colours_last(shape)):
        return Conversion(space, np.asarray, "")
    if len(shape) > 3:
        remedy = "An image has two axes (grey) or three (planes first or colours last); env.stack stacks frames."
        raise UnusableEnvironment(name, f"its observation_space is {describe(space)}", remedy)
    height, width, colours = shape
    size = f"{height} x {width}"

    def planes_first(image: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(image[..., 0] if colours == 1 else np.moveaxis(image, -1, 0))

    def convert(observation: Any) -> NDArray[Any]:
        return planes_first(_fitting(observation, space, "u"))

    result = f"grey frames of {size}" if colours == 1 else f"{colours} planes of {size}"
    frames = spaces.Box(planes_first(space.low), planes_first(space.high), dtype=np.uint8)
    return Conversion(frames, convert, f"images of {size} x {colours} -> {result}")


def _vector(name: str, space: spaces.Space[Any]) -> Conversion:
    if obstacle := _obstacle(space, "it"):
        remedy = "Remove that part with a wrapper of your own (env.wrappers)."
        raise UnusableEnvironment(name, f"its observation_space cannot be converted into numbers: {obstacle}", remedy)
    flat = spaces.flatten_space(space) if _has_parts(space) else None
    if not isinstance(flat, spaces.Box) or not math.prod(flat.shape):
        raise UnusableEnvironment(
            name, f"its observation_space {describe(space)} has no numbers", "Remove what is empty."
        )

    def convert(observation: Any) -> NDArray[Any]:
        if isinstance(space, spaces.Box):
            return _fitting(observation, space, "fiub").astype(np.float32).reshape(-1)
        if not isinstance(space, spaces.Dict | spaces.Tuple) and not space.contains(observation):
            raise ValueError(f"{observation!r:.40} is not in {describe(space)}")
        return np.asarray(spaces.flatten(space, observation), np.float32)

    with np.errstate(over="ignore"):  # a bound beyond float32 becomes infinite
        frames = spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)
    return Conversion(frames, convert, f"{describe(space)} -> {counted(math.prod(flat.shape), 'number')}")


def _obstacle(space: spaces.Space[Any], path: str) -> str:
    """Return which part of a space is not made of a fixed number of numbers; "" if there is none."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        found = (_obstacle(part, f"{key!r}" if path == "it" else f"{path}[{key!r}]") for key, part in parts)
        return next(filter(None, found), "")
    return "" if isinstance(space, _PLAIN) else f"{path} is {type(space).__name__}"


def _has_parts(space: spaces.Space[Any]) -> bool:
    """Whether no Dict or Tuple in a space is empty: Gymnasium cannot flatten these."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return True
    parts = list(space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces)
    return len(parts) > 0 and all(map(_has_parts, parts))


def _fitting(observation: Any, space: spaces.Box, kinds: str) -> NDArray[Any]:
    """Return an observation as an array; raise ValueError unless it has the shape of its space and such a dtype."""
    array = np.asarray(observation)
    if array.shape != space.shape or array.dtype.kind not in kinds:
        raise ValueError(f"{array.dtype}{array.shape} is not in {describe(space)}")
    return array


def _has_colours_last(shape: tuple[int, ...]) -> bool:
    """Whether a shape is (height, width, colours), not (planes, height, width)."""
    return shape[2] <= _MOST_COLOURS < min(shape[:2])


def _is_float(space: spaces.Box) -> bool:
    return space.dtype is not None and space.dtype.kind == "f"
