"""Frozen processes: recognized by their silence while the head answers, ended, and restarted like crashed ones."""

from __future__ import annotations

import pytest

from dpsr_apex import timeouts
from dpsr_apex.protocol.frozen import FrozenWatch
from dpsr_apex.protocol.instructions import Instruction, Kill, Report, Start, Tell, Terminate
from dpsr_apex.protocol.supervision import Phase
from dpsr_apex.wire.messages import Gone
from tests.unit.protocol.supervised_run import IN_ORDER, LEASE, SupervisedRun

PATIENCE = LEASE + timeouts.FROZEN
ALL = ("learner", "actor-0", "actor-1", "evaluator")


class Listening(SupervisedRun):
    """A run whose head answers; its members send heartbeats, except those that are frozen or have not joined."""

    def __init__(self) -> None:
        super().__init__(actors=2)
        self.era = 1
        self.absent: set[str] = set()  # they have not joined
        self.frozen: dict[str, float] = {}  # since when
        self.begin()

    def listen(self, seconds: float) -> list[Instruction]:
        """Let the head answer for some time; return what was done."""
        before, end = len(self.log), self.now + seconds
        while self.now < end:
            self.advance(timeouts.SUPERVISOR_POLL, exits=False)
            silence = {name: self.now - self.frozen.get(name, self.now - 0.5) for name in ALL}
            heard = {name: ago for name, ago in silence.items() if ago < LEASE and name not in self.absent}
            self.answer(t=int(self.now * 100), era=self.era, heard=heard)
        return [instruction for _, instruction in self.log[before:]]

    def ended(self, since: float) -> list[Instruction]:
        """What was told to end since this time."""
        return [done for at, done in self.log if at > since and isinstance(done, Terminate | Kill)]


@pytest.mark.parametrize("name", ALL)
def test_a_process_that_is_silent_for_longer_than_its_lease_is_ended_and_restarted(name: str) -> None:
    run = Listening()
    assert run.listen(10) == []
    run.frozen[name] = run.now
    assert run.listen(PATIENCE - 1) == []
    report, terminate = run.listen(2)
    assert isinstance(report, Report)
    assert name in report.text
    assert f"system.lease = {LEASE:g}" in report.text
    assert terminate == Terminate(name)
    assert run.listen(timeouts.FROZEN_GRACE + 1) == [Kill(name)]
    run.advance(0.1)  # its exit is reported
    assert Tell(Gone(name)) in [instruction for _, instruction in run.log]
    assert run.listen(2) == [Start(name, name.split("-")[0])]
    del run.frozen[name]
    assert run.listen(2 * PATIENCE) == [], "it is a member again"


def test_one_that_ends_within_the_grace_is_not_killed() -> None:
    run = Listening()
    run.listen(10)
    run.frozen["actor-0"] = run.now
    assert Terminate("actor-0") in run.listen(PATIENCE + 1)
    run.exit("actor-0")
    del run.frozen["actor-0"]
    assert run.listen(60) == [Start("actor-0", "actor")]


def test_a_process_that_has_not_joined_yet_is_not_frozen() -> None:
    run = Listening()
    run.absent.add("learner")
    assert run.listen(3 * LEASE) == []
    run.absent.clear()
    run.listen(5)
    run.frozen["learner"] = run.now
    run.listen(PATIENCE + timeouts.FROZEN_GRACE + 2)
    run.advance(5.0)
    assert run.log[-1][1] == Start("learner", "learner")
    restarted_at = run.now
    run.listen(5 * LEASE)  # its successor takes long to start
    assert run.ended(restarted_at) == []


def freeze_and_restart(run: Listening, name: str) -> float:
    """Return the seconds of silence after which a process was told to end; it has joined again when this returns."""
    began = run.frozen[name] = run.now
    while not run.ended(began):
        run.listen(1.0)
    silence = run.now - began
    run.exit(name)
    del run.frozen[name]
    run.listen(5.0)
    return silence


