"""The public names and signatures of the package, and what importing it loads."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import dpsr_apex as da

ROOT = Path(__file__).parents[3]
SIGNATURES = {
    "ReplayBuffer": (
        "(capacity: 'int', observation_space: 'spaces.Space[Any]', action_space: 'spaces.Space[Any]', "
        "method: 'str' = 'dpsr', *, n_steps: 'int' = 1, discount: 'float' = 0.99, total_steps: 'int' = 1000000, "
        "seed: 'int' = 0, **settings: 'Unpack[ReplaySettings]') -> 'None'"
    ),
    "ReplayBuffer.add": (
        "(self, obs: 'Any', action: 'Any', reward: 'Any', next_obs: 'Any', terminated: 'Any', truncated: 'Any', "
        "snapshot: 'Any' = None, *, final_obs: 'Any' = None, mask: 'Any' = None) -> 'int'"
    ),
    "ReplayBuffer.sample": "(self, batch_size: 'int') -> 'Batch'",
    "ReplayBuffer.update_priorities": "(self, ids: 'Any', td_errors: 'Any') -> 'None'",
    "ReplayBuffer.recycle": "(self, env: 'Any', act: 'Act', td_errors: 'TdErrors') -> 'int'",
    "ReplayBuffer.save": "(self, path: 'str | Path') -> 'None'",
    "ReplayBuffer.load": "(self, path: 'str | Path') -> 'None'",
    "SnapshotEnv.snapshot": "(self, with_observation: 'bool' = True) -> 'bytes'",
    "SnapshotEnv.restore": "(self, snapshot: 'bytes', observation: 'Any' = None) -> 'Observation'",
    "SnapshotVectorEnv.snapshot": "(self, lane: 'int', with_observation: 'bool' = True) -> 'bytes'",
    "SnapshotVectorEnv.snapshots": "(self) -> 'list[bytes]'",
    "SnapshotVectorEnv.restore": ("(self, lane: 'int', snapshot: 'bytes', observation: 'Any' = None) -> 'Observation'"),
    "make_env": (
        "(name: 'str', *, stack: 'int | None' = None, training: 'bool' = True, "
        "wrappers: 'Sequence[str]' = (), **arguments: 'Any') -> 'SnapshotEnv'"
    ),
    "make_vec": (
        "(name: 'str', num_envs: 'int', *, stack: 'int | None' = None, training: 'bool' = True, "
        "wrappers: 'Sequence[str]' = (), **arguments: 'Any') -> 'SnapshotVectorEnv'"
    ),
    "Policy.__call__": "(self, obs: 'Any') -> 'Any'",
    "Policy.q_values": "(self, obs: 'Any') -> 'NDArray[np.float32]'",
    "load_policy": "(run_dir: 'StrPath', weights: 'Weights' = 'best') -> 'Policy'",
    "evaluate": (
        "(run_dir: 'StrPath', weights: 'Weights' = 'best', episodes: 'int | None' = None) -> 'dict[str, Any]'"
    ),
    "export_minari": (
        "(run_dir: 'StrPath', dataset_id: 'str', *, weights: 'Weights' = 'best', "
        "episodes: 'int | None' = None) -> 'dict[str, Any]'"
    ),
    "Run": "(run_dir: 'StrPath') -> 'None'",
    "Run.enter": "(self, identity: 'int') -> 'SnapshotEnv'",
    "Run.policy": "(self, weights: 'Weights' = 'best') -> 'Policy'",
    "train": (
        "(config: 'str | Path', *, method: 'str | None' = None, seed: 'int | None' = None, "
        "steps: 'int | None' = None, solo: 'bool' = True, actors: 'int | None' = None, base: 'str | None' = None, "
        "params: 'str | None' = None, set: 'Mapping[str, Any] | None' = None, "
        "run_dir: 'str | Path | None' = None, callbacks: 'Given' = ()) -> 'Run'"
    ),
    "resume": "(run_dir: 'StrPath', *, steps: 'int | None' = None, callbacks: 'Given' = ()) -> 'Run'",
    "Callback": "()",
    "Callback.on_step": "(self, run: 'LiveRun', transitions: 'int') -> 'Stop | None'",
    "Callback.on_update": "(self, run: 'LiveRun', report: 'dict[str, float]') -> 'Stop | None'",
    "Callback.on_episode": "(self, run: 'LiveRun', score: 'float', steps: 'int') -> 'Stop | None'",
    "Callback.on_evaluation": "(self, run: 'LiveRun', row: 'dict[str, Any]') -> 'Stop | None'",
    "Callback.on_checkpoint": "(self, run: 'LiveRun', path: 'Path') -> 'Stop | None'",
    "Callback.on_end": "(self, run: 'LiveRun', finished: 'bool') -> 'Stop | None'",
    "LiveRun": "(path: 'Path', config: 'Config', replay: 'Replay', updates: 'int' = 0) -> None",
    "Batch.torch": "(self, device: 'Any' = 'cpu') -> 'Batch'",
}
NAMES = [
    *("STOP", "Batch", "Callback", "LiveRun"),
    *("Policy", "ReplayBuffer", "Run", "SnapshotEnv", "SnapshotVectorEnv", "Stop", "UserError", "evaluate"),
    *("export_minari", "load_policy", "make_env", "make_vec", "resume", "train"),
]
MEMBERS: dict[type, str] = {
    da.Callback: "on_checkpoint on_end on_episode on_evaluation on_step on_update",
    da.LiveRun: "t updates",
    da.Policy: "network q_values",
    da.ReplayBuffer: ("add capacity counters load recycle rounds_open sample save t total_steps update_priorities"),
    da.Run: "config enter evaluations metrics path policy replay",
    da.SnapshotEnv: "close observation render reset restore snapshot step",
    da.SnapshotVectorEnv: "close_extras render reset restore snapshot snapshots step",
    da.Stop: "STOP",
}
BATCH_FIELDS = ("obs", "actions", "rewards", "next_obs", "terminated", "discounts", "weights", "ids")


def test_the_public_names_are_these() -> None:
    assert da.__all__ == NAMES
    assert set(NAMES) <= set(dir(da))
    assert all(getattr(da, name) is not None for name in NAMES)


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_public_signature_is_pinned(name: str) -> None:
    found = da
    for part in name.split("."):
        found = getattr(found, part)
    assert str(inspect.signature(found)) == SIGNATURES[name]  # type: ignore[arg-type]  # the module, at first


def test_every_public_function_and_class_has_a_pinned_signature() -> None:
    others = {"Batch", "STOP", "Stop", "UserError"}
    assert {name.partition(".")[0] for name in SIGNATURES} - others == set(NAMES) - others


@pytest.mark.parametrize("cls", MEMBERS)
def test_the_public_members_of_a_class_are_pinned(cls: type) -> None:
    assert sorted(name for name in vars(cls) if not name.startswith("_")) == MEMBERS[cls].split()


def test_the_fields_of_a_batch_are_pinned() -> None:
    assert da.Batch._fields == BATCH_FIELDS


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Replaybuffer'"):
        da.Replaybuffer  # type: ignore[attr-defined]  # noqa: B018 -- looking it up is the test


def test_importing_the_package_loads_nothing_but_itself() -> None:
    program = "import sys; before = set(sys.modules); import dpsr_apex; print(*set(sys.modules) - before)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name for name in output.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert loaded == {"dpsr_apex"}


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "dpsr_apex" / "py.typed").is_file()
