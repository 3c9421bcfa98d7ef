"""The evaluator's process: plays whole games with the newest weights, every so many transitions and at the end.

It works on the head's machine, since it writes into the run directory: every score, and the best and the last weights.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from dpsr_apex.config_files import load_config
from dpsr_apex.processes.discovery import Whereabouts
from dpsr_apex.processes.link import Link, request_to_join
from dpsr_apex.processes.weights import WeightsClient
from dpsr_apex.roles.build import build_agent, build_env, one_thread
from dpsr_apex.roles.evaluator import EvaluationStopped, evaluate
from dpsr_apex.run.checkpoint import has_checkpoint, newest_checkpoint
from dpsr_apex.run.evaluations import keep_evaluation
from dpsr_apex.run.interrupt import Interrupt
from dpsr_apex.run.journal import passed
from dpsr_apex.run.metrics import read_metrics
from dpsr_apex.run.run_directory import RunDirectory
from dpsr_apex.wire.messages import Welcome
from dpsr_apex.wire.sockets import wait

IDLE_SECONDS = 0.2
CHECKPOINT_SECONDS = 300.0  # for the replay to write its last checkpoint

log = logging.getLogger(__name__)


def run_evaluator(run: RunDirectory, head: Whereabouts) -> int:
    """Evaluate the run in its directory until it ends; the exit code."""
    with Interrupt() as interrupt:
        EvaluatorProcess(run, head, interrupt).run()
    return interrupt.exit_code


class EvaluatorProcess:
    """One evaluator, its link to the replay and its weights."""

    def __init__(self, run: RunDirectory, head: Whereabouts, interrupt: Interrupt) -> None:
        self._config = one_thread(load_config(run.config))
        self._run = run
        self._interrupt = interrupt
        env = build_env(self._config, 0, training=False)
        env.close()
        self._agent = build_agent(self._config, env, 0)
        request = request_to_join(run.identity.read_text(encoding="ascii"), "evaluator", "evaluator", "")
        self._link = Link(head, request, self._config.system.lease)
        self._weights = WeightsClient(self._agent, head)
        self._listened = 0.0
        self._read_evaluations()

    def run(self) -> None:
        """Evaluate whenever it is due, and once more when the run is finished."""
        while not self._is_over() and not self._is_trained:
            wait([self._link.client, *([self._weights.client] if self._weights.client else [])], IDLE_SECONDS)
            self._listen()
            t, last = self._link.t, self._config.run.total_steps  # the last evaluation is of the last weights
            if t < last and passed(self._config.evaluation.period, self._evaluated_at, t):
                self._evaluate_newest()
        goodbye = self._link.goodbye
        self._link.leave()
        self._weights.close()
        if (goodbye and goodbye.finished) or self._is_trained:
            self._evaluate_last()

    @property
    def _is_trained(self) -> bool:
        """Whether the last checkpoint is there: then the replay may have gone without a word that was heard here."""
        return has_checkpoint(self._run.checkpoints, self._config.run.total_steps)

    def _read_evaluations(self) -> None:
        """A replay that went back to a checkpoint has dropped those that came after it."""
        rows = read_metrics(self._run.evaluations)
        self._evaluated_at = rows[-1]["t"] if rows else 0

    def _is_over(self) -> bool:
        """Also keeps the link, since it is asked at every step of an evaluation."""
        if time.monotonic() - self._listened > IDLE_SECONDS:
            self._listen()
        return self._link.goodbye is not None or self._interrupt.asked

    def _listen(self) -> None:
        self._listened = time.monotonic()
        for message in self._link.receive():
            log.info("the replay says %s", type(message).__name__)
            if isinstance(message, Welcome):
                self._read_evaluations()
        self._link.keep()
        self._weights.follow(self._link.weights)
        self._weights.receive()

    def _evaluate_newest(self) -> None:
        """Ask for the weights of now, and play when they have come. The link is kept meanwhile."""
        before = self._weights.answers
        while self._weights.answers == before:
            if self._is_over():
                return
            self._weights.ask()
            wait([self._weights.client or self._link.client], IDLE_SECONDS)
            self._weights.receive()
        t = self._link.t
        self._evaluate(t, lambda: self._is_over() or self._link.t < t)  # less: the replay went back to a checkpoint

    def _evaluate_last(self) -> None:
        """The weights of the very end are in the last checkpoint, which the replay is about to write."""
        deadline = time.monotonic() + CHECKPOINT_SECONDS
        while not self._is_trained and not self._interrupt.asked and time.monotonic() < deadline:
            time.sleep(IDLE_SECONDS)
        checkpoint = newest_checkpoint(self._run.checkpoints)
        if checkpoint and checkpoint.t > self._evaluated_at:
            self._agent.load(checkpoint.parts["learner"].arrays)
            self._evaluate(checkpoint.t, lambda: self._interrupt.asked)

    def _evaluate(self, t: int, stopped: Callable[[], bool]) -> None:
        try:
            evaluation = evaluate(self._config, self._agent, t, stopped=stopped)
        except EvaluationStopped:
            return
        self._evaluated_at = t
        log.info(evaluation.summary())
        try:
            keep_evaluation(self._run, evaluation.row(), self._agent.weights("online"))
        except OSError as error:
            log.error("the evaluation at t = %d could not be written: %s", t, error)
