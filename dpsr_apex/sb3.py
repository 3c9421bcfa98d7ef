"""The DQN of stable-baselines3 with the replay of this package: `DpsrDQN`.

The only module that imports stable_baselines3, and the only one of the front that imports torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from dpsr_apex.api.batch import Batch
from dpsr_apex.api.buffer import ReplayBuffer
from dpsr_apex.api.environments import SnapshotEnv, make_env
from dpsr_apex.api.settings import ReplaySettings
from dpsr_apex.errors import MissingPackage, UserError

try:
    from stable_baselines3 import DQN
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv
except ModuleNotFoundError as error:
    raise MissingPackage("dpsr_apex.sb3", f"{error.name}", "stable-baselines3>=2.8", "sb3") from error

_REFUSED: Final = {
    "replay_buffer_class": "the replay follows from `method`",
    "replay_buffer_kwargs": "use `replay_settings`",
    "optimize_memory_usage": "observations are always compressed and shared",
}


class StepReplay:
    """A `ReplayBuffer` that is added to as stable-baselines3 adds to its own."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer
        self.snapshots: list[bytes] | None = None  # of the states before the step that is added next

    def size(self) -> int:
        """Return the number of stored transitions."""
        return len(self.buffer)

    def add(
        self,
        obs: NDArray[Any],
        next_obs: NDArray[Any],
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[np.bool_],
        infos: list[dict[str, Any]],
    ) -> None:
        """Add one step of each environment; `next_obs` is the last observation where an episode has ended."""
        limits = np.array([info.get("TimeLimit.truncated", False) for info in infos], np.bool_)
        self.buffer.add(obs, action, reward, next_obs, done & ~limits, done & limits, self.snapshots)


