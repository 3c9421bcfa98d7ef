"""The learner's process: one thread updates the network, another one talks.

The talking thread asks for batches ahead and makes them ready while an update runs, sends priorities back, and serves
weights to those who ask. Between the two are queues only; the sockets belong to the talking thread, and the agent to
the updating one.
"""

from __future__ import annotations

import json
import logging
import queue
import secrets
import threading
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dpsr_apex.agent.dqn import Staged, Update
from dpsr_apex.agent.network import is_small
from dpsr_apex.config import Config, Device
from dpsr_apex.config_files import parse_config
from dpsr_apex.processes.discovery import Address, Whereabouts
from dpsr_apex.processes.limits import allow_many_connections
from dpsr_apex.processes.link import Link, ask_terms_of, request_to_join
from dpsr_apex.processes.weights import inflate_weights, squeeze_weights
from dpsr_apex.roles.build import TRAINING, build_agent, build_env, seeds
from dpsr_apex.roles.learner import Learner
from dpsr_apex.run.interrupt import Interrupt
from dpsr_apex.state import State
from dpsr_apex.wire.addresses import is_loopback, own_host, with_host
from dpsr_apex.wire.codec import BadMessage, decode, encode
from dpsr_apex.wire.keys import ServerKeys
from dpsr_apex.wire.messages import (
    Batch,
    Goodbye,
    LearnerState,
    Learning,
    Message,
    Priorities,
    SaveRequest,
    Weights,
    WeightsRequest,
    Welcome,
)
from dpsr_apex.wire.sockets import Server, make_keypair, wait
from dpsr_apex.wire.waker import Waker

IDLE_SECONDS = 0.1
REPORT_SECONDS = 1.0
VERSION_BITS = 40  # of a version that count updates; those above tell one learner's process from another's

log = logging.getLogger(__name__)


class Ready(NamedTuple):
    """A batch as it came, and as the network takes it."""

    batch: Batch
    experience: Staged


class Asker(NamedTuple):
    """Who waits for weights, and the version that was published when the question came."""

    request: WeightsRequest
    published: int | None


Work = Ready | SaveRequest | LearnerState


def run_learner(head: Whereabouts, bind: str | None, threads: int | None, device: Device | None) -> int:
    """Learn for the run of this head until it ends; weights are served at `bind`, or on the way to the head.

    `threads` are there for it where the config names no number; small networks take one all the same.
    """
    allow_many_connections()
    terms = ask_terms_of(head)
    config = parse_config(terms.config, f"the config of {head.address.endpoint}")
    if device is not None:
        config = replace(config, learner=replace(config.learner, device=device))
    with Interrupt() as interrupt:
        return LearnerProcess(config, head, terms.run_id, bind, threads).run(interrupt)


class LearnerProcess:
    """The updating thread."""

    def __init__(self, config: Config, head: Whereabouts, run_id: str, bind: str | None, threads: int | None) -> None:
        agent_seed = seeds(config, TRAINING, 1)[0]
        env = build_env(config, 0, training=True)
        env.close()
        if config.run.threads is None and not is_small(env.observation_shape, env.shows_pixels):
            config = replace(config, run=replace(config.run, threads=threads))
        self._learner = Learner(config.learner, build_agent(config, env, agent_seed), env.codec)
        self._talk = Talk(config, head, run_id, bind, self._learner, env.description)
        self._version_base = secrets.randbits(62 - VERSION_BITS) << VERSION_BITS
        self._t = 0
        self._began = False
        self._report = Report()

    def run(self, interrupt: Interrupt) -> int:
        """Update until the run ends, or this process is told to; the exit code."""
        self._talk.start()
        try:
            while self._talk.goodbye is None and not interrupt.asked:
                self._do(self._talk.next_work())
                if self._began and self._talk.wants_weights:
                    self._publish()
                if (report := self._report.when_due(self._learner.updates)) is not None:
                    self._talk.send(report)
            if self._began and self._talk.goodbye is None:
                self._talk.send(self._state())
        finally:
            self._talk.stop()
        log.info("leaving: %s", self._talk.goodbye.reason if self._talk.goodbye else "asked to")
        return interrupt.exit_code

    @property
    def _version(self) -> int:
        return self._version_base + self._learner.updates

    def _do(self, work: Work | None) -> None:
        match work:
            case Ready():
                self._update(work)
            case SaveRequest() if self._began:  # else it would be the state of a learner that knows nothing
                self._talk.send(self._state())
            case LearnerState():
                self._begin(work)

    def _update(self, ready: Ready) -> None:
        began = time.monotonic()
        self._t = ready.batch.t
        priorities, update = self._learner.learn(ready.batch, ready.experience)
        self._talk.send(priorities)
        self._talk.newest = self._version
        self._report.add(update, time.monotonic() - began)

    def _begin(self, state: LearnerState) -> None:
        """Take over the state that the replay keeps; a process that has begun already knows better."""
        if self._began:
            return
        if state.arrays:
            self._learner.load(State(json.loads(state.facts), inflate_weights(state.arrays)))
            self._t = self._learner.target_synced_at
            log.info("going on from update %d", self._learner.updates)
        self._began = True
        self._publish()

    def _state(self) -> LearnerState:
        facts, arrays = self._learner.save()
        return LearnerState(json.dumps(facts), squeeze_weights(arrays))

    def _publish(self) -> None:
        agent = self._learner.agent
        target_version = self._version_base + self._learner.target_synced_at
        published = self._talk.published
        if published is not None and published.target_version == target_version:
            target = published.target
        else:
            target = squeeze_weights(agent.weights("target"))
        online = squeeze_weights(agent.weights("online"))
        self._talk.publish(Weights(self._version, target_version, self._t, online, target))


