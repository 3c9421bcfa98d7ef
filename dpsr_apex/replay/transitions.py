"""Transitions as they rest and travel: several at a time, column by column.

Observations and snapshots are opaque small bytes here; only `dpsr_apex.envs.compression` knows how to inflate them.
Consecutive transitions share their frames (s' of one is s of the next), so a stack is a tuple of references to
immutable bytes, and a frame goes by itself when the last transition that uses it is replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Stack = tuple[bytes, ...]
"""One observation at rest: its squeezed frames, the oldest first."""

_Whole = TypeVar("_Whole", bytes, Stack)


@dataclass(frozen=True, slots=True)
class Transitions:
    """Row i of every column is one transition (s_tm1, a_tm1, r_t, s_t)."""

    s_tm1: list[Stack]
    a_tm1: NDArray[np.int64]
    r_t: NDArray[np.float32]  # for an n-step transition: the discounted sum of its n rewards
    s_t: list[Stack]
    terminal: NDArray[np.bool_]  # a time limit is not a terminal: the value of s_t still counts
    n_steps: NDArray[np.uint8]  # environment steps between s_tm1 and s_t
    snapshots: list[bytes]  # the environment's state at s_tm1, squeezed; empty where it cannot be re-entered

    def __len__(self) -> int:
        return len(self.s_tm1)

    def rows(self, start: int, stop: int) -> Transitions:
        """Transitions `start` to `stop` (exclusive) of these."""
        part = slice(start, stop)
        return Transitions(
            self.s_tm1[part],
            self.a_tm1[part],
            self.r_t[part],
            self.s_t[part],
            self.terminal[part],
            self.n_steps[part],
            self.snapshots[part],
        )


@dataclass(frozen=True, slots=True)
class Store:
    """Transitions that rest in rows which are written and read in any order: columns as in `Transitions`.

    References are in arrays, too: numpy gathers them from all over the memory without waiting for each in turn.
    """

    s_tm1: NDArray[np.object_]
    a_tm1: NDArray[np.int64]
    r_t: NDArray[np.float32]
    s_t: NDArray[np.object_]
    terminal: NDArray[np.bool_]
    n_steps: NDArray[np.uint8]
    snapshots: NDArray[np.object_]


def blank(count: int) -> Store:
    """`count` rows with nothing in them."""
    return Store(
        s_tm1=_references([()] * count),
        a_tm1=np.zeros(count, dtype=np.int64),
        r_t=np.zeros(count, dtype=np.float32),
        s_t=_references([()] * count),
        terminal=np.zeros(count, dtype=np.bool_),
        n_steps=np.zeros(count, dtype=np.uint8),
        snapshots=_references([b""] * count),
    )


def write_rows(store: Store, slots: NDArray[np.int64], transitions: Transitions) -> None:
    """Put row i of `transitions` into row `slots[i]` of `store`; of a slot named twice the last one stays."""
    store.s_tm1[slots] = _references(transitions.s_tm1)
    store.a_tm1[slots] = transitions.a_tm1
    store.r_t[slots] = transitions.r_t
    store.s_t[slots] = _references(transitions.s_t)
    store.terminal[slots] = transitions.terminal
    store.n_steps[slots] = transitions.n_steps
    store.snapshots[slots] = _references(transitions.snapshots)


def read_rows(store: Store | Transitions, slots: NDArray[np.int64]) -> Transitions:
    """The transitions in these rows of `store`, in this order."""
    return Transitions(
        s_tm1=_pick(store.s_tm1, slots),
        a_tm1=store.a_tm1[slots],
        r_t=store.r_t[slots],
        s_t=_pick(store.s_t, slots),
        terminal=store.terminal[slots],
        n_steps=store.n_steps[slots],
        snapshots=_pick(store.snapshots, slots),
    )


def _pick(column: list[Any] | NDArray[np.object_], slots: NDArray[np.int64]) -> list[Any]:
    if isinstance(column, list):
        return [column[slot] for slot in slots.tolist()]
    picked: list[Any] = column[slots].tolist()
    return picked


def _references(things: Sequence[Any]) -> NDArray[np.object_]:
    """An array with one element for each thing, tuples included."""
    return np.fromiter(things, dtype=object, count=len(things))


def concatenate(parts: Sequence[Transitions]) -> Transitions:
    """The transitions of all parts, one after the other; there must be at least one part."""
    return Transitions(
        s_tm1=[stack for part in parts for stack in part.s_tm1],
        a_tm1=np.concatenate([part.a_tm1 for part in parts]),
        r_t=np.concatenate([part.r_t for part in parts]),
        s_t=[stack for part in parts for stack in part.s_t],
        terminal=np.concatenate([part.terminal for part in parts]),
        n_steps=np.concatenate([part.n_steps for part in parts]),
        snapshots=[snapshot for part in parts for snapshot in part.snapshots],
    )


def pack(transitions: Transitions) -> dict[str, NDArray[Any]]:
    """The transitions as plain arrays, every shared piece of bytes written once: the form in which they are saved."""
    stacks = [*transitions.s_tm1, *transitions.s_t]
    named = [*chain.from_iterable(stacks), *transitions.snapshots]
    mentions = np.fromiter(named, dtype=object, count=len(named))
    references, is_first = _number_by_first_mention(np.frombuffer(mentions, dtype=np.intp))  # their addresses
    pieces = mentions[is_first].tolist()
    return {
        "a_tm1": transitions.a_tm1,
        "r_t": transitions.r_t,
        "terminal": transitions.terminal,
        "n_steps": transitions.n_steps,
        "stack_sizes": np.append(_sizes(stacks, np.uint8), np.ones(len(transitions.snapshots), dtype=np.uint8)),
        "references": references,
        "piece_sizes": _sizes(pieces, np.uint32),
        "pieces": np.frombuffer(b"".join(pieces), dtype=np.uint8),
    }


def unpack(arrays: Mapping[str, NDArray[Any]], pieces: bytes | None = None) -> Transitions:
    """The transitions that `pack` was given, sharing pieces as they did; `pieces` is that array where it is bytes."""
    whole = arrays["pieces"].tobytes() if pieces is None else pieces
    # Every piece is bytes of its own: a part of the whole would keep all of it in memory.
    shared = np.fromiter(_cut(whole, arrays["piece_sizes"]), dtype=object, count=len(arrays["piece_sizes"]))
    named = shared[arrays["references"]].tolist()
    count = len(arrays["a_tm1"])
    stacks = _stacks(named[: len(named) - count], arrays["stack_sizes"][: 2 * count])
    return Transitions(
        s_tm1=stacks[:count],
        a_tm1=arrays["a_tm1"].astype(np.int64),
        r_t=arrays["r_t"].astype(np.float32),
        s_t=stacks[count:],
        terminal=arrays["terminal"].astype(np.bool_),
        n_steps=arrays["n_steps"].astype(np.uint8),
        snapshots=named[len(named) - count :],
    )


def _number_by_first_mention(names: NDArray[np.intp]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """For each mention the number of its name, counted from 0 as they first appear; and which mentions are the first.

    As `np.unique` could tell, but without sorting twice.
    """
    order = names.argsort()
    ranked = names[order]
    begins = np.ones(names.size, dtype=np.bool_)  # in the order of the names: the next one
    np.not_equal(ranked[1:], ranked[:-1], out=begins[1:])
    first = np.minimum.reduceat(order, begins.nonzero()[0]) if names.size else order
    leader = np.empty_like(order)  # of each mention: the first one of the same name
    leader[order] = first[np.add.accumulate(begins, dtype=np.intp) - 1]
    is_first = np.zeros(names.size, dtype=np.bool_)
    is_first[first] = True
    numbers = np.add.accumulate(is_first, dtype=np.uint32) - np.uint32(1)
    return numbers[leader], is_first


def _sizes(things: Collection[Sized], dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    return np.fromiter(map(len, things), dtype=dtype, count=len(things))


def _stacks(named: list[bytes], sizes: NDArray[Any]) -> list[Stack]:
    """Consecutive stacks of these sizes."""
    depth = int(sizes[0]) if sizes.size else 0
    if depth and (sizes == depth).all():  # as good as always, and several times faster
        return list(zip(*[iter(named)] * depth, strict=True))
    return _cut(tuple(named), sizes)


def _cut(whole: _Whole, sizes: NDArray[Any]) -> list[_Whole]:
    """Consecutive parts of these sizes."""
    ends: list[int] = np.add.accumulate(sizes, dtype=np.int64).tolist()
    return [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]
