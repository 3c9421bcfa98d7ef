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
    from dpsr_apex.errors import UserError

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "ReplayBuffer",
    "UserError",
]

_HOMES: Final = {
    "Batch": "dpsr_apex.api.batch",
    "ReplayBuffer": "dpsr_apex.api.buffer",
    "UserError": "dpsr_apex.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
