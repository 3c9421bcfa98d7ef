"""The evaluator process: plays episodes with the newest weights, periodically and at the end of a run.

It writes every score, and the best and the last weights, to the run directory, so it needs access to it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from dpsr_apex import timeouts
from dpsr_apex.config_files import load_config
from dpsr_apex.files import read_rows
from dpsr_apex.interrupt import Interrupt
from dpsr_apex.processes.discovery import HeadLocator
from dpsr_apex.processes.link import ReplayLink, request_to_join
from dpsr_apex.processes.weights import LearnerLink
from dpsr_apex.protocol.client_instructions import (
    ConnectToLearner,
    LinkInstruction,
    LoadWeights,
    RequestWeights,
    WeightsInstruction,
)
from dpsr_apex.protocol.clients import EvaluatorClient
from dpsr_apex.record.checkpoint import newest_checkpoint
from dpsr_apex.record.evaluations import keep_evaluation, keep_random_play, wants_random_play
from dpsr_apex.record.metrics import add_last_evaluation
from dpsr_apex.record.progress import is_trained, passed
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.roles.build import build_agent, build_env, load_networks, one_thread
from dpsr_apex.roles.evaluator import EvaluationStopped, evaluate, play_randomly
from dpsr_apex.wire.messages import Welcome
from dpsr_apex.wire.sockets import wait

log = logging.getLogger(__name__)


def run_evaluator(run: RunDirectory, head: HeadLocator) -> int:
    """Evaluate the run in its directory until it ends; return the exit code."""
    with Interrupt() as interrupt:
        EvaluatorProcess(run, head, interrupt).run()
    return interrupt.exit_code


class EvaluatorProcess:
    """One evaluator, and its sockets to the replay and to the learner."""

    def __init__(self, run: RunDirectory, head: HeadLocator, interrupt: Interrupt) -> None:
        self._config = one_thread(load_config(run.config))
        self._run = run
        self._interrupt = interrupt
        env = build_env(self._config, 0, training=False)
        env.close()
        self._agent = build_agent(self._config, env, 0)
        request = request_to_join(run.identity.read_text(encoding="ascii"), "evaluator", "evaluator", "")
        self._client = EvaluatorClient(request, self._config.system, time.monotonic())
        self._replay = ReplayLink(head, self._client)
        self._learner = LearnerLink(self._agent, head, self._client.weights)
        self._listened_at = 0.0
        self._read_evaluations()

    def run(self) -> None:
        """Evaluate whenever an evaluation is due, and when the run is finished."""
        if wants_random_play(self._config, self._run):
            self._play_randomly()
        while not self._is_over() and not self._is_trained:
            wait(
                [self._replay.socket, *([self._learner.socket] if self._learner.socket else [])],
                timeouts.EVALUATOR_POLL,
            )
            self._listen()
            t, last = self._client.membership.t, self._config.run.total_steps  # at `last`, final weights
            if t < last and passed(self._config.evaluation.period, self._evaluated_at, t):
                self._evaluate_newest()
        goodbye = self._client.membership.goodbye
        self._replay.leave()
        self._learner.close()
        if (goodbye and goodbye.finished) or self._is_trained:
            self._evaluate_last()

    @property
    def _is_trained(self) -> bool:
        """Whether the last checkpoint exists: the replay may have ended, and its Goodbye may have been lost."""
        return is_trained(self._run)

    def _read_evaluations(self) -> None:
        """Read the evaluations again: a replay that went back to a checkpoint has dropped the later ones."""
        rows = read_rows(self._run.evaluations)
        self._evaluated_at = rows[-1]["t"] if rows else 0

    def _is_over(self) -> bool:
        """Return whether to stop; also process messages, because this is called at every step of an evaluation."""
        if time.monotonic() - self._listened_at > timeouts.EVALUATOR_POLL:
            self._listen()
        return self._client.membership.goodbye is not None or self._interrupt.asked

    def _listen(self) -> None:
        self._listened_at = time.monotonic()
        for message in self._replay.receive():
            self._execute(self._client.handle(message, time.monotonic()))
            if isinstance(message, Welcome):
                log.info("joined at t = %d", message.t)
                self._read_evaluations()
        for answer in self._learner.receive():
            self._execute(self._client.weights.handle(answer))
        self._execute(self._client.tick(time.monotonic()))

    def _execute(self, instructions: Iterable[LinkInstruction | WeightsInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case ConnectToLearner() | RequestWeights() | LoadWeights():
                    self._learner.execute(instruction)
                case _:
                    self._execute(self._replay.execute(instruction))

    def _play_randomly(self) -> None:
        try:
            keep_random_play(self._run, play_randomly(self._config, self._agent, self._is_over).row())
        except EvaluationStopped:
            return
        except OSError as error:
            log.error("the score of a random policy could not be written: %s", error)

    def _evaluate_newest(self) -> None:
        """Request the current weights, and evaluate them when they arrive."""
        weights = self._client.weights
        before = weights.answers
        weights.want()
        while weights.answers == before:
            if self._is_over():
                return
            self._listen()
            wait([self._learner.socket or self._replay.socket], timeouts.EVALUATOR_POLL)
        membership = self._client.membership
        t = membership.t
        self._evaluate(t, lambda: self._is_over() or membership.t < t)  # smaller if the replay returned to a checkpoint

    def _evaluate_last(self) -> None:
        """Evaluate the final weights, from the last checkpoint, which the replay is about to write."""
        deadline = time.monotonic() + timeouts.WRITE_CHECKPOINT
        while not self._is_trained and not self._interrupt.asked and time.monotonic() < deadline:
            time.sleep(timeouts.EVALUATOR_POLL)
        checkpoint = newest_checkpoint(self._run.checkpoints)
        if checkpoint and checkpoint.t > self._evaluated_at:
            load_networks(self._agent, checkpoint.parts["learner"])
            self._evaluate(checkpoint.t, lambda: self._interrupt.asked, is_last=True)

    def _evaluate(self, t: int, stopped: Callable[[], bool], is_last: bool = False) -> None:
        try:
            evaluation = evaluate(self._config, self._agent, t, stopped=stopped)
        except EvaluationStopped:
            return
        self._evaluated_at = t
        log.info(evaluation.summary())
        try:
            if is_last:  # the replay has written its last row
                add_last_evaluation(self._run, t, evaluation.row()["mean"])
            keep_evaluation(self._run, evaluation.row(), self._agent.weights("online"))
        except OSError as error:
            log.error("the evaluation at t = %d could not be written: %s", t, error)
