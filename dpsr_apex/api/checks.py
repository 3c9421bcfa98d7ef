"""Checks of what a user passes to a buffer: numpy arrays, tensors or plain numbers; each refusal names the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dpsr_apex.errors import UserError


def to_array(value: Any, name: str) -> NDArray[Any]:
    """Return a tensor of any device, a sequence or a number as an array."""
    if hasattr(value, "detach"):  # a tensor of torch, which need not be imported for this
        value = value.detach().cpu().numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UserError(f"{name} must be an array ({error})") from error
    if array.dtype == object:
        raise UserError(f"{name} must be an array of numbers (got {type(value).__name__})")
    return array


def numbers(value: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return finite numbers of this shape."""
    array = _shaped(to_array(value, name), name, shape)
    if array.dtype.kind not in "fiub":
        raise UserError(f"{name} must be numbers (got {array.dtype})")
    _refuse_infinite(array, name)
    return array.astype(np.float64)


def integers(value: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return integers of this shape."""
    array = _shaped(to_array(value, name), name, shape)
    if array.dtype.kind not in "iu":
        raise UserError(f"{name} must be integers (got {array.dtype})")
    return array.astype(np.int64)


def flags(value: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return booleans of this shape; 0 and 1 are accepted as well."""
    array = _shaped(to_array(value, name), name, shape)
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise UserError(f"{name} must be booleans (got {array.dtype})")
    return array.astype(np.bool_)


def actions(value: Any, count: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return actions from 0 to `count` - 1."""
    array = integers(value, "action", shape)
    wrong = array[(array < 0) | (array >= count)]
    if wrong.size:
        raise UserError(f"action must be between 0 and {count - 1} (got {wrong.flat[0]})")
    return array


def observations(value: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return observations in the dtype of their space; the kind of number must be the same."""
    array = _shaped(to_array(value, name), name, shape)
    if array.dtype != dtype and (dtype == np.uint8 or not np.can_cast(array.dtype, dtype, "same_kind")):
        raise UserError(f"{name} must be {dtype}, as the observation_space is (got {array.dtype})")
    _refuse_infinite(array, name)
    cast = array.astype(dtype)
    if cast.dtype.kind in "iu" and not np.array_equal(cast, array):
        raise UserError(f"{name} has numbers that do not fit into {dtype}")
    return cast


def snapshots(value: Any, lanes: int, is_single: bool) -> list[bytes]:
    """Return one snapshot per lane; empty bytes where there is none."""
    if value is None:
        return [b""] * lanes
    given = [value] if is_single else list(value)
    kept = [b"" if one is None else one for one in given]
    if wrong := [one for one in kept if not isinstance(one, bytes)]:
        raise UserError(f"snapshot must be bytes, one for each lane (got {type(wrong[0]).__name__})")
    if len(kept) != lanes:
        raise UserError(f"snapshot must have {lanes} entries, one for each lane (got {len(kept)})")
    return kept


def count_actions(space: spaces.Space[Any]) -> int:
    """Return the number of actions of a Discrete space that starts at 0."""
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return int(space.n)
    raise UserError(f"action_space must be a Discrete space that starts at 0 (got {space})")


def positive(value: Any, name: str) -> int:
    """Return an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise UserError(f"{name} must be an integer >= 1 (got {value!r})")
    return int(value)


def _shaped(array: NDArray[Any], name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if array.shape != shape:
        raise UserError(f"{name} must have the shape {shape} (got {array.shape})")
    return array


def _refuse_infinite(array: NDArray[Any], name: str) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        wrong = array[~np.isfinite(array)].flat[0]
        raise UserError(f"{name} must be finite (got {wrong})")
