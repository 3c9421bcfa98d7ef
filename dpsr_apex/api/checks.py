"""Checks of what a user passes to a buffer: numpy arrays, tensors or plain numbers; each refusal names the argument."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dpsr_apex.errors import UserError

_INTEGERS: Final = frozenset((int, np.int64, np.int32))
_BOOLEANS: Final = frozenset((bool, np.bool_))

GREATEST_REWARD: Final = 1e30  # sums of a few hundred of these are finite in single precision


def to_array(value: Any, name: str) -> NDArray[Any]:
    """Return a tensor of any device, a sequence or a number as an array."""
    if type(value) is np.ndarray and value.dtype.kind in "fiub":
        return value
    if hasattr(value, "detach"):  # a tensor of torch, which need not be imported for this
        value = _to_numpy(value.detach().cpu())
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
    return array.astype(np.float64, copy=False)


def rewards(value: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return numbers of this shape whose discounted sums can be stored."""
    array = numbers(value, name, shape)
    wrong = array[np.abs(array) > GREATEST_REWARD]
    if wrong.size:
        raise UserError(f"{name} must be between -{GREATEST_REWARD:g} and {GREATEST_REWARD:g} (got {wrong.flat[0]})")
    return array


def reward(value: Any, name: str) -> float:
    """Return a number that can be stored, also as a part of a discounted sum."""
    if type(value) is float and -GREATEST_REWARD <= value <= GREATEST_REWARD:
        return value
    return float(rewards(value, name, ()))


def integers(value: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return integers of this shape."""
    array = _shaped(to_array(value, name), name, shape)
    if array.dtype.kind not in "iu" and array.size:  # an empty list becomes an array of floats
        raise UserError(f"{name} must be integers (got {array.dtype})")
    return array.astype(np.int64, copy=False)


def action(value: Any, count: int) -> int:
    """Return an action from 0 to `count` - 1."""
    if type(value) in _INTEGERS and 0 <= value < count:
        return int(value)
    return int(actions(value, count, ()))


def flag(value: Any, name: str) -> bool:
    """Return a boolean; 0 and 1 are accepted as well."""
    return bool(value) if type(value) in _BOOLEANS else bool(flags(value, name, ()))


def flags(value: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return booleans of this shape; 0 and 1 are accepted as well."""
    array = _shaped(to_array(value, name), name, shape)
    if array.dtype.kind not in "biuf" or not ((array == 0) | (array == 1)).all():
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
    """Return observations in the dtype of their space; the kind of number must be the same.

    An array of that dtype is returned itself, not a copy.
    """
    array = _shaped(to_array(value, name), name, shape)
    if array.dtype != dtype and (dtype == np.uint8 or not np.can_cast(array.dtype, dtype, "same_kind")):
        raise UserError(f"{name} must be {dtype}, as the observation_space is (got {array.dtype})")
    _refuse_infinite(array, name)
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    fits = np.isfinite(cast) if cast.dtype.kind == "f" else cast == array
    if not fits.all():
        raise UserError(f"{name} must fit into {dtype}, as the observation_space is (got {array[~fits].flat[0]})")
    return cast


def final_observations(value: Any, ended: Sequence[bool], shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[Any]:
    """Return the last observation of each lane whose episode has ended; None for the others, and if there is none."""
    if value is None:
        return [None] * len(ended)
    if not isinstance(value, np.ndarray | list | tuple) or len(value) != len(ended):
        raise UserError(f"final_obs must be infos['final_obs'], with an entry for each of the {len(ended)} lanes")
    return [
        observations(one, "final_obs", shape, dtype) if has_ended and one is not None else None
        for one, has_ended in zip(value, ended, strict=True)
    ]


def snapshot(value: Any) -> bytes:
    """Return a snapshot; empty bytes if it is None."""
    if value is None:
        return b""
    if not isinstance(value, bytes):
        raise UserError(f"snapshot must be bytes, one for each lane (got {type(value).__name__})")
    return value


def snapshots(value: Any, lanes: int) -> list[bytes]:
    """Return one snapshot per lane; empty bytes where there is none."""
    if value is None:
        return [b""] * lanes
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise UserError(f"snapshot must be a list of bytes, one for each lane (got {type(value).__name__})")
    kept = [snapshot(one) for one in value]
    if len(kept) != lanes:
        raise UserError(f"snapshot must have {lanes} entries, one for each lane (got {len(kept)})")
    return kept


def count_actions(space: spaces.Space[Any]) -> int:
    """Return the number of actions of a Discrete space that starts at 0."""
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return int(space.n)
    raise UserError(f"action_space must be a Discrete space that starts at 0 (got {space})")


def integer(value: Any, name: str, least: int | None = None) -> int:
    """Return an integer, of at least `least` if that is given."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_integer or (least is not None and value < least):
        bound = "" if least is None else f" >= {least}"
        raise UserError(f"{name} must be an integer{bound} (got {value!r})")
    return int(value)


def positive(value: Any, name: str) -> int:
    """Return an integer of at least 1."""
    return integer(value, name, 1)


def path(value: Any, name: str) -> Path:
    """Return a path that is given as text, or as an object that has one."""
    if not isinstance(value, str | PathLike):
        raise UserError(f"{name} must be a path (got {value!r})")
    return Path(value)


def _to_numpy(tensor: Any) -> NDArray[Any]:
    try:
        array: NDArray[Any] = tensor.numpy()
    except TypeError:  # numpy has no bfloat16, and no sparse arrays
        array = tensor.to_dense().float().numpy()
    return array


def _shaped(array: NDArray[Any], name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if array.shape != shape:
        raise UserError(f"{name} must have the shape {shape} (got {array.shape})")
    return array


def _refuse_infinite(array: NDArray[Any], name: str) -> None:
    if array.dtype.kind == "f" and not (isfinite(np.vdot(array, array)) or np.isfinite(array).all()):
        wrong = array[~np.isfinite(array)].flat[0]
        raise UserError(f"{name} must be finite (got {wrong})")
