"""How much memory a run will need, estimated from a few random steps of its environment.

The estimate is for a full replay, and for the moment at which a checkpoint of it is written, which needs as much again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from dpsr_apex.config import Config, ReplayConfig
from dpsr_apex.replay.siblings import FANOUT
from dpsr_apex.replay.store import Store
from dpsr_apex.replay.trees import LEAF_ROWS, NODE_ROWS

MIB: Final = 2**20


class Processes(NamedTuple):
    """Resident memory of each process of a run, in MiB, without what is stored in the replay."""

    single: int  # the only process of a single-process run
    supervisor: int
    template: int  # from which processes that act or learn are forked
    replay: int
    learner: int
    evaluator: int
    actor: int


# Measured with batches of 32, and the CPU build of torch.
WITH_IMAGES: Final = Processes(540, 185, 290, 180, 520, 310, 380)  # Breakout
WITH_VECTORS: Final = Processes(455, 115, 290, 180, 300, 205, 205)  # CartPole
IMAGE: Final = 10_000  # numbers in an observation, from which on it counts as images
SHARED: Final = 140 * MIB  # part of each of these processes that is in memory once

REPLACED: Final = 1.05  # frames per transition, where neighbours that share frames are replaced by priority
UNUSED: Final = 1.02  # memory of the allocator per byte of objects
ALIGNMENT: Final = 16  # bytes to which allocations are rounded up
LARGE, HEADER = 512, 8  # bytes: larger objects are allocated with this header


class Sizes(NamedTuple):
    """What one environment's transitions contain: means over some steps, in bytes of memory."""

    frame: float  # compressed
    snapshot: float  # 0 if states are not saved
    depth: int  # frames per observation
    has_images: bool = False


class Estimate(NamedTuple):
    """The memory of a run, in bytes."""

    transition: float  # with its slot
    replay: float  # what is stored
    replay_process: float  # all of its memory; the single process, if there is only one
    learner: float  # 0 in a single process
    actor: float  # each one; 0 in a single process
    total: float  # at the end of the run, while a checkpoint is written


def measure_sizes(shape: Sequence[int], frames: Sequence[bytes], snapshots: Sequence[bytes]) -> Sizes:
    """Return the sizes of an environment with observations of this shape, of which these frames were taken."""
    return Sizes(_mean(frames), _mean(snapshots), shape[0], math.prod(shape) >= IMAGE)


def estimate_memory(config: Config, sizes: Sizes) -> Estimate:
    """Return the memory that a run needs."""
    stored = min(config.replay.capacity, config.run.total_steps)
    slot, objects = slot_bytes(), _object_bytes(config, sizes)
    replay = config.replay.capacity * slot + stored * objects
    size = WITH_IMAGES if sizes.has_images else WITH_VECTORS
    if config.system.actors == 0:
        process = size.single * MIB + replay
        return Estimate(slot + objects, replay, process, 0.0, 0.0, process + replay)
    process, learner, actor = size.replay * MIB + replay, float(size.learner * MIB), float(size.actor * MIB)
    others = (size.supervisor + size.template + size.evaluator) * MIB
    actors = config.system.actors or 1
    total = process + learner + others - 4 * SHARED + actors * (actor - SHARED)
    return Estimate(slot + objects, replay, process, learner, actor, total + replay)


def describe_memory(config: Config, needed: Estimate, available: int | None) -> str:
    """Return one line on the memory that a run needs and what is available."""
    stored = min(config.replay.capacity, config.run.total_steps)
    slots = f" in {config.replay.capacity:,} slots" if stored < config.replay.capacity else ""
    transitions = f"{stored:,} transitions of {needed.transition:,.0f} bytes{slots}"
    replay = (
        f"{show_bytes(needed.replay_process)} with {transitions}, and {show_bytes(needed.replay)} more while saving"
    )
    others = f"; learner {show_bytes(needed.learner)}; each actor {show_bytes(needed.actor)}" if needed.learner else ""
    left = "" if available is None else f"; {show_bytes(available)} available"
    return f"Memory: about {show_bytes(needed.total)} in the end ({'replay ' if others else ''}{replay}{others}){left}"


def show_bytes(count: float) -> str:
    """Return bytes in a unit that fits."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def slot_bytes(frame_bytes: int = 0) -> float:
    """Return the bytes of a slot in the arrays of a replay, filled or not; `frame_bytes` as for `Store`."""
    return Store(1, frame_bytes).slot_bytes + 8 * (LEAF_ROWS + NODE_ROWS / (FANOUT - 1))


def _object_bytes(config: Config, sizes: Sizes) -> float:
    """Return the bytes of the frames, the snapshot and the references of a stored transition."""
    replay = config.replay
    frames = REPLACED if replay.parts.replaces_by_priority else 1.0
    frames += sizes.depth * _recycled_share(replay)  # these share no frames with others
    stacks = 1 if config.system.actors == 0 else 2  # transitions that were sent share no stacks
    stack = _allocated(sys.getsizeof((None,) * sizes.depth))
    return UNUSED * (frames * sizes.frame + sizes.snapshot + stacks * stack)


def _recycled_share(replay: ReplayConfig) -> float:
    """Return the share of recycled transitions among those that are stored."""
    if not replay.recycles:
        return 0.0
    if replay.recycle_share > 0:
        return replay.recycle_share
    return replay.recycle_candidates / (replay.recycle_period + replay.recycle_candidates)


def _allocated(size: int) -> int:
    """Return the memory that is allocated for an object of this size."""
    size += HEADER if size > LARGE else 0
    return -(-size // ALIGNMENT) * ALIGNMENT


def _mean(objects: Sequence[bytes]) -> float:
    """Return the memory of one of these objects, 0 if there are none or all are empty."""
    return sum(_allocated(sys.getsizeof(data)) for data in objects if data) / max(len(objects), 1)
