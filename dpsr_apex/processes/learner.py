"""The learner process: this thread updates the network; the thread `Talk` owns the sockets.

The two threads share only queues; the agent belongs to this thread.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from dataclasses import replace

import numpy as np

from dpsr_apex import timeouts
from dpsr_apex.agent.devices import choose_device
from dpsr_apex.agent.networks import is_small
from dpsr_apex.agent.protocol import Update
from dpsr_apex.config import Config, Device
from dpsr_apex.config_files import parse_config
from dpsr_apex.interrupt import Interrupt
from dpsr_apex.machine import usable_cores
from dpsr_apex.processes.discovery import HeadLocator
from dpsr_apex.processes.link import ask_terms_of
from dpsr_apex.processes.startup import allow_many_connections
from dpsr_apex.processes.talk import Ready, Talk, Updated, WorkItem
from dpsr_apex.processes.weights import pack_weights, unpack_weights
from dpsr_apex.roles.build import TRAINING, build_agent, build_env, seeds
from dpsr_apex.roles.learner import Learner
from dpsr_apex.state import State
from dpsr_apex.wire.messages import LearnerState, Learning, SaveRequest, Weights

PUBLISHING_SHARE = 0.05  # fraction of the time in which weights may be published instead of updated
DECOMPRESSION_THREADS = 4  # at most, beside a GPU
VERSION_BITS = 40  # low bits of a version, which count updates; the higher bits identify the learner process

log = logging.getLogger(__name__)


def run_learner(head: HeadLocator, bind: str | None, threads: int | None, device: Device | None) -> int:
    """Train for the run of this head until it ends; return the exit code.

    Weights are served on `bind`, by default on this machine's address towards the head. `threads` is used if the config
    does not set a number; a small network always uses one thread.
    """
    allow_many_connections()
    terms = ask_terms_of(head)
    config = parse_config(terms.config, f"the config of {head.address.endpoint}")
    if device is not None:
        config = replace(config, learner=replace(config.learner, device=device))
    with Interrupt() as interrupt:
        return LearnerProcess(config, head, terms.run_id, bind, threads).run(interrupt)


class LearnerProcess:
    """The thread that updates the network."""

    def __init__(self, config: Config, head: HeadLocator, run_id: str, bind: str | None, threads: int | None) -> None:
        agent_seed = seeds(config, TRAINING, 1)[0]
        env = build_env(config, 0, training=True)
        env.close()
        if config.run.threads is None and not is_small(env.observation_shape, env.shows_pixels):
            config = replace(config, run=replace(config.run, threads=threads))
        agent = build_agent(config, env, agent_seed)
        is_fast = choose_device(config.learner.device).type == "cuda"  # otherwise cores are needed for the updates
        decompression = min(DECOMPRESSION_THREADS, usable_cores()) if is_fast else 1
        self._learner = Learner(config.learner, config.run.total_steps, agent, env.codec, env.actions, decompression)
        self._talk = Talk(config, head, run_id, bind, self._learner, env)
        self._version_base = secrets.randbits(62 - VERSION_BITS) << VERSION_BITS
        self._t = 0
        self._has_started = False
        self._published: Weights | None = None
        self._publish_at = 0.0  # not earlier
        self._report = Report(time.monotonic())

    def run(self, interrupt: Interrupt) -> int:
        """Update until the run ends, or this process is asked to stop; return the exit code."""
        self._talk.start()
        try:
            while self._talk.goodbye is None and not interrupt.asked:
                self._do(self._talk.next_work())
                if time.monotonic() >= self._publish_at and self._talk.take_publish_request():
                    self._publish()
                if (report := self._report.when_due(self._learner.updates, time.monotonic())) is not None:
                    self._talk.report(report)
            if self._has_started and self._talk.goodbye is None:
                self._talk.report(self._state())
        finally:
            self._talk.stop()
        log.info("leaving: %s", self._talk.goodbye.reason if self._talk.goodbye else "asked to")
        return interrupt.exit_code

    @property
    def _version(self) -> int:
        return self._version_base + self._learner.updates

    def _do(self, work: WorkItem | None) -> None:
        match work:
            case Ready():
                self._update(work)
            case SaveRequest(era, number):
                self._talk.report(self._state()._replace(era=era, request=number))
            case LearnerState():
                self._start_from(work)

    def _update(self, ready: Ready) -> None:
        began = time.monotonic()
        self._t = ready.batch.t
        priorities, update, unusable = self._learner.learn(ready.batch, ready.prepared)
        for message in unusable:
            self._talk.report(message)
        if update is not None:
            self._talk.report(Updated(priorities, self._version))
            self._report.add(update, time.monotonic() - began)

    def _start_from(self, state: LearnerState) -> None:
        """Load the state that the replay has stored; a new run has none."""
        if state.arrays:
            self._learner.load(State(json.loads(state.facts), unpack_weights(state.arrays)))
            self._t = self._learner.target_synced_at
            log.info("continuing from update %d", self._learner.updates)
        self._has_started = True
        self._publish()

    def _state(self) -> LearnerState:
        facts, arrays = self._learner.save()
        return LearnerState(json.dumps(facts), pack_weights(arrays))

    def _publish(self) -> None:
        began = time.monotonic()
        agent, former = self._learner.agent, self._published
        target_version = self._version_base + self._learner.target_synced_at
        if former is not None and former.target_version == target_version:
            target = former.target
        else:
            target = pack_weights(agent.weights("target"))
        online = pack_weights(agent.weights("online"))
        self._published = Weights(self._version, target_version, self._t, self._learner.updates, online, target)
        self._talk.report(self._published)
        ended = time.monotonic()
        self._publish_at = ended + (ended - began) * (1 / PUBLISHING_SHARE - 1)


class Report:
    """Means over the updates since the last report, and the fraction of time spent waiting."""

    def __init__(self, now: float) -> None:
        self._begin(now)

    def add(self, update: Update, seconds: float) -> None:
        """Add one update and its duration."""
        self._recent += 1
        self._busy += seconds
        self._sums += (update.loss, update.mean_q, update.gradient_norm)

    def when_due(self, updates: int, now: float) -> Learning | None:
        """Return the report if it is due, about once a second; otherwise None."""
        elapsed = now - self._since
        if elapsed < timeouts.LEARNER_REPORT:
            return None
        loss, mean_q, gradient_norm = (self._sums / max(self._recent, 1)).tolist()
        waiting = min(max(1 - self._busy / elapsed, 0.0), 1.0)
        report = Learning(updates, self._recent, loss, mean_q, gradient_norm, waiting)
        self._begin(now)
        return report

    def _begin(self, now: float) -> None:
        self._since = now
        self._recent = 0
        self._busy = 0.0
        self._sums = np.zeros(3)
