"""Facts about a machine, read from the files of a made-up one."""

from __future__ import annotations

import json
import mmap
import os
import platform
from pathlib import Path

import pytest

from dpsr_apex.machine import (
    available_memory,
    cpu_model,
    describe_machine,
    gpu_names,
    resident_memory,
    total_memory,
    usable_cores,
)

MEMINFO = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    9000 kB\n"


def make(root: Path, **files: str) -> Path:
    """Write files by their paths, in which __ stands for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_limits_the_memory_is_that_of_the_machine(tmp_path: Path) -> None:
    root = make(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/\n")
    assert (total_memory(root), available_memory(root)) == (16_000 * 1024, 9_000 * 1024)


@pytest.mark.parametrize("limited", ["user", "user/job"])
def test_the_smallest_limit_of_any_enclosing_control_group_counts(tmp_path: Path, limited: str) -> None:
    root = make(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/user/job\n")
    for group in ("user", "user/job"):
        folder = root / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text("5000000\n" if group == limited else "max\n")
        (folder / "memory.current").write_text("2000000\n")
        (folder / "memory.stat").write_text("anon 1500000\ninactive_file 500000\n")
    assert (total_memory(root), available_memory(root)) == (5_000_000, 3_500_000)


def test_a_limit_of_the_older_control_groups_counts(tmp_path: Path) -> None:
    root = make(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n",
        # In a container the own group is at the top, although its name is that of the host.
        **{"sys__fs__cgroup__memory__memory.limit_in_bytes": "4000000\n"},
        **{"sys__fs__cgroup__memory__memory.usage_in_bytes": "5000000\n"},
        **{"sys__fs__cgroup__memory__memory.stat": "total_inactive_file 0\n"},
    )
    assert (total_memory(root), available_memory(root)) == (4_000_000, 0)


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 8), ("", 8)]
)
@pytest.mark.parametrize("limited", ["", "pod", "pod/container"])
def test_the_cores_are_limited_by_the_quota_of_any_enclosing_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limited: str, quota: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))
    root = make(tmp_path, proc__self__cgroup="0::/pod/container\n")
    folder = root / "sys/fs/cgroup" / limited
    folder.mkdir(parents=True)
    (folder / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores(root) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("300000", 3)])
def test_a_quota_of_the_older_control_groups_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(8)))
    root = make(
        tmp_path,
        proc__self__cgroup="4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n",
        **{"sys__fs__cgroup__cpu__cpu.cfs_quota_us": f"{quota}\n"},
        **{"sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n"},
    )
    assert usable_cores(root) == cores


def test_the_memory_of_this_process_is_counted_in_bytes(tmp_path: Path) -> None:
    content = b"x" * (50 * 2**20)
    before = resident_memory()
    with mmap.mmap(-1, len(content)) as block:  # new pages, unlike memory that was freed before
        block.write(content)
        after = resident_memory()
    assert before is not None
    assert after is not None
    assert 40 * 2**20 < after - before < 100 * 2**20
    assert resident_memory(tmp_path) is None


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert (total_memory(tmp_path), available_memory(tmp_path)) == (None, None)
    assert (cpu_model(tmp_path), gpu_names(tmp_path)) == (platform.machine(), [])


def test_processor_and_gpus_are_named(tmp_path: Path) -> None:
    root = make(tmp_path, proc__cpuinfo="processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n")
    make(root, **{f"proc__driver__nvidia__gpus__{bus}__information": "Model: \t Some GPU\nIRQ: 5\n" for bus in "01"})
    assert (cpu_model(root), gpu_names(root)) == ("Some CPU @ 2 GHz", ["Some GPU", "Some GPU"])


def test_the_description_of_this_machine_does_not_identify_it() -> None:
    described = describe_machine()
    assert 1 <= described["cores"] <= len(os.sched_getaffinity(0))
    assert described["memory"] > 2**20
    assert platform.node() not in json.dumps(described)
