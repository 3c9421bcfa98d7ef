"""Where a run under chaos takes place: a small disk and two machines, as far as this machine allows them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.machines import Machine, machines, sockets_on

DISK = 2**30  # bytes; memory is taken only for what is written
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Disk:
    """A file system in memory, whose size can be changed."""

    path: Path

    def fill(self) -> None:
        """Leave no space, by making the disk as small as what is on it."""
        while True:
            found = os.statvfs(self.path)
            used = (found.f_blocks - found.f_bfree) * found.f_frsize
            if self._resize(used):
                return

    def free(self) -> None:
        """Make it large again."""
        assert self._resize(DISK)

    def _resize(self, size: int) -> bool:
        """Return False if there is more on it by now."""
        command = ["mount", "-o", f"remount,size={max(size, PAGE)}", str(self.path)]
        return subprocess.run(command, capture_output=True).returncode == 0


@dataclass
class Site:
    """What a run can use; None where it is not permitted here, with the reason in `missing`."""

    folder: Path  # on the disk
    disk: Disk | None
    near: Machine | None
    far: Machine | None
    missing: list[str]

    def on(self, machine: Machine | None) -> list[str]:
        """Return the prefix of a command that is to run on this machine."""
        return machine.before if machine else []

    @contextmanager
    def sockets(self) -> Iterator[None]:
        """Inside the block, new sockets belong to the machine of the head."""
        with sockets_on(self.near) if self.near else nullcontext():
            yield


@contextmanager
def prepared(folder: Path) -> Iterator[Site]:
    """Yield a site in this folder, and remove its disk and its machines in the end."""
    site = Site(folder, None, None, None, [])
    with ExitStack() as stack:
        try:
            site.near, site.far = stack.enter_context(machines(2))
        except pytest.skip.Exception as reason:
            site.missing.append(f"links are not cut: {reason}")
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder], capture_output=True, text=True
        )
        if mounted.returncode:
            site.missing.append(f"the disk does not get full: mounting one needs root ({mounted.stderr.strip()})")
        else:
            stack.callback(lambda: subprocess.run(["umount", "--lazy", folder], check=True))
            site.disk = Disk(folder)
        yield site
