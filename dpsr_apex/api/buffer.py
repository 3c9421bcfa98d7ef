"""`ReplayBuffer`: the replay for a user's own training loop, a thin layer over `dpsr_apex.replay.replay.Replay`."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from itertools import compress
from pathlib import Path
from typing import Any, Final, Unpack

import numpy as np
from gymnasium import spaces

from dpsr_apex.agent.protocol import Experience
from dpsr_apex.api import checks
from dpsr_apex.api.batch import Batch
from dpsr_apex.api.lanes import GivenStep, Lane, checked_lanes, checked_step
from dpsr_apex.api.observations import ObservationCodec
from dpsr_apex.api.recycling import Act, TdErrors, UserEnv, UserScorer, as_batch
from dpsr_apex.api.settings import ReplaySettings, buffer_config
from dpsr_apex.config import settings as settings_of
from dpsr_apex.errors import UserError
from dpsr_apex.files import to_json
from dpsr_apex.machine import available_memory
from dpsr_apex.protocol.conversions import chains_of, recycle_request
from dpsr_apex.record.checkpoint import clock_of, discard_after, list_checkpoints, load_checkpoint, save_checkpoint
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.slots import BadPriority
from dpsr_apex.replay.store import Rows
from dpsr_apex.roles.memory import show_bytes, slot_bytes
from dpsr_apex.roles.n_step import Arrived, as_transitions
from dpsr_apex.roles.recycling import Recycling
from dpsr_apex.state import State, join, split

_REPEATED: Final = (
    "an episode begins with the last observation of the one before. Call env.reset() after an episode; of a vector "
    "environment that resets by itself, pass final_obs=infos.get('final_obs'), or the mask of the lanes that did not "
    "end in the step before"
)


_NOT_RE_ENTERED: Final = (
    "a state could not be re-entered, so that its transition was not recycled: {reason}. This is reported once; "
    "counters['candidates_lost'] counts all such states, and the log of 'dpsr_apex.roles.recycling' has their reasons"
)


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
        rng = np.random.default_rng(seed)
        frame_bytes = self._codec.frame_bytes
        _ensure_memory(self.capacity, frame_bytes)
        self._replay = Replay(self.config.replay, self.config.run.total_steps, rng, frame_bytes=frame_bytes)
        self._rng = np.random.default_rng([seed, 1])  # of recycling, so that sampling does not depend on it
        self._lanes: list[Lane] = []  # one per environment; their number is that of the first `add`
        self._has_warned = False  # of an episode that begins with the last observation of the one before
        self._has_failed = False  # whether a state could not be re-entered, which was reported

    def __len__(self) -> int:
        return self._replay.size

    def __repr__(self) -> str:
        return f"<ReplayBuffer: {len(self)} of {self.capacity} transitions, method {self.config.replay.method!r}>"

    @property
    def capacity(self) -> int:
        """Maximum number of transitions."""
        return self.config.replay.capacity

    @property
    def t(self) -> int:
        """Transitions inserted so far, the clock of all schedules."""
        return self._replay.t

    @property
    def total_steps(self) -> int:
        """Length of the run in transitions, over which schedules change; may be set, to train longer."""
        return self._replay.total_steps

    @total_steps.setter
    def total_steps(self, count: int) -> None:
        self._replay.total_steps = checks.positive(count, "total_steps")

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

        A recycling round that is still open ends first, without recycled transitions. Warns once if an episode begins
        with the last observation of the one before, as it does without `final_obs`, `mask` or `env.reset()`.
        """
        first = checks.to_array(obs, "obs")
        is_single = first.ndim <= len(self._codec.shape)
        count = 1 if is_single else len(first)
        if count != len(self._lanes) and self._lanes:
            raise UserError(f"obs must be of {len(self._lanes)} lanes, as in the first call (got {count})")
        given = GivenStep(first, action, reward, next_obs, terminated, truncated, snapshot, final_obs)
        steps = (checked_step if is_single else checked_lanes)(given, self._codec, self._actions)
        wanted = None if mask is None else checks.flags(mask, "mask", (count,))
        if not self._lanes:
            self._lanes = [Lane(self.config, self._codec, self._rng) for _ in steps]
        self._expire_rounds()
        pairs = zip(self._lanes, steps, strict=True)
        arrived: list[Arrived] = []
        repeats = False
        for lane, step in pairs if wanted is None else compress(pairs, wanted):
            arrived += lane.push(step)
            repeats |= lane.repeats
        if arrived:
            self._replay.insert(as_transitions(arrived))
        if repeats and not self._has_warned:
            self._has_warned = True
            warnings.warn(_REPEATED, stacklevel=2)
        return len(arrived)

    def sample(self, batch_size: int) -> Batch:
        """Sample a batch with its importance weights; transitions can occur several times in it."""
        count = checks.positive(batch_size, "batch_size")
        if not self._replay.size:
            raise UserError("the buffer is empty; add transitions before sampling")
        identities, weights, rows = self._replay.sample_rows(count)
        return as_batch(self._decompress(rows), weights, identities, self.config.learner.discount)

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

        A candidate whose state cannot be re-entered is dropped, whatever `env` raises; the first one is a UserWarning.
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
            try:
                self._replay.answer(round_.number, chains_of(answer))
            except BadPriority as error:
                raise UserError(f"td_errors: {error}") from error
            if answer.failed.size:
                self._replay.expire(round_.number)
            if answer.reasons and not self._has_failed:
                self._has_failed = True
                warnings.warn(_NOT_RE_ENTERED.format(reason=answer.reasons[0]), stacklevel=2)
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
        folder, t = checks.path(path, "path"), self._replay.t
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise UserError(f"path must be a folder, or a new one (got {str(path)!r})") from error
        later = sum(clock_of(saved) > t for saved in list_checkpoints(folder))  # of another buffer, saved there before
        save_checkpoint(folder, t, parts, keep=1 + later)
        discard_after(folder, t)

    def load(self, path: str | Path) -> None:
        """Restore a state written by `save` into this buffer, which must be new and have the same arguments."""
        if self._replay.t or self._lanes:
            raise UserError("a saved state can be loaded only into a new buffer, but this one has been added to")
        saved = list_checkpoints(checks.path(path, "path"))
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

    def _expire_rounds(self) -> None:
        for number in list(self._replay.rounds):
            self._replay.expire(number)

    def _decompress(self, rows: Rows) -> Experience:
        """Decompress observations; frames that are shared are decompressed once."""
        if (frames := rows.frames) is not None:
            s_tm1, s_t = self._codec.read_pairs(frames)
        else:
            stacks = rows.stacks()
            s_tm1, s_t = np.split(self._codec.decompress_stacks([*stacks[0], *stacks[1]]), 2)
        numbers = rows.numbers
        return Experience(s_tm1, numbers("a_tm1"), numbers("r_t"), s_t, numbers("terminal"), numbers("n_steps"))

    def _description(self) -> dict[str, str]:
        """Return everything that must be equal for a saved state to be loaded."""
        own = {"observation_space": f"{self._codec.dtype}{self._codec.shape}", "action_space": f"{self._actions}"}
        of_config = {key.rpartition(".")[2]: str(value) for key, value in settings_of(self.config).items()}
        del of_config["total_steps"]
        return own | of_config


def _ensure_memory(capacity: int, frame_bytes: int) -> None:
    """Raise UserError if the empty slots alone do not fit into memory: the system may kill a process that fills it."""
    needed, available = capacity * slot_bytes(frame_bytes), available_memory()
    if available is not None and needed > available:
        raise UserError(
            f"capacity must fit into memory: {capacity:,} empty slots take {show_bytes(needed)}, "
            f"and {show_bytes(available)} are available"
        )


def _ensure_same(saved: dict[str, str], own: dict[str, str], path: str | Path) -> None:
    for name in sorted(saved.keys() | own.keys()):
        if saved.get(name) != own.get(name):
            raise UserError(f"{path} was saved with {name} = {saved.get(name)}, but this buffer has {own.get(name)}")
