"""What it costs to save the state of the learner, in both processes, compared with the updates between two saves."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measure import Comparison, Elapsed, Report, interleave, spread, timed
from benchmarks.replay_head import Recorded
from dpsr_apex.config import Config
from dpsr_apex.processes.weights import opened_state, pack_weights
from dpsr_apex.protocol.conversions import batch_message
from dpsr_apex.record.journal.disk import RealDisk
from dpsr_apex.record.journal.learner import write_learner
from dpsr_apex.replay.replay import Replay
from dpsr_apex.roles.build import build_agent, build_env
from dpsr_apex.roles.learner import Learner
from dpsr_apex.wire.codec import decode, encode
from dpsr_apex.wire.messages import LearnerState

BATCH = 32
UPDATES, REPETITIONS = 5, 5


def price_states(report: Report, config: Config, recorded: Recorded) -> None:
    """Add the CPU time of one saved state, as a share of that of the updates between two, to the report."""
    env = build_env(config, seed=0, training=True)
    learner = Learner(config.learner, config.run.total_steps, build_agent(config, env, 0), env.codec, env.actions)
    replay = Replay(config.replay, config.run.total_steps, np.random.default_rng(0))
    for chunk in recorded.chunks:
        replay.insert(chunk.transitions, chunk.td_errors)
    with tempfile.TemporaryDirectory() as place:
        times = interleave(
            {"update": lambda: update(learner, replay), "save": lambda: save(learner, Path(place))},
            REPETITIONS,
        )
        size = sum(path.stat().st_size for path in Path(place).iterdir())
    period = config.run.learner_state_period
    shares = [100 * one.cpu / (period * other.cpu) for one, other in zip(times["save"], times["update"], strict=True)]
    report.record("learner state", times, 1e3, "ms")
    report.figures["learner state"]["bytes"] = size
    report.compare(
        Comparison(
            f"save the learner's state every {period:,} updates, in both processes",
            f"{period:,} updates, batch {BATCH}",
            "ms",
            spread([one.cpu * 1e3 for one in times["save"]]),
            spread([one.cpu * 1e3 * period for one in times["update"]]),
            spread([100 / share for share in shares]),
            None,
        )
    )
    report.table("Saving the learner's state", ("", "% of the updates"), [["CPU time", spread(shares).show(2)]])


def update(learner: Learner, replay: Replay) -> Elapsed:
    """Return the time of one update, mean over some."""
    with timed() as timer:
        for _ in range(UPDATES):
            batch = batch_message(replay.sample(BATCH), replay.t, 1)
            learner.learn(batch, learner.prepare(batch))
    return timer.elapsed.per(UPDATES)


def save(learner: Learner, folder: Path) -> Elapsed:
    """Return the time of one state: packed and encoded by the learner, decoded, checked and written by the replay."""
    with timed() as timer:
        facts, arrays = learner.save()
        frames = [bytes(frame) for frame in encode(LearnerState(json.dumps(facts), pack_weights(arrays)))]
        state = decode(frames)
        assert isinstance(state, LearnerState)
        opened_state(state)
        write_learner(RealDisk(), folder, state)
    return timer.elapsed
