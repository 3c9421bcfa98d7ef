"""A replay process that ends waits for the last updates, keeps what is found meanwhile, and records if any are owed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from dpsr_apex.record.progress import is_trained
from dpsr_apex.record.quarantine import read_quarantine
from dpsr_apex.wire.messages import Batch, Chunk, Goodbye, LearnerState, SampleRequest, Unusable
from tests.system.members import Head, Member, SyntheticLearner, new_run, serving_run
from tests.system.runs import last_checkpoint
from tests.unit.wire.examples import walk

STEPS = 100
NEWER = SyntheticLearner.STATE._replace(facts='{"updates": 5}')


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    with serving_run(new_run(tmp_path / "run", f"run.total_steps={STEPS}", "replay.method=double")) as head:
        yield head


def act(head: Head, stack: ExitStack, count: int) -> Member:
    """Let a new actor insert this number of transitions."""
    actor = stack.enter_context(closing(Member(head.run, "actor", "actor")))
    actor.say(Chunk(0, walk(count, stack=1), None, np.zeros(0), np.zeros(0, np.int64), 0.0))
    return actor


def learner_of(head: Head, stack: ExitStack) -> SyntheticLearner:
    """Return a new learner, which has sent a state before its first update."""
    learner = stack.enter_context(closing(SyntheticLearner(head.run)))
    learner.await_one(LearnerState)
    assert learner.say(learner.STATE) == []
    return learner


def terminate(head: Head) -> None:
    head.process.send_signal(signal.SIGTERM)


def test_the_state_after_the_last_update_is_awaited_when_a_finished_run_is_stopped(
    head: Head, stack: ExitStack
) -> None:
    learner = learner_of(head, stack)
    actor = act(head, stack, STEPS)
    last = learner.await_request(NEWER)
    terminate(head)
    learner.send(last)
    assert learner.await_one(Goodbye).finished
    learner.leave_ending_head()
    actor.leave_ending_head()
    assert head.wait() == 0
    assert last_checkpoint(head.run).parts["learner"].facts["updates"] == 5
    assert is_trained(head.run)


def test_a_run_without_its_last_updates_is_not_trained_and_can_be_continued(head: Head, stack: ExitStack) -> None:
    learner = learner_of(head, stack)
    actor = act(head, stack, STEPS)
    learner.await_request()
    learner.leave()
    terminate(head)
    assert not actor.await_one(Goodbye).finished
    actor.leave_ending_head()
    assert head.wait() == 0
    assert last_checkpoint(head.run).t == STEPS
    assert not is_trained(head.run)
    with serving_run(head.run) as again:
        successor = stack.enter_context(closing(SyntheticLearner(head.run)))
        successor.send(successor.await_request(NEWER))
        assert successor.await_one(Goodbye).finished
        successor.leave_ending_head()
        assert again.wait() == 0
    assert is_trained(head.run)


def test_what_is_found_to_be_unusable_while_a_run_stops_is_kept_as_well(head: Head, stack: ExitStack) -> None:
    learner = learner_of(head, stack)
    actor = act(head, stack, STEPS - 1)
    learner.send(SampleRequest())
    batch = learner.await_one(Batch)
    terminate(head)
    last = learner.await_request(NEWER)
    learner.send(Unusable(batch.era, batch.identities[:1], "it cannot be trained on"), last)
    learner.await_one(Goodbye)
    learner.leave_ending_head()
    actor.leave_ending_head()
    assert head.wait() == 0
    (row,) = read_quarantine(head.run.quarantine)
    assert row["identity"] == batch.identities[0]
    assert last_checkpoint(head.run).parts["replay"].facts["replay"]["counters"]["quarantined"] == 1
