"""Bad data in real runs, sent with a valid key: the run finishes, names what it has quarantined, and can be resumed.

Each kind once ended a run for good: it killed the learner or all actors again and again, and was in every checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import lz4.block
import numpy as np
import pytest

from dpsr_apex.checksums import CHECKSUM_BYTES, add_checksum
from dpsr_apex.envs.atari import Atari
from dpsr_apex.envs.classic import ClassicControl
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.record.quarantine import read_quarantine, read_refusals
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.replay.transitions import Stack, Transitions
from dpsr_apex.roles.authentication import NOT_AUTHENTIC, SnapshotKey
from dpsr_apex.roles.n_step import Arrived, Start, as_transitions
from dpsr_apex.wire.keys import load_keys
from dpsr_apex.wire.messages import ACTOR, Acknowledged, Chunk
from tests.system.fault_tasks import DEADLY
from tests.system.members import Member
from tests.system.runs import PATIENCE, Run, assert_finished, last_checkpoint, restored, running, training

STEPS = 3_000
COPIES = 20  # of what is found later
AGAIN = 100  # transitions, after which more of them are sent
URGENT = 1e6  # the TD error of what is bad, so that it is sampled and re-entered before everything else
GOOD = 4  # transitions around each bad one
SETTINGS = (
    *("replay.capacity=400", "replay.recycle_period=25", "replay.recycle_candidates=8", "replay.recycle_choice=high"),
    "system.recycle_deadline=3",  # the vandal answers no request
    *("learner.steps_per_update=16", "learner.batch_size=8", "evaluation.episodes=1", "evaluation.max_steps=30"),
    *("run.checkpoint_period=1000", "system.lease=60"),  # the vandal sends no heartbeats
)

Spoil = Callable[[Transitions, int], None]
"""Changes one row of transitions."""


def played(env: StackedEnv, count: int, key: SnapshotKey) -> Transitions:
    """Return transitions that an honest actor of the run could have sent."""
    arrived = []
    for number in range(count):
        start = Start(env.stack, number % env.actions, env.snapshot())
        step = env.step(start.action)
        arrived.append(Arrived(start, step.reward, env.stack, step.terminal, 1))
        if step.terminal or step.truncated:
            env.reset()
    return key.sign(as_transitions(arrived))


def with_frame(change: Callable[[bytes], bytes]) -> Spoil:
    """Change the newest frame of the state that a transition led to."""

    def spoil(made: Transitions, row: int) -> None:
        stack: Stack = made.s_t[row]
        made.s_t[row] = (*stack[:-1], change(stack[-1]))

    return spoil


def with_value(column: str, value: float) -> Spoil:
    def spoil(made: Transitions, row: int) -> None:
        getattr(made, column)[row] = value

    return spoil


def not_finite(frame: bytes) -> bytes:
    numbers = np.frombuffer(frame[:-CHECKSUM_BYTES], np.float32).copy()
    numbers[1] = np.nan
    return add_checksum(numbers.tobytes())


def of_other_size(frame: bytes) -> bytes:
    return add_checksum(frame[: -CHECKSUM_BYTES - 4])


def of_fewer_pixels(_frame: bytes) -> bytes:
    """A frame that is intact, and of the wrong size only when it is decompressed."""
    return add_checksum(lz4.block.compress(bytes(100), store_size=False))


def undecodable(frame: bytes) -> bytes:
    """A frame that is intact, and cannot be decompressed."""
    return add_checksum(b"\xff" * (len(frame) - CHECKSUM_BYTES))


def flipped(frame: bytes) -> bytes:
    """A frame in which a bit has changed on the way."""
    return frame[:5] + bytes((frame[5] ^ 1,)) + frame[6:]


REFUSED: dict[str, dict[str, tuple[Spoil, str]]] = {  # on arrival: the change, and the kind by which it is named
    "cartpole": {
        "frame": (with_frame(flipped), "frames"),
        "action": (with_value("a_tm1", 2), "actions"),
        "vector size": (with_frame(of_other_size), "frames"),
        "NaN": (with_frame(not_finite), "observations"),
        "reward": (with_value("r_t", np.inf), "rewards"),
    },
    "breakout": {
        "frame": (with_frame(flipped), "frames"),
        "action": (with_value("a_tm1", 4), "actions"),
        "NaN": (with_value("r_t", np.nan), "rewards"),
        "reward": (with_value("r_t", 1e9), "rewards"),
    },
}
FOUND_LATER: dict[str, dict[str, tuple[Spoil, str]]] = {  # by the learner: the change, and a part of the reason
    "cartpole": {},
    "breakout": {
        "frame": (with_frame(undecodable), "damaged frame"),
        "vector size": (with_frame(of_fewer_pixels), "its content has another size"),
    },
}


def with_snapshot(snapshot: bytes) -> Spoil:
    def spoil(made: Transitions, row: int) -> None:
        made.snapshots[row] = snapshot

    return spoil


def cut_state(env: StackedEnv) -> bytes:
    """Return a snapshot with right checksums, for which the emulator raises."""
    assert isinstance(env.env, Atari)
    atari = env.env
    return add_checksum(b"\0" + atari._codec.compress(bytes(100) + b"\0"))


class Vandal:
    """A member with the key of an actor, which sends transitions that were spoiled."""

    def __init__(self, run: RunDirectory, env: StackedEnv) -> None:
        self.key = SnapshotKey(load_keys(run.key_of(ACTOR), ACTOR).snapshot_key)
        self.env = env
        about = {"environment": self.env.description, "layout": self.env.layout}
        self.member = Member(run, ACTOR, "vandal", **about)
        self._sequence = 0
        self.sent = 0

    def send(self, spoil: Spoil, copies: int = 1, sign: bool = True) -> Acknowledged:
        """Send spoiled transitions among good ones; return the acknowledgement."""
        made = played(self.env, GOOD + copies, self.key)
        for row in range(1, 1 + copies):
            spoil(made, row)
        signed = self.key.sign(made) if sign else made
        td_errors = np.array([URGENT if 1 <= row <= copies else 1.0 for row in range(len(made))])
        chunk = Chunk(self._sequence, signed, td_errors, np.zeros(0), np.zeros(0, np.int64), 0.0)
        self._sequence += 1
        self.sent += len(made)
        self.member.send(chunk)
        while True:
            settled = self.member.await_one(Acknowledged)
            if settled.sequence == self._sequence:
                return settled

    def send_until_named(self, run: Run, spoil: Spoil, reason: str, sign: bool = True) -> None:
        """Send some until one was quarantined for this reason, again whenever earlier ones may have been replaced."""
        send_at = 0

        def is_named() -> bool:
            nonlocal send_at
            if any(reason in row["reason"] for row in read_quarantine(run.directory.quarantine)):
                return True
            if run.stats().t >= send_at:
                send_at = self.send(spoil, COPIES, sign).t + AGAIN
            return False

        run.eventually(is_named)

    def close(self) -> None:
        self.member.leave()
        self.env.close()


def attack(run: Run, name: str, env: StackedEnv, snapshots: dict[str, tuple[bytes, str]]) -> None:
    """Send everything that is bad, and wait until what is found later is named in the quarantine."""
    with closing(Vandal(run.directory, env)) as vandal:
        for number, (spoil, _) in enumerate(REFUSED[name].values(), 1):
            assert vandal.send(spoil).refused == number
        for spoil, reason in FOUND_LATER[name].values():
            vandal.send_until_named(run, spoil, reason)
        for snapshot, reason in snapshots.values():
            vandal.send_until_named(run, with_snapshot(snapshot), reason)
        vandal.send_until_named(run, with_snapshot(b"made by somebody else"), NOT_AUTHENTIC, sign=False)


def assert_refusals_named(run: Run, name: str) -> None:
    refused = read_refusals(run.directory.quarantine)
    assert Counter(row["kind"] for row in refused) == Counter(kind for _, kind in REFUSED[name].values())
    assert {row["sender"] for row in refused} == {"vandal"}


def survives(path: Path, name: str, env: StackedEnv, snapshots: dict[str, tuple[bytes, str]], config: str) -> None:
    settings = (*SETTINGS, f"env.name={env.description.partition(',')[0]}")
    with training(path, *settings, steps=STEPS, actors=2, config=config) as run:
        run.await_all()
        attack(run, name, env, snapshots)
        assert run.wait(4 * PATIENCE) == 0  # most of its work is recycling
        row = assert_finished(run, STEPS)
    assert_refusals_named(run, name)
    assert row["traffic_unusable"] >= len(FOUND_LATER[name])
    assert row["quarantined"] == len(read_quarantine(run.directory.quarantine))
    assert row["traffic_refused"] == row["traffic_sent"] - row["traffic_inserted"] - row["traffic_lost"]
    restored(run.directory, last_checkpoint(run.directory))
    with running(path, "resume", path, "--steps", str(STEPS + 500)) as run:
        assert_finished(run, STEPS + 500)


@pytest.mark.slow
def test_a_cartpole_run_survives_seven_kinds_of_bad_data(tmp_path: Path) -> None:
    snapshots = {"raises": (b"damaged", "damaged snapshot"), "crashes": (DEADLY, "SIGSEGV")}
    env = StackedEnv(ClassicControl("CartPole-v1"), None, seed=0, name="tasks:Crashing")
    survives(tmp_path / "run", "cartpole", env, snapshots, "cartpole")


@pytest.mark.slow
def test_a_breakout_run_survives_seven_kinds_of_bad_data(tmp_path: Path) -> None:
    env = StackedEnv(Atari("Breakout"), None, seed=0, name="tasks:crashing_breakout")
    snapshots = {"raises": (cut_state(env), "the emulator rejected the snapshot"), "crashes": (DEADLY, "SIGSEGV")}
    survives(tmp_path / "run", "breakout", env, snapshots, "atari/breakout")