class Report:
    """Means over the updates since the last report, and the share of time that was spent waiting."""

    def __init__(self) -> None:
        self._begin()

    def add(self, update: Update, seconds: float) -> None:
        """Count one update that took so long."""
        self._recent += 1
        self._busy += seconds
        self._sums += (update.loss, update.mean_q, update.gradient_norm)

    def when_due(self, updates: int) -> Learning | None:
        """The report, about once a second; None otherwise."""
        elapsed = time.monotonic() - self._since
        if elapsed < REPORT_SECONDS:
            return None
        loss, mean_q, gradient_norm = (self._sums / max(self._recent, 1)).tolist()
        waiting = min(max(1 - self._busy / elapsed, 0.0), 1.0)
        report = Learning(updates, self._recent, loss, mean_q, gradient_norm, waiting)
        self._begin()
        return report

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._recent = 0
        self._busy = 0.0
        self._sums = np.zeros(3)


class Talk(threading.Thread):
    """The talking thread: the link to the replay, and the server of weights."""

    def __init__(
        self, config: Config, head: Whereabouts, run_id: str, bind: str | None, learner: Learner, environment: str
    ) -> None:
        super().__init__(name="talk", daemon=True)
        self.published: Weights | None = None
        self.newest = 0  # version of the agent's weights, published or not
        self.goodbye: Goodbye | None = None
        self._config = config
        self._learner = learner
        self._work: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._to_send: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._waker = Waker()
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._asked = 0  # batches that were asked for and have not come
        self._came = time.monotonic()  # when the last one came, or was asked for; at first: when a Welcome came
        self._has_begun = False  # the state to go on from has come
        self._askers: dict[bytes, Asker] = {}
        self._server, public = _weights_server(bind, head.address)
        endpoint = _seen_by_others(self._server.endpoint, head.address.endpoint)
        request = request_to_join(run_id, "learner", "learner", environment)
        self._link = Link(
            head,
            request._replace(weights_endpoint=endpoint, weights_key=public),
            config.system.lease,
        )

    def next_work(self) -> Work | None:
        """What to do next; None after a moment without anything. What ended the talking thread is raised here."""
        try:
            work = self._work.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            work = None
        if self._error is not None:
            raise self._error
        if work is not None:
            self._waker.wake()  # one batch less is ready: another one can be asked for
        return work

    def send(self, message: Message) -> None:
        """Send to the replay, soon."""
        self._to_send.put(message)
        self._waker.wake()

    @property
    def wants_weights(self) -> bool:
        """Whether somebody waits for newer weights than those published."""
        return bool(self._askers) and self.published is not None and self.published.version != self.newest

    def publish(self, weights: Weights) -> None:
        """Serve these from now on."""
        self.published = weights
        self.newest = weights.version
        self._waker.wake()

    def stop(self) -> None:
        """Send what is left, leave the run, and end the thread."""
        self._stopped.set()
        self._waker.wake()
        self.join(timeout=5.0)

    def run(self) -> None:
        """The thread."""
        try:
            while not self._stopped.is_set() and self.goodbye is None:
                self._talk()
            self._send_all()
            self._link.leave()
        except BaseException as error:  # it is raised again in the other thread
            self._error = error
        finally:
            self._server.close()

    def _talk(self) -> None:
        wait([self._link.client, self._server, self._waker], IDLE_SECONDS)
        self._waker.clear()
        self._send_all()
        for message in self._link.receive():
            self._handle(message)
        self._link.keep()
        self.goodbye = self._link.goodbye
        self._ask_for_batches()
        self._serve_weights()

    def _handle(self, message: Message) -> None:
        match message:
            case Welcome():
                log.info("joined at t = %d", message.t)
                self._asked = 0
                self._came = time.monotonic()
            case Batch():
                self._asked = max(self._asked - 1, 0)
                self._came = time.monotonic()
                self._work.put(Ready(message, self._learner.prepare(message)))
            case SaveRequest() | LearnerState():
                self._has_begun |= isinstance(message, LearnerState)
                self._work.put(message)
            case _:
                log.warning("the replay sent a %s, which is not for a learner", type(message).__name__)

    def _ask_for_batches(self) -> None:
        if self._link.welcome is None:
            return
        now = time.monotonic()
        overdue = now - self._came > self._config.system.lease / 2
        if not self._has_begun:  # a state that was lost on its way comes with the next Welcome
            if overdue:
                self._link.join_again()
            return
        if self._asked and overdue:
            self._asked = 0  # the question or the answer may have been lost; the replay passes over what is too much
        while self._asked + self._work.qsize() < self._config.system.prefetch:
            if not self._link.send(self._learner.want()):
                break
            self._asked += 1
            self._came = now

    def _send_all(self) -> None:
        """Send what waits; priorities that came together travel together."""
        waiting: list[Message] = []
        while not self._to_send.empty():
            message = self._to_send.get()
            last = waiting[-1] if waiting else None
            if isinstance(message, Priorities) and isinstance(last, Priorities) and last.era == message.era:
                waiting[-1] = _joined(last, message)
            else:
                waiting.append(message)
        for message in waiting:
            if not self._link.send(message) and isinstance(message, LearnerState):
                self._to_send.put(message)  # a checkpoint waits for it

    def _serve_weights(self) -> None:
        while (received := self._server.receive()) is not None:
            try:
                message = decode(received.frames)
            except BadMessage as error:
                log.warning("a request for weights from %s cannot be read: %s", received.sender.hex(), error)
                continue
            if isinstance(message, WeightsRequest):
                version = self.published.version if self.published else None
                self._askers[received.sender] = Asker(message, version)
        published = self.published
        if published is None:
            return
        for sender, asker in list(self._askers.items()):
            if published.version == self.newest or published.version != asker.published:
                self._server.send(sender, encode(_what_is_newer(published, asker.request)))
                del self._askers[sender]


