"""Keep the small files of an experiment's finished runs in docs/archives/, so that no run is made twice.

`python -m docs.archive FOLDER...` packs them. `python -m docs.archive --unpack FOLDER...` restores them where the
folder does not have them yet; `dpsr-apex experiment` then continues with the other runs, and `dpsr-apex report` reads
all. Of the metrics every tenth row is kept, and the last one.
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path

from dpsr_apex.record.progress import is_evaluated
from dpsr_apex.record.run_directory import RunDirectory

ARCHIVES = Path(__file__).parent / "archives"
ROWS_BETWEEN = 10


def pack(folder: Path) -> int:
    """Write the archive of all finished runs in `folder`; return their number."""
    runs = [RunDirectory(path.parent) for path in sorted(folder.glob("*/config.toml"))]
    finished = [run for run in runs if is_evaluated(run)]
    ARCHIVES.mkdir(exist_ok=True)
    with tarfile.open(_archive(folder), "w:xz") as archive:
        for run in finished:
            for path in (run.config, run.evaluations, run.provenance):
                _add(archive, path, folder, path.read_bytes())
            _add(archive, run.metrics, folder, _thinned(run.metrics))
    return len(finished)


def unpack(folder: Path) -> int:
    """Restore the archived runs that `folder` does not have; return their number."""
    with tarfile.open(_archive(folder)) as archive:
        members = [member for member in archive if not (folder / Path(member.name).parts[0]).exists()]
        folder.mkdir(parents=True, exist_ok=True)
        archive.extractall(folder, members, filter="data")
    return len({Path(member.name).parts[0] for member in members})


def _archive(folder: Path) -> Path:
    return ARCHIVES / f"{folder.name}.tar.xz"


def _thinned(metrics: Path) -> bytes:
    lines = metrics.read_bytes().splitlines(keepends=True)
    return b"".join(line for index, line in enumerate(lines, 1) if index % ROWS_BETWEEN == 0 or index == len(lines))


def _add(archive: tarfile.TarFile, path: Path, folder: Path, content: bytes) -> None:
    member = tarfile.TarInfo(path.relative_to(folder).as_posix())
    member.size, member.mtime = len(content), int(path.stat().st_mtime)
    archive.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    unpacks = "--unpack" in sys.argv
    for argument in sys.argv[1 + unpacks :]:
        count = unpack(Path(argument)) if unpacks else pack(Path(argument))
        print(f"{count} runs {'restored to' if unpacks else 'kept of'} {argument}")  # noqa: T201
