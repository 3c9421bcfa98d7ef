"""Double Prioritized State Recycled experience replay for DQN, as an actor-learner system.

The names in `__all__` are the public Python API. Each is imported when it is first used, so that importing the package
takes milliseconds and loads neither numpy nor numba nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dpsr_apex.api.batch import Batch
    from dpsr_apex.api.buffer import ReplayBuffer
    from dpsr_apex.api.datasets import export_minari
    from dpsr_apex.api.environments import SnapshotEnv, SnapshotVectorEnv, make_env, make_vec
    from dpsr_apex.api.policy import Policy, evaluate, load_policy
    from dpsr_apex.api.runs import Run, resume, train
    from dpsr_apex.callbacks import STOP, Callback, LiveRun, Stop
    from dpsr_apex.errors import UserError

__version__ = "0.2.0"

__all__ = [
    "STOP",
    "Batch",
    "Callback",
    "LiveRun",
    "Policy",
    "ReplayBuffer",
    "Run",
    "SnapshotEnv",
    "SnapshotVectorEnv",
    "Stop",
    "UserError",
    "evaluate",
    "export_minari",
    "load_policy",
    "make_env",
    "make_vec",
    "resume",
    "train",
]

_HOMES: Final = {
    "STOP": "dpsr_apex.callbacks",
    "Stop": "dpsr_apex.callbacks",
    "Callback": "dpsr_apex.callbacks",
    "LiveRun": "dpsr_apex.callbacks",
    "Batch": "dpsr_apex.api.batch",
    "Policy": "dpsr_apex.api.policy",
    "ReplayBuffer": "dpsr_apex.api.buffer",
    "Run": "dpsr_apex.api.runs",
    "SnapshotEnv": "dpsr_apex.api.environments",
    "SnapshotVectorEnv": "dpsr_apex.api.environments",
    "UserError": "dpsr_apex.errors",
    "evaluate": "dpsr_apex.api.policy",
    "export_minari": "dpsr_apex.api.datasets",
    "load_policy": "dpsr_apex.api.policy",
    "make_env": "dpsr_apex.api.environments",
    "make_vec": "dpsr_apex.api.environments",
    "resume": "dpsr_apex.api.runs",
    "train": "dpsr_apex.api.runs",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