class DpsrDQN(DQN):
    """stable-baselines3's DQN with any replay method of this package.

    The loss is weighted by the importance weights, and TD errors become priorities after every update. States are
    recycled between steps; recycled steps are not counted as time steps. All else is as in `DQN`.
    """

    replay_buffer: StepReplay  # type: ignore[assignment]  # it has the calls of a replay buffer that DQN uses

    def __init__(
        self,
        policy: Any,
        env: Any,
        *,
        method: str = "dpsr",
        recycle_env: Any = None,
        replay_settings: ReplaySettings | None = None,
        _init_setup_model: bool = True,
        **arguments: Any,
    ) -> None:
        """Create the model; `arguments` are those of `DQN`, of which `buffer_size` is the capacity of the replay.

        `env`: also a name for `make_env`, which then makes `recycle_env` as well. `method`: "dpsr", "double", "per",
        "per_rank" or "uniform". `recycle_env`: a second environment, equal to those of `env`, in which states are
        recycled; it has `snapshot()` and `restore(snapshot, observation)`. `replay_settings`: those of `ReplayBuffer`.
        """
        for name, reason in _REFUSED.items():
            if name in arguments:
                raise UserError(f"DpsrDQN does not take {name}: {reason}")
        self.method = method
        self.replay_settings: dict[str, Any] = {**(replay_settings or {})}
        self.recycle_env = make_env(env) if recycle_env is None and isinstance(env, str) else recycle_env
        made = make_env(env) if isinstance(env, str) else env
        super().__init__(policy, made, _init_setup_model=_init_setup_model, **arguments)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Take `gradient_steps` optimizer steps on prioritized batches."""
        if not self.replay_buffer.size():  # the first n-step transition is not complete yet
            return
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = [self._update(batch_size) for _ in range(gradient_steps)]
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))
        self.logger.record("replay/recycled", self.replay_buffer.buffer.counters["recycled"])

    def _update(self, batch_size: int) -> float:
        """Take one optimizer step, and set the priorities of its batch; return the loss."""
        buffer = self.replay_buffer.buffer
        batch = self._normalized(buffer.sample(batch_size)).torch(self.device)
        td_errors = self._td_errors(batch)
        losses = functional.smooth_l1_loss(td_errors, torch.zeros_like(td_errors), reduction="none")
        loss = (batch.weights * losses).mean()
        self.policy.optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()
        buffer.update_priorities(batch.ids, td_errors)
        return float(loss.item())

    def _td_errors(self, batch: Batch) -> Tensor:
        """Return the TD error of each row of a batch of tensors; gradients flow through the online network only."""
        with torch.no_grad():
            value = self.q_net_target(batch.next_obs).max(dim=1).values
            target = batch.rewards + batch.discounts * (1 - batch.terminated) * value
        q = self.q_net(batch.obs).gather(1, batch.actions[:, None])[:, 0]
        deltas: Tensor = target - q
        return deltas

    def _normalized(self, batch: Batch) -> Batch:
        """Return the batch as a VecNormalize around the environments, if there is one, presents it."""
        env = self._vec_normalize_env
        if env is None:
            return batch
        return batch._replace(
            obs=env.normalize_obs(batch.obs),
            next_obs=env.normalize_obs(batch.next_obs),
            rewards=env.normalize_reward(batch.rewards).astype(np.float32),
        )

    def _greedy(self, observations: NDArray[Any]) -> Tensor:
        """Return the greedy action of each observation, for recycling."""
        env = self._vec_normalize_env
        seen = observations if env is None else env.normalize_obs(observations)
        with torch.no_grad():
            actions: Tensor = self.q_net(torch.as_tensor(seen, device=self.device)).argmax(dim=1)
        return actions

    def _td_errors_now(self, batch: Batch) -> Tensor:
        """Return the TD errors of a batch of arrays, for recycling."""
        with torch.no_grad():
            return self._td_errors(self._normalized(batch).torch(self.device))

    def _sample_action(self, *args: Any, **kwargs: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Choose actions, after taking the snapshots that are stored with their steps."""
        if self._recycles:
            compact = {"with_observation": False} if isinstance(self.recycle_env, SnapshotEnv) else {}
            assert self.env is not None
            self.replay_buffer.snapshots = self.env.env_method("snapshot", **compact)
        return super()._sample_action(*args, **kwargs)

    def _store_transition(self, *args: Any, **kwargs: Any) -> None:
        """Store a step of each environment, and complete the recycling round that it may have opened."""
        super()._store_transition(*args, **kwargs)
        if self._recycles:
            self.replay_buffer.buffer.recycle(self.recycle_env, self._greedy, self._td_errors_now)

    @property
    def _recycles(self) -> bool:
        return self.replay_buffer.buffer.config.replay.recycles

    def _setup_model(self) -> None:
        self.replay_buffer = self._make_replay()
        self.replay_buffer_class = None  # otherwise n_steps would be reported as ignored
        super()._setup_model()

    def _make_replay(self) -> StepReplay:
        own: dict[str, Any] = {
            "capacity": self.buffer_size,
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "method": self.method,
            "n_steps": self.n_steps,
            "discount": self.gamma,
            "seed": self.seed or 0,
        }
        if given := sorted(own.keys() & self.replay_settings.keys()):
            raise UserError(f"replay_settings must not have {given[0]!r}: it follows from the arguments of DpsrDQN")
        return StepReplay(ReplayBuffer(**own, **self.replay_settings))

    def _setup_learn(self, total_timesteps: int, *args: Any, **kwargs: Any) -> tuple[int, Any]:
        if self._recycles:
            self._ensure_recyclable()
        total, callback = super()._setup_learn(total_timesteps, *args, **kwargs)
        buffer = self.replay_buffer.buffer
        buffer.total_steps = buffer.t + max(total - self.num_timesteps, 1)
        return total, callback

    def _ensure_recyclable(self) -> None:
        """Raise UserError unless states of the environments can be stored, and re-entered in `recycle_env`."""
        if self.recycle_env is None:
            raise UserError(
                f"method {self.method!r} recycles states, which needs a second environment: pass recycle_env, "
                "or choose method='double'"
            )
        for name in ("observation_space", "action_space"):
            own, other = getattr(self, name), getattr(self.recycle_env, name, None)
            if own != other:
                raise UserError(f"recycle_env must have the {name} of env, as the policy sees it: {own} (got {other})")
        assert self.env is not None
        base = self.env.unwrapped
        for env in base.envs if isinstance(base, DummyVecEnv) else []:
            inner = env.env if isinstance(env, Monitor) else env
            if not callable(getattr(inner, "snapshot", None)):
                raise UserError(
                    f"env has no snapshot(): {type(inner).__name__}; use dpsr_apex.make_env, or choose method='double'"
                )

    def save_replay_buffer(self, path: Any) -> None:
        """Write the replay into the folder `path`, without pickle."""
        self.replay_buffer.buffer.save(Path(path))

    def load_replay_buffer(self, path: Any, truncate_last_traj: bool = True) -> None:  # noqa: ARG002
        """Read a replay that `save_replay_buffer` wrote with the same settings."""
        self.replay_buffer = self._make_replay()
        self.replay_buffer.buffer.load(Path(path))

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "recycle_env"]
