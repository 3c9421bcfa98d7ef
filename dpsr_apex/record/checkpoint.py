"""Checkpoints: the state of a whole run in one folder, either complete or absent.

A checkpoint is `step_<t>/`: for each part `<part>.safetensors` and `<part>.json`, and a manifest with the size and
checksum of each file. It is written under a temporary name, synced, and renamed. Nothing is pickled, torch is not
needed, and the content of the parts is opaque here.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from dpsr_apex.errors import UserError
from dpsr_apex.files import UNFINISHED, sync
from dpsr_apex.state import State

FORMAT = 8
MANIFEST = "manifest.json"
_DAMAGED = "damaged-"  # prefix of a checkpoint that was set aside
_REPLACED = ".replaced"  # suffix of a checkpoint that is being replaced by a newer one of the same t
_NAME = re.compile(rf"step_(\d{{12,}})({re.escape(_REPLACED)})?")
_PART = re.compile(r"[a-z0-9_]+")
_DTYPES = {np.dtype(code).name for code in "?bBhHiIqQefdF"}  # numpy's dtypes that safetensors supports


class Checkpoint(NamedTuple):
    """All parts of a run at clock t."""

    t: int
    parts: dict[str, State]


class Unwanted(Exception):
    """Raised when a checkpoint is no longer needed after it was written."""


class DamagedCheckpoint(UserError):
    """Raised for an unusable checkpoint: the reason, and the newest complete one before it (None if there is none)."""

    def __init__(self, path: Path, reason: str, offered: Path | None = None) -> None:
        offer = f"The one before it is complete: {offered} (t = {clock_of(offered)})" if offered else ""
        super().__init__(f"The checkpoint {path} cannot be used: {reason}. {offer or 'No earlier one can be used'}.")
        self.path = path
        self.reason = reason
        self.offered = offered


def save_checkpoint(
    folder: Path,
    t: int,
    parts: Mapping[str, State],
    keep: int,
    still_wanted: Callable[[], bool] = lambda: True,
) -> Path:
    """Write a checkpoint into `folder`, remove all but the newest `keep`, and return the path of the new one.

    Raise OSError on a full disk or without the parent of `folder`, ValueError or TypeError for a state that cannot be
    stored, and Unwanted if `still_wanted` returns False after everything is written. In each case the new files are
    removed, and earlier checkpoints are kept.
    """
    if keep < 1:
        raise ValueError(f"keep = {keep}: at least 1 checkpoint must be kept")
    folder.mkdir(exist_ok=True)  # not its parents: a run directory that was removed is not created again
    _remove_leftovers(folder)
    temporary = folder / f"{UNFINISHED}step_{t:012d}"
    try:
        temporary.mkdir()
        _write_parts(temporary, t, parts)
        if not still_wanted():
            raise Unwanted(f"the checkpoint at t = {t} is no longer needed")
        path = _put_in_place(temporary, folder / f"step_{t:012d}")
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _remove_durably(folder, list_checkpoints(folder)[:-keep])
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in folder `path`; raise DamagedCheckpoint if any byte differs from what was written."""
    try:
        return _read(path)
    except _Damage as damage:
        raise DamagedCheckpoint(path, str(damage), _complete_one_before(path)) from damage


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint in `folder`, None if there is none; raise DamagedCheckpoint if it is unusable."""
    paths = list_checkpoints(folder)
    return load_checkpoint(paths[-1]) if paths else None


def newest_complete(folder: Path) -> Path | None:
    """Return the newest checkpoint in `folder` of which every byte is as it was written; None if there is none."""
    return next(filter(is_complete, reversed(list_checkpoints(folder))), None)


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint, so that it is not taken for one any more; return its new path.

    The name is flushed: a power cut must not bring it back when the run has continued without it.
    """
    aside = path.with_name(f"{_DAMAGED}{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    sync(path.parent)
    return aside


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, complete or not, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=_age)


def discard_after(folder: Path, t: int) -> None:
    """Remove the checkpoints after clock t: a run that continues from t must not resume from them later."""
    _remove_durably(folder, [path for path in list_checkpoints(folder) if clock_of(path) > t])


class _Damage(Exception):
    """Why a checkpoint cannot be used."""


