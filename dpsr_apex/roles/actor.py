"""The actor role: steps environments, and re-enters stored states on request of the replay.

It is given an agent and a clock; the transfer of weights and transitions is handled elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Agent
from dpsr_apex.config import Config
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.exploration import epsilons, rungs
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.roles.experience import NO_FAULTS, decompress
from dpsr_apex.roles.labels import Labeller
from dpsr_apex.roles.n_step import Arrived, NStep, Start, as_transitions
from dpsr_apex.roles.recycling import Recycling
from dpsr_apex.roles.starts import NO_STARTS, Starts
from dpsr_apex.roles.trial import states_that_end_a_process
from dpsr_apex.state import State, join, split
from dpsr_apex.wire.messages import Recycle, Recycled


class Collected(NamedTuple):
    """New transitions, in chronological order."""

    transitions: Transitions
    td_errors: NDArray[np.float64] | None  # the actor's own |TD errors|, if they determine the initial priorities

    def one_by_one(self) -> Iterator[Collected]:
        """Yield each transition separately."""
        for row in range(len(self.transitions)):
            td_errors = None if self.td_errors is None else self.td_errors[row : row + 1]
            yield Collected(self.transitions.rows(row, row + 1), td_errors)


class Episode(NamedTuple):
    """An episode that has ended; a lost life of an Atari game does not end it."""

    score: float  # unclipped
    steps: int


class Actor:
    """Steps `envs` together; `recycler` is an additional environment, used only for re-entered states."""

    def __init__(
        self,
        config: Config,
        agent: Agent,
        envs: Sequence[StackedEnv],
        recycler: StackedEnv | None,
        rng: np.random.Generator,
        starts: Transitions = NO_STARTS,
    ) -> None:
        """Act in `envs`; a share of the episodes begins at the states of the transitions `starts`."""
        self.t = 0  # the replay's clock, as last set
        self.envs = envs
        self.rng = rng
        self.n_steps = [NStep(config.actor.n_steps, config.learner.discount) for _ in envs]
        self._config = config
        self._agent = agent
        self._recycler = recycler
        self._episodes: list[Episode] = []
        self._rungs = rungs(0, 1, len(envs))
        self._labellers = [Labeller(config.replay, env, rng) for env in envs]
        self._starts = Starts(starts, config.actor.start_share)
        # For each environment in an episode that began at a moment: its state at the reset that this has postponed.
        self._held = [self._starts.begin(env, rng) for env in envs]

    def set_position(self, index: int, actors: int) -> None:
        """Explore as actor `index` of `actors` on an exploration ladder; a surplus actor shares a position."""
        self._rungs = rungs(index, actors, len(self.envs))

    def set_clock(self, t: int) -> None:
        """Set the replay's clock, which exploration follows."""
        self.t = t

    @property
    def epsilons(self) -> NDArray[np.float64]:
        """Current probability of a random action in each environment."""
        return epsilons(self._config, self._rungs, self.t)

    def step(self) -> Collected | None:
        """Step every environment once; None while no transition has completed its n steps."""
        arrived: list[Arrived] = []
        for number, action in enumerate(self._choose_actions().tolist()):
            arrived += self._step_one(number, action)
        if not arrived:
            return None
        transitions = as_transitions(arrived)
        return Collected(transitions, self._initial_td_errors(transitions))

    def recycle(self, request: Recycle) -> Recycled:
        """Re-enter the state of each candidate, take other actions, and score the outcome with the newest networks."""
        recycling = self.begin_recycling(request)
        while (answer := recycling.advance()) is None:
            pass
        return answer

    def begin_recycling(self, request: Recycle, known: Mapping[int, str] = NO_FAULTS) -> Recycling:
        """Begin recycling, one environment step at a time, so that it can be interleaved with the actor's own steps.

        Candidates with `known` faults fail without being restored.
        """
        assert self._recycler is not None, "asked to recycle without an environment for it"
        if request.must_try:
            rows = [row for row in range(len(request.starts)) if row not in known]
            known = {**known, **states_that_end_a_process(self._recycler, request.starts, rows)}
        return Recycling(self._config, request, self._agent, self._recycler, self.rng, known)

    def save(self) -> State:
        """Return everything that future steps depend on, including the states of the environments."""
        parts = {f"env{i}": env.save() for i, env in enumerate(self.envs)}
        parts |= {f"n_step{i}": n_step.save() for i, n_step in enumerate(self.n_steps)}
        parts |= {f"labels{i}": labeller.save() for i, labeller in enumerate(self._labellers)}
        parts |= {f"held{i}": held for i, held in enumerate(self._held) if held is not None}
        episodes = [episode._asdict() for episode in self._episodes]
        own = State({"t": self.t, "generator": self.rng.bit_generator.state, "episodes": episodes}, {})
        return join({"actor": own, **parts})

    def load(self, state: State) -> None:
        """Restore a state returned by `save`."""
        parts = split(state)
        own = parts["actor"].facts
        self._held = [parts.get(f"held{i}") for i in range(len(self.envs))]
        self.t = own["t"]
        self.rng.bit_generator.state = own["generator"]
        self._episodes = [Episode(**episode) for episode in own["episodes"]]
        for i, (env, n_step) in enumerate(zip(self.envs, self.n_steps, strict=True)):
            env.load(parts[f"env{i}"])
            if env.restorable:  # other environments start a new episode, to which pending steps do not belong
                n_step.load(parts[f"n_step{i}"])
                self._labellers[i].load(parts[f"labels{i}"])

    def drain_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()
        if self._recycler:
            self._recycler.close()

    def _choose_actions(self) -> NDArray[np.int64]:
        """Return epsilon-greedy actions."""
        explore = self.rng.random(len(self.envs)) < self.epsilons
        actions = self.rng.integers(self.envs[0].actions, size=len(self.envs))
        if explore.all():
            return actions
        greedy = self._agent.act(np.stack([env.frames for env in self.envs]))
        return np.where(explore, actions, greedy)

    def _step_one(self, number: int, action: int) -> list[Arrived]:
        env = self.envs[number]
        start = Start(env.stack, action, env.snapshot(), self._labellers[number].label())
        step = env.step(action)
        arrived = self.n_steps[number].push(start, step.reward, env.stack, step.terminal, step.truncated)
        if step.game_over and self._held[number] is None:  # otherwise it is only the end of an episode
            self._episodes.append(Episode(env.game_score, env.game_steps))
        if step.terminal or step.truncated:
            self._begin_episode(number, step.game_over)
            self._labellers[number].begin_episode()
        return arrived

    def _begin_episode(self, number: int, is_new_game: bool) -> None:
        """Reset an environment, or begin a new game at a moment; a lost life does not end a game."""
        env, held = self.envs[number], self._held[number]
        if held is None or not is_new_game:
            env.reset()
        else:
            env.load(held)
        if is_new_game:
            self._held[number] = self._starts.begin(env, self.rng)

    def _initial_td_errors(self, transitions: Transitions) -> NDArray[np.float64] | None:
        if self._config.replay.initial_priority == "max":
            return None
        return self._agent.td_errors(decompress(transitions, self.envs[0].codec))
