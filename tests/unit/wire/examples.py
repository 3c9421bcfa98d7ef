"""One example of every message that may travel, and how to compare two of them."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from dpsr_apex.replay.records import Counters
from dpsr_apex.replay.transitions import COLUMNS, PackedTransitions, Stack, Transitions, unpacked
from dpsr_apex.wire import messages, statistics
from dpsr_apex.wire.messages import Message
from tests.unit.replay.naive import Row, rows_of, transitions_of


def walk(count: int, stack: int = 4) -> Transitions:
    """Consecutive transitions, whose stacks share all but one frame."""
    frames = [b"frame %d" % i for i in range(count + stack)]
    stacks: list[Stack] = [tuple(frames[i : i + stack]) for i in range(count + 1)]
    rows: list[Row] = [
        (
            *(stacks[i], i % 6, 0.5 * i, stacks[i + 1], i % 7 == 6, 1 + i % 3, b"snapshot %d" % i * (i % 2)),
            *(2**64 - 1 - i, 2**63 + i // 7, i % 7, 2**63 - i),
        )
        for i in range(count)
    ]
    return transitions_of(rows)


STATS = messages.Stats(
    era=2**62,
    t=1_301,
    total_steps=2_000,
    finished=False,
    ending=True,
    stored=500,
    capacity=500,
    replay=Counters(recycled=3, recycled_gain=-0.5, rounds_opened=2),
    traffic=statistics.Traffic(sent=1_400, received=1_350, inserted=1_301),
    queued=49,
    rate=statistics.RateStats(4, None, 0, 59),
    planned_actors=2,
    actors=[
        statistics.ActorStats("actor-0", 0, "", 0.05, 0.4, 0.25, 700, 3),
        statistics.ActorStats("ünïcode 🕹", 1, "far.example", 0.0, 1.0, 1e9, 701, 0),
    ],
    learner=messages.LearnerStats(0.5, messages.Learning(10, 0, 0.0, -1.5, 1e-300, 0.25)),
    heard={"learner": 0.5, "ünïcode 🕹": 1e9},
    waiting=[
        statistics.LearnerMissing(None),
        statistics.ActorsMissing(12.5),
        statistics.ActorsPaused(59, 50),
        statistics.LearnerPaused(3),
        statistics.UpdatesOwed(7),
        statistics.RoundsOpen(1),
    ],
    notes=[statistics.Note(1, "actor-0 joined"), statistics.Note(2, "")],
    row={
        "t": 1_300,
        "loss": 0.25,
        "return_mean": None,
        "age_deciles": [0.0, 1.5, 7],
        "age_histogram": {"edges": [0.0, 1.0, 2.0], "counts": [3, 4]},
        "none": [],
    },
)
NO_STATS = STATS._replace(actors=[], learner=None, heard={}, waiting=[], notes=[], row={})

EXAMPLES: list[Message] = [
    messages.Recycle(3, 2**63 - 1, np.array([5, 7]), walk(2)),
    messages.Recycled(
        *(3, 8, np.arange(3), np.array([1, 2, 1]), np.array([0.5, -3.0, 1e300])),
        *(walk(4), np.array([0.0, 1.5, 2.0, 1e300]), np.array([9]), ["its snapshot is damaged"]),
    ),
    messages.SampleRequest(),
    messages.Batch(0, 1_000, np.array([2**62, -1, 0]), np.array([1.0, 0.5, 0.25], dtype=np.float32), walk(3)),
    messages.Priorities(1, np.arange(1_000), np.linspace(0, 1, 1_000)),
    messages.Hello(),
    messages.Terms("20240101-pong", "seed = 1\n# ünïcode 🕹\n"),
    messages.Join("run", "learner", "learner-0", 2**62, "0.12.1", "", 0, 0, "tcp://127.0.0.1:5555"),
    messages.Welcome(1, -(2**63), -1, 8, 0, ""),
    messages.Refused("another run"),
    messages.Stranger(),
    messages.Heartbeat(0),
    messages.Alive(1, 3, "tcp://[::1]:5555"),
    messages.Leave(10**12),
    messages.Goodbye(True, ""),
    messages.Gone("actor-3"),
    messages.Chunk(5, walk(50), None, np.array([21.0, -21.0]), np.array([100, 2]), 8.25),
    messages.Acknowledged(6, 250, 40, 16, 2),
    messages.WeightsRequest(-1, -1),
    messages.Weights(7, 4, 1_000, 3, b"\x00online" * 100, None),
    messages.Learning(10, 0, 0.0, -1.5, 1e-300, 0.25),
    messages.SaveRequest(7, 3),
    messages.LearnerState("{}", b"", 7, 3),
    messages.StatsRequest(),
    STATS,
    messages.SetRate(0),
    messages.SetActors(8),
    messages.SurveyRequest(),
    messages.SurveyPart(
        *(3, 900, 1_000, 800, 400, 402, np.array([2**62, 5]), np.array([7, 9])),
        *(np.array([0.5, 1e-37], np.float32), np.array([-0.25, 0.0], np.float32), np.array([1, 0], np.uint8)),
        *(np.array([3, 0], np.int32), np.array([2, 0], np.int32), np.array([17, 0], np.int32)),
        *(np.array([-1.0, 0.0], np.float32), np.array([0, 1], np.uint8), np.array([2**32 - 1, 0], np.uint32)),
    ),
    messages.StoredRequest(np.array([5, 2**62])),
    messages.Stored(
        *(3, 900, np.array([2**62, 5]), np.array([7, 9]), np.array([0.5, 1e-50])),
        *(np.array([-0.25, 0.0], np.float32), np.array([1, 0], np.uint8), np.array([3, 0], np.int32)),
        *(np.array([2, 0], np.int32), np.array([41, -1]), walk(2)),
    ),
    messages.StartsRequest(),
    messages.Starts(b"\x00moments"),
    messages.Fragment(7, np.array([3, 0, 2**40]), 2**40, b"part of a frame"),
    messages.Unusable(2, np.array([2**40, 3]), "damaged frame: its checksum does not match"),
]

CHUNK_WITH_ERRORS = messages.Chunk(0, walk(3), np.array([1.0, 2.0, 3.0]), np.zeros(0), np.zeros(0, dtype=np.int64), 0.0)
EMPTY_CHUNK = messages.Chunk(0, walk(0), np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64), 0.0)
BARE_WEIGHTS = messages.Weights(7, 4, 1_000, 3, None, None)
ALL = [*EXAMPLES, CHUNK_WITH_ERRORS, EMPTY_CHUNK, BARE_WEIGHTS, NO_STATS]


def plain(value: Any) -> Any:
    """A value that can be compared: arrays with their types, transitions with which of their pieces are one."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if isinstance(value, Transitions | PackedTransitions):
        value = unpacked(value)
        columns = [plain(getattr(value, column.name)) for column in COLUMNS if not column.dtype.hasobject]
        return rows_of(value), columns, sharing(value)
    return type(value), value


def sharing(transitions: Transitions) -> list[int]:
    """For each piece of bytes the number of the first one that is the same object; all empty ones count as one."""
    numbers: dict[int, int] = {}
    pieces = chain(*transitions.s_tm1, *transitions.s_t, transitions.snapshots)
    return [numbers.setdefault(id(piece) if piece else 0, len(numbers)) for piece in pieces]


def assert_same(message: Message, other: Message) -> None:
    assert type(message) is type(other)
    for name, value, twin in zip(message._fields, message, other, strict=True):
        assert plain(value) == plain(twin), name