def _write_parts(folder: Path, t: int, parts: Mapping[str, State]) -> None:
    for name, state in parts.items():
        if not _PART.fullmatch(name) or f"{name}.json" == MANIFEST:
            raise ValueError(f"{name!r} cannot name a part: use a-z, 0-9 and _, and not {Path(MANIFEST).stem!r}")
        _write_arrays(folder / f"{name}.safetensors", state.arrays)
        _write_facts(folder / f"{name}.json", state.facts)
    files = {path.name: _sync_and_describe(path) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_bytes(_json({"format": FORMAT, "t": t, "files": files}))
    sync(folder / MANIFEST)
    sync(folder)


def _write_facts(path: Path, facts: Mapping[str, Any]) -> None:
    try:
        path.write_bytes(_json(facts))
    except TypeError as error:
        raise TypeError(f"{path.stem}: facts cannot be stored: {error}") from error


def _write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    for name, array in arrays.items():
        if array.dtype.name not in _DTYPES:
            raise TypeError(f"{path.stem}: array {name!r} of dtype {array.dtype} cannot be stored")
    try:
        # safetensors reads an array's memory from its first byte on and ignores its strides.
        save_file({name: np.require(array, requirements="C") for name, array in arrays.items()}, path)
    except SafetensorError as error:
        raise OSError(f"{path.name}: {error}") from error


def _put_in_place(temporary: Path, path: Path) -> Path:
    aside = path.with_name(path.name + _REPLACED)
    if path.exists():
        _remove(aside)
        path.rename(aside)
    temporary.rename(path)
    sync(path.parent)
    _remove(aside)
    return path


def _remove(path: Path) -> None:
    """Remove a checkpoint so that an incomplete one is never visible under its name."""
    if path.exists():
        renamed = path.with_name(UNFINISHED + path.name)
        path.rename(renamed)
        shutil.rmtree(renamed)


def _remove_durably(folder: Path, checkpoints: Sequence[Path]) -> None:
    """Remove these checkpoints, so that a power cut does not bring one back whose journal was removed since."""
    for path in checkpoints:
        _remove(path)
    if checkpoints:
        sync(folder)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(path)


def _read(path: Path) -> Checkpoint:
    try:
        t, names = _verify(path)
        return Checkpoint(t, {name: _read_part(path, name) for name in names})
    except (OSError, SafetensorError, ValueError) as error:
        raise _Damage(f"it cannot be read ({error})") from error


def _read_part(path: Path, name: str) -> State:
    return State(json.loads((path / f"{name}.json").read_bytes()), load_file(path / f"{name}.safetensors"))


def _verify(path: Path) -> tuple[int, list[str]]:
    """Verify every byte of a checkpoint, and return its clock and its parts; raise _Damage if one differs."""
    manifest = _read_manifest(path)
    files = manifest["files"]
    present = {entry.name for entry in path.iterdir()} - {MANIFEST}
    for name in sorted(present ^ set(files)):
        raise _Damage(f"{name} {'is missing' if name in files else 'does not belong to it'}")
    for name, described in files.items():
        _verify_file(path / name, described)
    return manifest["t"], sorted({Path(name).stem for name in files})


def _read_manifest(path: Path) -> dict[str, Any]:
    if not (path / MANIFEST).is_file():
        raise _Damage(f"{MANIFEST} is missing")
    text = (path / MANIFEST).read_bytes()
    try:
        manifest: dict[str, Any] = dict(json.loads(text))
    except (TypeError, ValueError) as error:
        raise _Damage(f"{MANIFEST} is not a JSON object") from error
    found = manifest.get("format")
    if found != FORMAT:
        raise _Damage(
            f"it has format {found}, and this version of dpsr_apex reads format {FORMAT}; "
            "continue the run with the version that wrote it, or start a new run"
        )
    # The manifest needs no checksum: every byte of it follows from its canonical form, the folder's name and the files.
    if set(manifest) != {"format", "t", "files"} or not isinstance(manifest["files"], dict) or _json(manifest) != text:
        raise _Damage(f"{MANIFEST} was changed")
    if not (match := _NAME.fullmatch(path.name)) or manifest["t"] != int(match[1]):
        raise _Damage(f"{MANIFEST} has t = {manifest['t']}, which is not in the folder's name")
    return manifest


def _verify_file(path: Path, described: Any) -> None:
    size = path.stat().st_size
    if not isinstance(described, dict) or size != described.get("size"):
        raise _Damage(f"{path.name} has {size} bytes, which differs from {MANIFEST}")
    if _describe(path) != described:
        raise _Damage(f"the checksum of {path.name} differs from {MANIFEST}")


def _complete_one_before(path: Path) -> Path | None:
    if not _NAME.fullmatch(path.name):
        return None
    for earlier in reversed(list_checkpoints(path.parent)):
        if _age(earlier) < _age(path) and is_complete(earlier):
            return earlier
    return None


def is_complete(path: Path) -> bool:
    """Whether every byte of the checkpoint at `path` is as it was written."""
    try:
        _verify(path)
    except (_Damage, OSError):
        return False
    return True


def _age(path: Path) -> tuple[int, bool]:
    return clock_of(path), not path.name.endswith(_REPLACED)


def clock_of(path: Path) -> int:
    """Return the clock t of the checkpoint at `path`."""
    return int(path.name.removesuffix(_REPLACED).removeprefix("step_"))


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _sync_and_describe(path: Path) -> dict[str, Any]:
    sync(path)
    return _describe(path)


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
