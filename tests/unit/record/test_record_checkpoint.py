"""Checkpoints: exact round trips, every damaged byte noticed, and no state lost to a kill or a full disk."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpsr_apex.record import checkpoint as subject
from dpsr_apex.record.checkpoint import (
    FORMAT,
    DamagedCheckpoint,
    discard_after,
    list_checkpoints,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from dpsr_apex.state import State

DTYPES = [np.dtype(code) for code in "?bBhHiIqQefdF"]


def parts(seed: int = 0) -> dict[str, State]:
    rng = np.random.default_rng(seed)
    return {
        "replay": State(
            {"t": seed, "rng": rng.bit_generator.state}, {"priorities": rng.random(50), "none": np.zeros(0)}
        ),
        "agent": State({}, {"weights": rng.random((3, 4), dtype=np.float32)}),
    }


def assert_same(found: State, expected: State) -> None:
    assert found.facts == expected.facts
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert found.arrays[name].dtype == array.dtype.newbyteorder("=")
        assert found.arrays[name].shape == array.shape
        np.testing.assert_array_equal(found.arrays[name], array)


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 12_000, parts(), keep=2)
    assert path == tmp_path / "step_000000012000"
    found = load_checkpoint(path)
    assert found.t == 12_000
    assert found.parts.keys() == parts().keys()
    for name, state in parts().items():
        assert_same(found.parts[name], state)


FACTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ARRAYS = hnp.arrays(
    st.sampled_from([*DTYPES, np.dtype(">i4"), np.dtype(">f8")]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@settings(max_examples=40, deadline=None)
@given(
    facts=st.dictionaries(st.text(), FACTS, max_size=4), arrays=st.dictionaries(st.text(min_size=1), ARRAYS, max_size=4)
)
def test_any_state_comes_back(facts: dict[str, Any], arrays: dict[str, Any]) -> None:
    arrays.pop("__metadata__", None)
    with tempfile.TemporaryDirectory() as folder:
        found = load_checkpoint(save_checkpoint(Path(folder), 1, {"a": State(facts, arrays)}, keep=1))
    assert_same(found.parts["a"], State(facts, arrays))


def test_strides_do_not_scramble_an_array(tmp_path: Path) -> None:
    base = np.arange(24).reshape(4, 6)
    arrays = {
        "transposed": base.T,
        "reversed": base[::-1],
        "thinned": base[::2, ::3],
        "fortran": np.asfortranarray(base),
    }
    found = load_checkpoint(save_checkpoint(tmp_path, 1, {"a": State({}, arrays)}, keep=1))
    assert_same(found.parts["a"], State({}, arrays))


def test_loaded_arrays_can_be_written_to(tmp_path: Path) -> None:
    found = load_checkpoint(save_checkpoint(tmp_path, 1, parts(), keep=1))
    found.parts["agent"].arrays["weights"][:] = 1


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for t in (5, 10, 15, 20):
        save_checkpoint(tmp_path, t, parts(t), keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step_000000000015", "step_000000000020"]
    assert len(list(tmp_path.iterdir())) == 2
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.t == 20


def test_there_may_be_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "not there") is None


def test_saving_again_at_the_same_clock_replaces(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 7, parts(1), keep=1)
    path = save_checkpoint(tmp_path, 7, parts(2), keep=1)
    assert load_checkpoint(path).parts["replay"].facts["t"] == 2
    assert list(tmp_path.iterdir()) == [path]


def test_one_that_stepped_aside_still_counts(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 7, parts(1), keep=1)
    path.rename(tmp_path / f"{path.name}.replaced")  # as if killed between the two renames
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert_same(found.parts["agent"], parts(1)["agent"])
    assert save_checkpoint(tmp_path, 7, parts(2), keep=1) == path
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["", "../a", "a/b", "A", "manifest", "a.b"])
def test_a_part_that_cannot_be_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a part"):
        save_checkpoint(tmp_path, 1, {name: State({}, {})}, keep=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "state",
    [
        State({"a": np.int64(1)}, {}),
        State({"a": b"bytes"}, {}),
        State({}, {"a": np.array([object()])}),
        State({}, {"a": np.array(["text"])}),
        State({}, {"a": np.zeros(1, np.complex128)}),
    ],
)
def test_a_state_that_cannot_be_stored_is_refused_and_leaves_nothing(tmp_path: Path, state: State) -> None:
    good = save_checkpoint(tmp_path, 1, parts(), keep=1)
    with pytest.raises(TypeError, match=r"replay: .* cannot be stored"):
        save_checkpoint(tmp_path, 2, {"replay": state}, keep=1)
    assert list(tmp_path.iterdir()) == [good]
    load_checkpoint(good)


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep = 0"):
        save_checkpoint(tmp_path, 1, parts(), keep=0)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    for t in (10, 20):
        save_checkpoint(folder, t, parts(t), keep=2)
    return folder


def damaged_copy(pristine: Path, folder: str) -> tuple[Path, Path]:
    """The earlier checkpoint and the newest one, of a copy that may be damaged."""
    copy = Path(shutil.copytree(pristine, Path(folder) / "copy"))
    earlier, newest = list_checkpoints(copy)
    return earlier, newest


def assert_refused(newest: Path, offered: Path | None, reason: str | None = None) -> None:
    with pytest.raises(DamagedCheckpoint, match=reason) as refusal:
        newest_checkpoint(newest.parent)
    assert refusal.value.path == newest
    assert refusal.value.offered == offered
    assert offered is None or f"{offered} (t = 10)" in str(refusal.value)


FILES = ["agent.json", "agent.safetensors", "manifest.json", "replay.json", "replay.safetensors"]


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(FILES), where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_changed_byte_is_noticed(pristine: Path, name: str, where: float, flip: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        earlier, newest = damaged_copy(pristine, folder)
        content = bytearray((newest / name).read_bytes())
        content[int(where * len(content))] ^= flip
        (newest / name).write_bytes(content)
        assert_refused(newest, earlier)


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(FILES), where=st.floats(0, 1, exclude_max=True), more=st.binary(max_size=3))
def test_another_length_is_noticed(pristine: Path, name: str, where: float, more: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        earlier, newest = damaged_copy(pristine, folder)
        content = (newest / name).read_bytes()
        (newest / name).write_bytes(content + more if more else content[: int(where * len(content))])
        assert_refused(newest, earlier)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_noticed(pristine: Path, tmp_path: Path, name: str) -> None:
    earlier, newest = damaged_copy(pristine, str(tmp_path))
    (newest / name).unlink()
    assert_refused(newest, earlier, f"{name} is missing")


def test_a_stray_file_is_noticed(pristine: Path, tmp_path: Path) -> None:
    earlier, newest = damaged_copy(pristine, str(tmp_path))
    (newest / "other.json").touch()
    assert_refused(newest, earlier, "other.json does not belong to it")


def test_another_format_is_refused(pristine: Path, tmp_path: Path) -> None:
    earlier, newest = damaged_copy(pristine, str(tmp_path))
    manifest = json.loads((newest / "manifest.json").read_text())
    (newest / "manifest.json").write_text(json.dumps(manifest | {"format": FORMAT - 1}))
    assert_refused(newest, earlier, f"it has format {FORMAT - 1}, and this version of dpsr_apex reads format {FORMAT}")


def test_another_clock_is_refused(pristine: Path, tmp_path: Path) -> None:
    earlier, newest = damaged_copy(pristine, str(tmp_path))
    assert_refused(newest.rename(newest.with_name("step_000000000030")), earlier, "t = 20")


def test_a_damaged_one_is_not_offered(pristine: Path, tmp_path: Path) -> None:
    earlier, newest = damaged_copy(pristine, str(tmp_path))
    for path in (earlier, newest):
        (path / "replay.json").write_text("{}")
    assert_refused(newest, None, "No earlier one can be used")


SAVE_AND_PAUSE = """
import sys
from pathlib import Path
import numpy as np
from dpsr_apex.record import checkpoint
from dpsr_apex.state import State