def test_a_process_that_freezes_again_and_again_gets_more_time_and_is_never_given_up() -> None:
    run = Listening()
    run.listen(5.0)
    silences = [freeze_and_restart(run, "learner") for _ in range(8)]
    assert silences == pytest.approx([PATIENCE * 2 ** min(times, 5) for times in range(8)], abs=2.0)
    assert run.phase is Phase.RUNNING
    run.listen(timeouts.STABLE_AFTER + 1)
    assert freeze_and_restart(run, "learner") == pytest.approx(PATIENCE, abs=2.0)


def test_silence_counts_only_while_the_same_head_answers() -> None:
    run = Listening()
    run.listen(10)
    run.frozen["learner"] = began = run.now
    run.advance(5 * LEASE)  # the head does not answer
    run.listen(PATIENCE - 1)
    assert run.ended(began) == []
    run.era += 1
    run.listen(PATIENCE - 1)
    assert run.ended(began) == [], "members may take time to join a head that has restarted"
    assert Terminate("learner") in run.listen(2)


def test_nobody_is_frozen_in_a_run_that_is_ending() -> None:
    run = Listening()
    run.listen(10)
    for _ in range(1_000):
        run.advance(timeouts.SUPERVISOR_POLL)
        run.answer(era=1, ending=True)
    assert run.ended(0.0) == []


def test_a_replay_that_does_not_answer_is_restarted_after_a_time_that_saving_cannot_take() -> None:
    run = Listening()
    run.listen(10)
    run.advance(timeouts.HEAD_FROZEN - 1)
    assert run.ended(0.0) == []
    run.advance(2)
    assert run.ended(0.0) == [Terminate("replay")]
    run.advance(timeouts.FROZEN_GRACE)
    assert run.ended(0.0) == [Terminate("replay"), Kill("replay")]
    restarted_at = run.now
    run.advance(timeouts.HEAD_FROZEN - 1)
    assert [instruction for _, instruction in run.log].count(Start("replay", "replay")) == 2
    assert run.ended(restarted_at) == [], "it may be loading a large checkpoint"


def test_a_replay_is_not_restarted_because_its_supervisor_was_suspended() -> None:
    run = Listening()
    run.listen(10)
    run.tick(10 * timeouts.HEAD_FROZEN)
    assert run.ended(0.0) == []
    assert run.reports == [], "nor does it report a lack of progress that nobody could see"
    run.advance(timeouts.HEAD_FROZEN - 1)
    assert run.ended(0.0) == []
    run.advance(2)
    assert run.ended(0.0) == [Terminate("replay")], "it does not answer now either"


def test_a_process_that_has_left_cleanly_is_not_frozen() -> None:
    run = Listening()
    run.listen(10)
    run.exit("evaluator", IN_ORDER)
    run.frozen["evaluator"] = run.now
    run.listen(0.5)
    assert run.ended(0.0) == []


def test_a_process_that_has_left_the_run_but_is_still_running_is_not_frozen() -> None:
    run = Listening()
    run.listen(10)
    run.absent.add("evaluator")  # it waits for the last checkpoint
    run.listen(5 * PATIENCE)
    assert run.ended(0.0) == []


def test_an_answer_about_a_predecessor_does_not_concern_a_new_process() -> None:
    watch = FrozenWatch(lease=10.0, now=0.0)
    watch.head_answered(1, {"actor-0": 1.0}, 100.0)
    watch.ended("actor-0")
    watch.head_answered(1, {"actor-0": 4.0}, 103.0)  # sent before the head knew of the crash
    assert watch.frozen_for("actor-0", started_at=102.0, now=200.0) is None
    assert watch.frozen_for("actor-0", started_at=90.0, now=119.0) is None
    assert watch.frozen_for("actor-0", started_at=90.0, now=123.1) == pytest.approx(24.1)
