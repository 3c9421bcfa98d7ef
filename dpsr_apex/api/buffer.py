"""`ReplayBuffer`: the replay for a user's own training loop, a thin layer over `dpsr_apex.replay.replay.Replay`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from dpsr_apex.agent.protocol import Experience
from dpsr_apex.api import checks
from dpsr_apex.api.batch import Batch
from dpsr_apex.api.lanes import Lane, LaneStep
from dpsr_apex.api.observations import ObservationCodec
from dpsr_apex.api.recycling import Act, TdErrors, UserEnv, UserScorer, as_batch
from dpsr_apex.api.settings import ReplaySettings, buffer_config
from dpsr_apex.config import settings as settings_of
from dpsr_apex.errors import UserError
from dpsr_apex.files import to_json
from dpsr_apex.protocol.conversions import chains_of, recycle_request
from dpsr_apex.record.checkpoint import clock_of, discard_after, list_checkpoints, load_checkpoint, save_checkpoint
from dpsr_apex.replay.replay import BadPriority, Replay
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.roles.n_step import Arrived, as_transitions
from dpsr_apex.roles.recycling import Recycling
from dpsr_apex.state import State, join, split


class ReplayBuffer:
    """A replay of at most `capacity` transitions, by any of the methods of this package.

    Arguments and results are numpy arrays; tensors are accepted as well. Wrong input raises UserError and changes
    nothing. Equal seeds and equal calls give equal samples.
    """

    def __init__(
        self,
        capacity: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        method: str = "dpsr",
        *,
        n_steps: int = 1,
        discount: float = 0.99,
        total_steps: int = 1_000_000,
        seed: int = 0,
        **settings: Unpack[ReplaySettings],
    ) -> None:
        """Create an empty buffer.

        `discount` is that of n-step returns; `total_steps` is the length of the run, over which schedules such as
        `bias_annealing` change. `settings` are those of the section `replay` of a config.
        """
        self.config = buffer_config(capacity, method, n_steps, discount, total_steps, seed, settings)
        self._codec = ObservationCodec(observation_space)
        self._actions = checks.count_actions(action_space)
        self._replay = Replay(self.config.replay, self.config.run.total_steps, np.random.default_rng(seed))
        self._rng = np.random.default_rng([seed, 1])  # of recycling, so that sampling does not depend on it
        self._lanes: list[Lane] = []  # one per environment; their number is that of the first `add`

    def __len__(self) -> int:
        return self._replay.size

    @property
    def capacity(self) -> int:
        """Maximum number of transitions."""
        return self.config.replay.capacity

    @property
    def t(self) -> int:
        """Transitions inserted so far, the clock of all schedules."""
        return self._replay.t

    @property
    def rounds_open(self) -> int:
        """Recycling rounds that wait for `recycle`."""
        return len(self._replay.rounds)

    @property
    def counters(self) -> dict[str, float]:
        """Counters since the start: transitions replaced, recycled, sampled and so on."""
        return asdict(self._replay.counters)

    def add(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminated: Any,
        truncated: Any,
        snapshot: Any = None,
        *,
        final_obs: Any = None,
        mask: Any = None,
    ) -> int:
        """Add one step, or one step of each environment of a vector environment; return the transitions inserted.

        `snapshot`: the state of the environment at `obs`, as bytes, so that it can be re-entered (one per lane).
        `final_obs`: Gymnasium's `infos["final_obs"]`, which replaces `next_obs` where an episode has ended.
        `mask`: lanes to add; the others are skipped, such as those that were only reset.

        A recycling round that is still open ends first, without recycled transitions.
        """
        steps = self._checked_steps(obs, action, reward, next_obs, terminated, truncated, snapshot, final_obs)
        wanted = np.ones(len(steps), np.bool_) if mask is None else checks.flags(mask, "mask", (len(steps),))
        if not self._lanes:
            self._lanes = [Lane(self.config, self._codec, self._rng) for _ in steps]
        self._expire_rounds()
        arrived: list[Arrived] = []
        for number in np.flatnonzero(wanted).tolist():
            arrived += self._lanes[number].push(steps[number])
        if arrived:
            self._replay.insert(as_transitions(arrived))
        return len(arrived)

    def sample(self, batch_size: int) -> Batch:
        """Sample a batch with its importance weights; transitions can occur several times in it."""
        count = checks.positive(batch_size, "batch_size")
        if not self._replay.size:
            raise UserError("the buffer is empty; add transitions before sampling")
        identities, weights, transitions = self._replay.sample(count)
        return as_batch(self._decompress(transitions), weights, identities, self.config.learner.discount)

    def update_priorities(self, ids: Any, td_errors: Any) -> None:
        """Set the priorities of sampled transitions from their TD errors, of which the absolute value counts.

        `ids` of transitions that have been replaced since they were sampled are ignored and counted.
        """
        given = checks.to_array(ids, "ids")
        if given.ndim != 1:
            raise UserError(f"ids must have one axis (got the shape {given.shape})")
        identities = checks.integers(given, "ids", given.shape)
        errors = np.abs(checks.numbers(td_errors, "td_errors", given.shape))
        try:
            self._replay.update_priorities(identities, errors)
        except BadPriority as error:
            raise UserError(f"td_errors: {error}") from error

    def recycle(self, env: Any, act: Act, td_errors: TdErrors) -> int:
        """Complete the open recycling rounds, as in the paper; return the number of recycled transitions stored.

        From the state of each candidate, `env` is restored and another action is taken. To be called after each `add`;
        does nothing unless a round is open.

        `env`: an environment for this purpose only, with `step`, `snapshot()` and `restore(snapshot, observation)`.
        `act`: returns the greedy action for each of a batch of observations.
        `td_errors`: returns the TD error of each row of a `Batch`.
        """
        user_env = UserEnv(env, self._codec, self._actions)
        if self._replay.rounds and self._actions < 2:
            raise UserError("recycling takes another action than before, but action_space has only one")
        scorer = UserScorer(act, td_errors, self._actions, self.config.learner.discount)
        before = self._replay.counters.recycled
        for round_ in list(self._replay.rounds.values()):
            recycling = Recycling(self.config, recycle_request(round_, 0), scorer, user_env, self._rng)
            while (answer := recycling.advance()) is None:
                pass
            self._replay.answer(round_.number, chains_of(answer))
            if answer.failed.size:
                self._replay.expire(round_.number)
        return self._replay.counters.recycled - before

    def save(self, path: str | Path) -> None:
        """Write the whole state into the folder `path`, which replaces an earlier one; open rounds end first."""
        self._expire_rounds()
        facts, arrays = self._replay.save()
        own = {
            "description": self._description(),
            "generator": self._rng.bit_generator.state,
            "lanes": len(self._lanes),
        }
        parts = {"replay": State(facts, arrays), "buffer": State(to_json(own), {})}
        parts |= {"lanes": join({f"lane{i}": lane.save() for i, lane in enumerate(self._lanes)})}
        folder, t = Path(path), self._replay.t
        later = sum(clock_of(saved) > t for saved in list_checkpoints(folder))  # of another buffer, saved there before
        save_checkpoint(folder, t, parts, keep=1 + later)
        discard_after(folder, t)

    def load(self, path: str | Path) -> None:
        """Restore a state written by `save` into this buffer, which must be new and have the same arguments."""
        if self._replay.t or self._lanes:
            raise UserError("a saved state can be loaded only into a new buffer, but this one has been added to")
        saved = list_checkpoints(Path(path))
        if not saved:
            raise UserError(f"{path} is not a saved buffer")
        parts = load_checkpoint(saved[-1]).parts
        own = parts["buffer"].facts
        _ensure_same(own["description"], self._description(), path)
        self._replay.load(*parts["replay"])
        states = split(parts["lanes"])
        self._lanes = [Lane(self.config, self._codec, self._rng) for _ in range(own["lanes"])]
        for number, lane in enumerate(self._lanes):
            lane.load(states[f"lane{number}"])
        self._rng.bit_generator.state = own["generator"]  # last: a new lane may take a random number

    def _checked_steps(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        next_obs: Any,
        terminated: Any,
        truncated: Any,
        snapshot: Any,
        final_obs: Any,
    ) -> list[LaneStep]:
        """Return the step of each lane, after all arguments were checked."""
        first = checks.to_array(obs, "obs")
        is_single = first.ndim == len(self._codec.shape)
        lanes = 1 if is_single else first.shape[0]
        if lanes != len(self._lanes) and self._lanes:
            raise UserError(f"obs must be of {len(self._lanes)} lanes, as in the first call (got {lanes})")
        axes = () if is_single else (lanes,)
        shape, dtype = (*axes, *self._codec.shape), self._codec.dtype
        starts = checks.observations(first, "obs", shape, dtype).reshape(lanes, *self._codec.shape)
        ends = checks.observations(next_obs, "next_obs", shape, dtype).reshape(starts.shape)
        chosen = checks.actions(action, self._actions, axes).reshape(lanes).tolist()
        rewards = checks.numbers(reward, "reward", axes).reshape(lanes).tolist()
        terminals = checks.flags(terminated, "terminated", axes).reshape(lanes).tolist()
        limits = checks.flags(truncated, "truncated", axes).reshape(lanes).tolist()
        kept = checks.snapshots(snapshot, lanes, is_single)
        for lane in range(lanes):
            if final_obs is not None and (terminals[lane] or limits[lane]) and final_obs[lane] is not None:
                ends[lane] = checks.observations(final_obs[lane], "final_obs", self._codec.shape, dtype)
        return [LaneStep(*row) for row in zip(starts, chosen, rewards, ends, terminals, limits, kept, strict=True)]

    def _expire_rounds(self) -> None:
        for number in list(self._replay.rounds):
            self._replay.expire(number)

    def _decompress(self, transitions: Transitions) -> Experience:
        """Decompress observations; frames that are shared are decompressed once."""
        count = len(transitions)
        observations: NDArray[Any] = self._codec.decompress_stacks([*transitions.s_tm1, *transitions.s_t])
        columns = transitions.a_tm1, transitions.r_t, observations[count:], transitions.terminal, transitions.n_steps
        return Experience(observations[:count], *columns)

    def _description(self) -> dict[str, str]:
        """Return everything that must be equal for a saved state to be loaded."""
        own = {"observation_space": f"{self._codec.dtype}{self._codec.shape}", "action_space": f"{self._actions}"}
        return own | {key.rpartition(".")[2]: str(value) for key, value in settings_of(self.config).items()}


def _ensure_same(saved: dict[str, str], own: dict[str, str], path: str | Path) -> None:
    for name in sorted(saved.keys() | own.keys()):
        if saved.get(name) != own.get(name):
            raise UserError(f"{path} was saved with {name} = {saved.get(name)}, but this buffer has {own.get(name)}")
