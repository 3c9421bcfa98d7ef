"""Facts about this machine: processor, cores, memory and GPUs, read from the files of Linux.

A fact that cannot be read is None or empty. Nothing here identifies the machine or its user: no host name, no address.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path("/")


class _Group(NamedTuple):
    """The memory of a control group, in bytes."""

    limit: int
    used: int  # without files that can be dropped from memory


def describe_machine() -> dict[str, Any]:
    """Return the processor, the usable cores, the memory in bytes, the names of the GPUs and the system."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory": total_memory(),
        "gpus": gpu_names(),
        "system": f"{platform.system()} {platform.release()}",
    }


def usable_cores(root: Path = ROOT) -> int:
    """Return the number of CPU cores that this process may use, at least 1; a container may have fewer than all."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min([cores, *_quotas(root)]), 1)


def cpu_model(root: Path = ROOT) -> str:
    """Return the model of the processor; its architecture if the model is unknown."""
    names = (line.partition(":")[2].strip() for line in _lines(root / "proc/cpuinfo") if line.startswith("model name"))
    return next(names, "") or platform.machine()


def gpu_names(root: Path = ROOT) -> list[str]:
    """Return the models of the NVIDIA GPUs, without loading a library for them."""
    files = sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for file in files for line in _lines(file)]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


def total_memory(root: Path = ROOT) -> int | None:
    """Return the bytes of memory that this process could have if nothing else needed any."""
    limits = [group.limit for group in _groups(root)]
    return min((number for number in [_meminfo(root, "MemTotal"), *limits] if number is not None), default=None)


def available_memory(root: Path = ROOT) -> int | None:
    """Return the bytes of memory that this process can still have, within the limits of its control groups."""
    left = [max(group.limit - group.used, 0) for group in _groups(root)]
    return min((number for number in [_meminfo(root, "MemAvailable"), *left] if number is not None), default=None)


def resident_memory(root: Path = ROOT) -> int | None:
    """Return the bytes of memory that this process takes."""
    pages = "".join(_lines(root / "proc/self/statm")).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else None


def release_memory() -> None:
    """Return memory that was freed to the system, where the C library can do so; otherwise it stays in this process."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _meminfo(root: Path, name: str) -> int | None:
    lines = [line.split() for line in _lines(root / "proc/meminfo")]
    return next((int(words[1]) * 1024 for words in lines if words[0] == f"{name}:"), None)


def _groups(root: Path) -> Iterator[_Group]:
    """Yield the memory of the control groups that limit that of this process."""
    unified = "memory.max", "memory.current", "inactive_file"
    older = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    for folder, is_unified in _folders(root, "memory"):
        limit, used, files = unified if is_unified else older
        if (most := _number(folder / limit)) is not None:
            yield _Group(most, (_number(folder / used) or 0) - _statistic(folder, files))


def _quotas(root: Path) -> Iterator[int]:
    """Yield the whole cores of the control groups that limit those of this process."""
    older = "cpu.cfs_quota_us", "cpu.cfs_period_us"
    for folder, is_unified in _folders(root, "cpu"):
        lines = _lines(folder / "cpu.max") if is_unified else [line for name in older for line in _lines(folder / name)]
        numbers = " ".join(lines).split()  # a quota, or a word if there is none, and its period
        if len(numbers) == 2 and all(map(str.isdecimal, numbers)):
            yield int(numbers[0]) // max(int(numbers[1]), 1)


def _folders(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the control groups of this process and those that contain them, and whether they are of version 2."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        own = top / path.lstrip("/")
        for folder in (own, *(parent for parent in own.parents if parent.is_relative_to(top))):
            yield folder, not controllers


def _statistic(folder: Path, name: str) -> int:
    lines = [line.split() for line in _lines(folder / "memory.stat")]
    return next((int(words[1]) for words in lines if words[0] == name), 0)


def _number(file: Path) -> int | None:
    """Return the number in a file; None if there is none, as in a group without a limit."""
    text = "".join(_lines(file))
    return int(text) if text.isdecimal() else None


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        return []
