"""A simulated evaluator: the real client, and an evaluation that only takes time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dpsr_apex.protocol.client_instructions import (
    ConnectToLearner,
    LinkInstruction,
    LoadWeights,
    RequestWeights,
    WeightsInstruction,
)
from dpsr_apex.protocol.clients import EvaluatorClient
from dpsr_apex.wire.messages import EVALUATOR, Message
from tests.simulation.hosts import execute_link, join_request
from tests.simulation.sim_processes import CONFIG, ClientProcess

if TYPE_CHECKING:
    from tests.simulation.world import World

LONGEST_EVALUATION = 1.5  # seconds


class EvaluatorProcess(ClientProcess):
    """A member until the run is trained; then it evaluates the last checkpoint, and ends."""

    role = EVALUATOR

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        super().__init__(world, name)
        self.key = (name, incarnation)
        self._client = EvaluatorClient(join_request(name, "evaluator", incarnation), CONFIG.system, world.events.now)
        self._done_at: float | None = None

    def turn(self) -> None:
        if not self.has_left:
            self._execute(self._client.tick(self.now))
            self._leave_when_over()
        elif self._done_at is None:
            if self.world.is_trained:
                self._done_at = self.now + self.world.rng.uniform(0.1, LONGEST_EVALUATION)
        elif self.now >= self._done_at:
            self.world.is_evaluated = True
            self.world.end(self.name, 0, "has evaluated the last checkpoint")

    def stop(self) -> None:
        self._leave()
        self.world.end(self.name, self.exit_code, "asked to stop")

    def receive(self, message: Message) -> None:
        super().receive(message)
        if not self.has_left:
            self._execute(self._client.handle(message, self.now))

    def _leave_when_over(self) -> None:
        goodbye = self._client.membership.goodbye
        if goodbye is None and not self.world.is_trained:
            return
        self._leave()
        if not (self.world.is_trained or (goodbye and goodbye.finished)):
            self.world.end(self.name, self.exit_code, "told to leave")

    def _leave(self) -> None:
        if not self.has_left:
            self.has_left = True
            self._execute(self._client.membership.leave())

    def _execute(self, instructions: Iterable[LinkInstruction | WeightsInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case ConnectToLearner() | RequestWeights() | LoadWeights():
                    pass  # it evaluates only the last checkpoint
                case _:
                    self._execute(execute_link(instruction, self._client, self, self.now))
