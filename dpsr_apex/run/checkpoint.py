"""Checkpoints: the state of every room in one folder, whole or not there at all.

A checkpoint is `step_<t>/`: for each part `<part>.safetensors` and `<part>.json`, and a manifest with the size and
checksum of each file. It is written under another name, synced, and renamed. Nothing is ever pickled, no torch is
needed, and nothing here knows what the parts mean.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from dpsr_apex.state import State

FORMAT = 3
MANIFEST = "manifest.json"
_TEMPORARY = ".unfinished-"
_REPLACED = ".replaced"  # steps aside for a newer one of the same t, and counts until that one is in place
_NAME = re.compile(rf"step_(\d{{12,}})({re.escape(_REPLACED)})?")
_PART = re.compile(r"[a-z0-9_]+")
_DTYPES = {np.dtype(code).name for code in "?bBhHiIqQefdF"}  # what safetensors knows of numpy's


class Checkpoint(NamedTuple):
    """All rooms at clock t."""

    t: int
    parts: dict[str, State]


class Unwanted(Exception):
    """A checkpoint that nobody wants any more once it is written."""


class DamagedCheckpoint(Exception):
    """A checkpoint that cannot be used: why, and the newest whole one before it (None where there is none)."""

    def __init__(self, path: Path, reason: str, offered: Path | None = None) -> None:
        offer = f"The one before it is whole: {offered} (t = {clock_of(offered)})." if offered else ""
        super().__init__(f"The checkpoint {path} cannot be used: {reason}. {offer or 'No whole one is before it.'}")
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
    """Write a checkpoint into `folder`, then remove all but the newest `keep`; the path of the new one is returned.

    An OSError (a full disk) comes out after the half-written files are gone; earlier checkpoints are as they were.
    A state that cannot be stored is a ValueError or a TypeError, likewise. `still_wanted` is asked when all is
    written; an Unwanted comes out, likewise, if it is not.
    """
    if keep < 1:
        raise ValueError(f"keep = {keep}: at least 1 checkpoint must be kept")
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    temporary = folder / f"{_TEMPORARY}step_{t:012d}"
    try:
        temporary.mkdir()
        _write_parts(temporary, t, parts)
        if not still_wanted():
            raise Unwanted(f"the checkpoint at t = {t} is not wanted any more")
        path = _put_in_place(temporary, folder / f"step_{t:012d}")
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in list_checkpoints(folder)[:-keep]:
        _remove(old)
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in folder `path`; DamagedCheckpoint where a single byte of it is not as it was written."""
    try:
        return _read(path)
    except _Damage as damage:
        raise DamagedCheckpoint(path, str(damage), _whole_one_before(path)) from damage


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint in `folder`, None where there is none; DamagedCheckpoint where it cannot be used."""
    paths = list_checkpoints(folder)
    return load_checkpoint(paths[-1]) if paths else None


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, whole or not, the oldest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=_age)


def has_checkpoint(folder: Path, t: int) -> bool:
    """Whether there is a checkpoint at clock t in `folder`."""
    return any(clock_of(path) == t for path in list_checkpoints(folder))


def discard_after(folder: Path, t: int) -> None:
    """Remove the checkpoints after clock t: a run that continues from there must not go on from them later."""
    for path in list_checkpoints(folder):
        if clock_of(path) > t:
            _remove(path)


class _Damage(Exception):
    """The reason why a checkpoint cannot be used."""


def _write_parts(folder: Path, t: int, parts: Mapping[str, State]) -> None:
    for name, state in parts.items():
        if not _PART.fullmatch(name) or f"{name}.json" == MANIFEST:
            raise ValueError(f"{name!r} cannot name a part: use a-z, 0-9 and _, and not {Path(MANIFEST).stem!r}")
        _write_arrays(folder / f"{name}.safetensors", state.arrays)
        _write_facts(folder / f"{name}.json", state.facts)
    files = {path.name: _sync_and_describe(path) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_bytes(_json({"format": FORMAT, "t": t, "files": files}))
    _sync(folder / MANIFEST)
    _sync(folder)


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
        # safetensors reads an array's memory from its first byte on, whatever its strides say.
        save_file({name: np.require(array, requirements="C") for name, array in arrays.items()}, path)
    except SafetensorError as error:
        raise OSError(f"{path.name}: {error}") from error


def _put_in_place(temporary: Path, path: Path) -> Path:
    aside = path.with_name(path.name + _REPLACED)
    if path.exists():
        _remove(aside)
        path.rename(aside)
    temporary.rename(path)
    _sync(path.parent)
    _remove(aside)
    return path


def _remove(path: Path) -> None:
    """Remove a checkpoint, so that no half of it is ever seen under its name."""
    if path.exists():
        condemned = path.with_name(_TEMPORARY + path.name)
        path.rename(condemned)
        shutil.rmtree(condemned)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(f"{_TEMPORARY}*"):
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
    """The clock and the parts of a checkpoint whose every byte is as it was written; _Damage otherwise."""
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
        manifest = json.loads(text)
    except ValueError as error:
        raise _Damage(f"{MANIFEST} is not JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _Damage(f"{MANIFEST} is not of format {FORMAT}, the one that this version reads")
    # The manifest has no checksum of its own: its one rendering, the folder's name and the files fix every byte.
    if set(manifest) != {"format", "t", "files"} or not isinstance(manifest["files"], dict) or _json(manifest) != text:
        raise _Damage(f"{MANIFEST} was changed")
    if not (match := _NAME.fullmatch(path.name)) or manifest["t"] != int(match[1]):
        raise _Damage(f"{MANIFEST} says t = {manifest['t']}, which is not what the folder is called")
    return manifest


def _verify_file(path: Path, described: Any) -> None:
    size = path.stat().st_size
    if not isinstance(described, dict) or size != described.get("size"):
        raise _Damage(f"{path.name} has {size} bytes, which is not what {MANIFEST} says")
    if _describe(path) != described:
        raise _Damage(f"the checksum of {path.name} is not what {MANIFEST} says")


def _whole_one_before(path: Path) -> Path | None:
    if not _NAME.fullmatch(path.name):
        return None
    for earlier in reversed(list_checkpoints(path.parent)):
        if _age(earlier) < _age(path) and _is_whole(earlier):
            return earlier
    return None


def _is_whole(path: Path) -> bool:
    try:
        _verify(path)
    except (_Damage, OSError):
        return False
    return True


def _age(path: Path) -> tuple[int, bool]:
    return clock_of(path), not path.name.endswith(_REPLACED)


def clock_of(path: Path) -> int:
    """The clock t of the checkpoint at `path`."""
    return int(path.name.removesuffix(_REPLACED).removeprefix("step_"))


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _sync_and_describe(path: Path) -> dict[str, Any]:
    _sync(path)
    return _describe(path)


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