def _weights_server(bind: str | None, address: Address) -> tuple[Server, bytes]:
    """Where weights are served, and its public key; it lets in whom the replay lets in.

    Where no place is named, a free port is taken, at the address by which this machine reaches the replay.
    """
    bind = bind or f"tcp://{own_host(address.endpoint)}:0"
    if address.keys is None:
        return Server(bind), b""
    public, secret = make_keypair()
    return Server(bind, ServerKeys(public, secret, address.keys.public)), public


def _seen_by_others(endpoint: str, replay: str) -> str:
    """Where actors find this learner. One on the replay's machine that listens everywhere is found where that is."""
    if is_loopback(endpoint) and not is_loopback(replay):
        log.warning("weights are served to this machine alone, at %s: for others, say --bind 0.0.0.0:PORT", endpoint)
    host = own_host(replay)
    return endpoint if is_loopback(f"tcp://{host}:0") else with_host(endpoint, host)


def _what_is_newer(published: Weights, request: WeightsRequest) -> Weights:
    return published._replace(
        online=published.online if published.version != request.version else None,
        target=published.target if published.target_version != request.target_version else None,
    )


def _joined(one: Priorities, other: Priorities) -> Priorities:
    return Priorities(
        one.era,
        np.concatenate((one.identities, other.identities)),
        np.concatenate((one.td_errors, other.td_errors)),
    )
