"""Devices, threads and precision: everything that depends on whether there is a GPU."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from dpsr_apex.config import ConfigError


class DeviceError(ConfigError):
    """Raised when the configured device is not available, or does not support the configured precision."""


def choose_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Return the torch device; `auto` selects a GPU if one is available."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise DeviceError("learner.device is 'cuda' but torch found no GPU; use 'auto' or 'cpu'")
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


def autocast(device: torch.device, precision: Literal["float32", "bfloat16"]) -> AbstractContextManager[Any]:
    """Return the context in which networks compute with this precision; weights and losses stay float32."""
    if precision == "bfloat16" and device.type != "cuda":
        raise DeviceError("learner.precision is 'bfloat16', which needs a GPU; use 'float32' on this machine")
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else contextlib.nullcontext()


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return a copy of an array on the device; pinned memory lets the copy to a GPU overlap with computation."""
    if device.type == "cuda":
        return torch.from_numpy(array).pin_memory().to(device, non_blocking=True)
    return torch.from_numpy(array.copy()).to(device)  # torch.tensor takes three times as long for the small columns


def share_with_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array on the device: on a CPU the tensor shares its memory, so it must not be modified."""
    return to_device(array, device) if device.type == "cuda" else torch.from_numpy(array)


def to_tensors(arrays: Iterable[NDArray[Any] | Tensor], device: torch.device | str) -> list[Tensor]:
    """Return copies of arrays on a device that is given by name or as an object; tensors are moved to it."""
    try:
        place = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise DeviceError(f"device must be one of torch's, such as 'cpu' or 'cuda' (got {device!r})") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise DeviceError(f"device is '{place}' but torch found no GPU; use 'cpu'")
    return [array.to(place) if isinstance(array, Tensor) else to_device(array, place) for array in arrays]


def set_threads(threads: int) -> None:
    """Set the number of threads that torch uses in this process."""
    torch.set_num_threads(threads)
    # Torch accepts this only before its first parallel work; afterwards its default is harmless, as nothing uses it.
    with contextlib.suppress(RuntimeError):
        torch.set_num_interop_threads(1)


def keep_freed_memory() -> None:
    """Make glibc's allocator keep freed memory; no effect with other allocators.

    By default it returns the large tensors of every update to the system and page-faults them in again, which takes a
    tenth of an update's time.
    """
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD in malloc.h
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(mmap_threshold, 32 * 2**20)  # the maximum
        mallopt(trim_threshold, 512 * 2**20)
