"""The actor as a role: steps environments, and re-enters stored states when the replay asks for it.

It acts with the agent that it is given and by the clock that it is told; where the weights come from and where its
messages go is not its business.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.agent.dqn import DqnAgent
from dpsr_apex.config import Config
from dpsr_apex.envs.compression import DamagedSnapshot
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.roles.experience import inflate
from dpsr_apex.roles.exploration import epsilons, rungs
from dpsr_apex.roles.n_step import Arrived, NStep, Start
from dpsr_apex.state import State, join, split
from dpsr_apex.wire.messages import Insert, Inserted, Recycle, Recycled

log = logging.getLogger(__name__)


class Game(NamedTuple):
    """A game that has ended."""

    score: float  # unclipped, of the whole game
    steps: int


class Actor:
    """Steps `envs` side by side; `recycler` is one more environment, for moments of the past alone."""

    def __init__(
        self,
        config: Config,
        agent: DqnAgent,
        envs: Sequence[StackedEnv],
        recycler: StackedEnv | None,
        rng: np.random.Generator,
    ) -> None:
        self.t = 0  # the replay's clock, as it was last told
        self.envs = envs
        self.rng = rng
        self.n_steps = [NStep(config.actor.n_steps, config.learner.discount) for _ in envs]
        self._config = config
        self._agent = agent
        self._recycler = recycler
        self._games: list[Game] = []
        self._rungs = rungs(0, 1, len(envs))

    def stand_on(self, index: int, actors: int) -> None:
        """Be actor `index` of so many, for a ladder of exploration; one that is more than planned shares a rung."""
        self._rungs = rungs(index, actors, len(self.envs))

    @property
    def epsilons(self) -> NDArray[np.float64]:
        """The share of random actions now, in each environment."""
        return epsilons(self._config, self._rungs, self.t)

    def step(self) -> Insert | None:
        """One step in every environment; None when no transition has gone its n steps yet."""
        arrived: list[Arrived] = []
        for env, n_step, action in zip(self.envs, self.n_steps, self._choose_actions().tolist(), strict=True):
            arrived += self._step_one(env, n_step, action)
        if not arrived:
            return None
        transitions = _transitions(arrived)
        return Insert(transitions, self._first_td_errors(transitions))

    def inserted(self, message: Inserted) -> None:
        """Hear the clock."""
        self.t = message.t

    def recycle(self, message: Recycle) -> Recycled:
        """Re-enter the state of each candidate, act anew, and score what happened by the newest networks."""
        recycling = self.begin_recycling(message)
        while (answer := recycling.advance()) is None:
            pass
        return answer

    def begin_recycling(self, message: Recycle) -> Recycling:
        """The same candidate by candidate, so that it can be done between steps."""
        assert self._recycler is not None, "asked to recycle without an environment for it"
        return Recycling(message, self._other_actions(message), self._agent, self._recycler)

    def save(self) -> State:
        """Everything that the next steps depend on, the environments themselves included."""
        parts = {f"env{i}": env.save() for i, env in enumerate(self.envs)}
        parts |= {f"n_step{i}": n_step.save() for i, n_step in enumerate(self.n_steps)}
        games = [game._asdict() for game in self._games]
        own = State({"t": self.t, "generator": self.rng.bit_generator.state, "games": games}, {})
        return join({"actor": own, **parts})

    def load(self, state: State) -> None:
        """Become what `save` was called on."""
        parts = split(state)
        own = parts["actor"].facts
        self.t = own["t"]
        self.rng.bit_generator.state = own["generator"]
        self._games = [Game(**game) for game in own["games"]]
        for i, (env, n_step) in enumerate(zip(self.envs, self.n_steps, strict=True)):
            env.load(parts[f"env{i}"])
            if env.reentrant:  # any other begins a new game, which the steps that are pending must not run into
                n_step.load(parts[f"n_step{i}"])

    def drain_games(self) -> list[Game]:
        """The games that ended since the last call."""
        games, self._games = self._games, []
        return games

    def close(self) -> None:
        """Let go of the environments."""
        for env in self.envs:
            env.close()
        if self._recycler:
            self._recycler.close()

    def _choose_actions(self) -> NDArray[np.int64]:
        """Greedy, but for a share epsilon of random ones."""
        explore = self.rng.random(len(self.envs)) < self.epsilons
        actions = self.rng.integers(self.envs[0].actions, size=len(self.envs))
        if explore.all():
            return actions
        greedy = self._agent.act(np.stack([env.frames for env in self.envs]))
        return np.where(explore, actions, greedy)

    def _step_one(self, env: StackedEnv, n_step: NStep, action: int) -> list[Arrived]:
        start = Start(env.stack, action, env.snapshot())
        step = env.step(action)
        arrived = n_step.push(start, step.reward, env.stack, step.terminal, step.truncated)
        if step.game_over:
            self._games.append(Game(env.game_score, env.game_steps))
        if step.terminal or step.truncated:
            env.reset()
        return arrived

    def _first_td_errors(self, transitions: Transitions) -> NDArray[np.float64] | None:
        if self._config.replay.initial_priority == "max":
            return None
        return self._agent.td_errors(inflate(transitions, self.envs[0].codec))

    def _other_actions(self, message: Recycle) -> NDArray[np.int64]:
        """What the newest network would do in each state; where that was done already, any other action."""
        assert self._recycler is not None
        stored = message.starts.a_tm1
        greedy = self._agent.act(self._recycler.codec.inflate_stacks(message.starts.s_tm1))
        others = self.rng.integers(self._recycler.actions - 1, size=len(stored))
        others += others >= stored
        return np.where(greedy == stored, others, greedy)


class Recycling:
    """One request to recycle, on its way: `advance` re-enters the next state, and gives the answer after the last."""

    def __init__(self, message: Recycle, actions: NDArray[np.int64], agent: DqnAgent, env: StackedEnv) -> None:
        starts = zip(message.starts.s_tm1, actions.tolist(), message.starts.snapshots, strict=True)
        self._pending = deque(zip(message.identities.tolist(), map(Start._make, starts), strict=True))
        self._message = message
        self._agent = agent
        self._env = env
        self._entered: list[int] = []
        self._arrived: list[Arrived] = []
        self._failed: list[int] = []

    def advance(self) -> Recycled | None:
        """One more candidate; None while there are others."""
        if self._pending:
            identity, start = self._pending.popleft()
            try:
                arrived = self._re_enter(start)
            except DamagedSnapshot as damage:
                log.warning("transition %d cannot be re-entered: %s", identity, damage)
                self._failed.append(identity)
            else:
                self._entered.append(identity)
                self._arrived.append(arrived)
        return None if self._pending else self._answer()

    def _re_enter(self, start: Start) -> Arrived:
        self._env.restore(start.snapshot, start.stack)
        step = self._env.step(start.action)
        return Arrived(start, step.reward, self._env.stack, step.terminal, n_steps=1)

    def _answer(self) -> Recycled:
        transitions = _transitions(self._arrived)
        td_errors = self._agent.td_errors(inflate(transitions, self._env.codec)) if self._arrived else np.zeros(0)
        return Recycled(
            self._message.era,
            self._message.round_number,
            np.array(self._entered, dtype=np.int64),
            transitions,
            td_errors,
            np.array(self._failed, dtype=np.int64),
        )


def _transitions(arrived: Sequence[Arrived]) -> Transitions:
    return Transitions(
        s_tm1=[one.start.stack for one in arrived],
        a_tm1=np.array([one.start.action for one in arrived], dtype=np.int64),
        r_t=np.array([one.reward for one in arrived], dtype=np.float32),
        s_t=[one.end for one in arrived],
        terminal=np.array([one.terminal for one in arrived], dtype=np.bool_),
        n_steps=np.array([one.n_steps for one in arrived], dtype=np.uint8),
        snapshots=[one.start.snapshot for one in arrived],
    )
