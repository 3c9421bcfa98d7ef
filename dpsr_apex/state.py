"""The state that a component saves, and loads to continue bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray


class State(NamedTuple):
    """The state of one component.

    `facts` must survive a round trip through JSON: string keys, integers of any size, no tuples (they become lists).
    `arrays` may have any shape, also zero-length, of booleans, integers, float16/32/64 or complex64; loaded arrays are
    writable.
    """

    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def join(parts: Mapping[str, State]) -> State:
    """Join several states into one; `split` reverses this."""
    facts = {name: state.facts for name, state in parts.items()}
    arrays = {f"{name}/{key}": array for name, state in parts.items() for key, array in state.arrays.items()}
    return State(facts, arrays)


def split(state: State) -> dict[str, State]:
    """Return the states that were joined, by name."""
    return {
        name: State(
            facts,
            {key.removeprefix(f"{name}/"): array for key, array in state.arrays.items() if key.startswith(f"{name}/")},
        )
        for name, facts in state.facts.items()
    }