folder, stage = Path(sys.argv[1]), sys.argv[2]
real = getattr(checkpoint, stage)

def pausing(*arguments):
    if stage == "_remove" and arguments[0].name != "step_000000000001":
        return real(*arguments)
    if stage in ("sync", "_remove"):
        real(*arguments)
    print("reached", flush=True)
    sys.stdin.read()

setattr(checkpoint, stage, pausing)
state = State({"t": 2}, {"x": np.ones(100_000)})
checkpoint.save_checkpoint(folder, int(sys.argv[3]), {"replay": state, "agent": state}, keep=1)
"""


@pytest.mark.parametrize(
    ("stage", "t", "survivor"),
    [
        ("_write_facts", 2, 1),
        ("sync", 2, 1),
        ("_put_in_place", 2, 1),
        ("_put_in_place", 1, 1),
        ("_remove", 2, 2),
    ],
)
def test_kill_in_the_middle_of_a_save(tmp_path: Path, stage: str, t: int, survivor: int) -> None:
    save_checkpoint(tmp_path, 1, {"replay": State({"t": 1}, {})}, keep=1)
    command = [sys.executable, "-c", SAVE_AND_PAUSE, str(tmp_path), stage, str(t)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"reached\n"
        child.kill()
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert found.parts["replay"].facts == {"t": survivor}
    path = save_checkpoint(tmp_path, 3, parts(), keep=1)
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_removed_does_not_come_back_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its journal is removed next, so that nothing could continue from it."""
    for t in (1, 2):
        save_checkpoint(tmp_path, t, parts(), keep=2)
    listed: list[list[Path]] = []  # when the folder was flushed

    def watched(path: Path) -> None:
        if path == tmp_path:
            listed.append(list_checkpoints(tmp_path))

    monkeypatch.setattr(subject, "sync", watched)
    save_checkpoint(tmp_path, 3, parts(), keep=2)
    assert listed[-1] == list_checkpoints(tmp_path)
    discard_after(tmp_path, 2)
    assert listed[-1] == list_checkpoints(tmp_path)


def test_a_file_that_grows_too_large_leaves_the_last_good_one(tmp_path: Path) -> None:
    good = save_checkpoint(tmp_path, 1, parts(), keep=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match=r"replay\.safetensors"):
            save_checkpoint(tmp_path, 2, {"replay": State({}, {"x": np.ones(100_000)})}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == [good]
    load_checkpoint(good)


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a disk of 512 KB cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    "state", [State({}, {"x": np.ones(100_000)}), State({"text": "x" * 800_000}, {})], ids=["arrays", "facts"]
)
def test_a_full_disk_leaves_the_last_good_one(small_disk: Path, state: State) -> None:
    good = save_checkpoint(small_disk, 1, parts(), keep=1)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(small_disk, 2, {"replay": state}, keep=1)
    assert list(small_disk.iterdir()) == [good]
    load_checkpoint(good)
    save_checkpoint(small_disk, 3, parts(), keep=1)


def test_no_torch_is_needed() -> None:
    code = f"import sys, {subject.__name__}; sys.exit('torch' in sys.modules or 'pickle' in vars({subject.__name__}))"
    subprocess.run([sys.executable, "-c", code], check=True)
