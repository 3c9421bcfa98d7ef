"""QR-DQN (Dabney et al. 2018): the distribution of the return of each action, as quantiles of equal probability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import huber_loss

from dpsr_apex.agent.torch_agent import Losses, Tensors, TorchAgent, pick
from dpsr_apex.config import LearnerConfig


class QuantileAgent(TorchAgent):
    """An agent that learns `learner.quantiles` quantiles of the return of each action.

    Priorities are |delta| of the mean values, so that they mean the same as DQN's; `learner.quantile_priority` selects
    the quantile loss instead.
    """

    def __init__(
        self,
        config: LearnerConfig,
        observation_shape: Sequence[int],
        pixels: bool,
        actions: int,
        seed: int,
        threads: int | None = None,
    ) -> None:
        self.outputs_per_action = config.quantiles
        super().__init__(config, observation_shape, pixels, actions, seed, threads)
        # The middle of each of N intervals of equal probability.
        self._tau = (torch.arange(config.quantiles, device=self.device) + 0.5) / config.quantiles

    def values(self, outputs: Tensor) -> Tensor:
        """Return the mean of each action's quantiles: (batch, actions, N) to (batch, actions)."""
        return outputs.mean(dim=2)

    def quantiles(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Return the quantiles of the return of each action, ascending, of shape (batch, actions, N)."""
        theta = self._infer(self.online, self._observations(observations))
        ascending: NDArray[np.float32] = np.sort(theta.cpu().numpy(), axis=2)
        return ascending

    def losses(self, batch: Tensors, theta_tm1: Tensor, theta_t: Tensor, target_theta_t: Tensor) -> Losses:
        """Return the quantile Huber loss, summed over the predicted quantiles and averaged over the target's.

        All theta have shape (batch, actions, N).
        """
        bootstrap = pick(target_theta_t, self.values(theta_t).argmax(dim=1))
        bootstrap = bootstrap.masked_fill(batch.terminal[:, None], 0.0)
        target = batch.r_t[:, None] + batch.discount_t[:, None] * bootstrap  # (batch, N)
        theta = pick(theta_tm1, batch.a_tm1)  # (batch, N)
        deltas = target[:, None, :] - theta[:, :, None]  # (batch, N, N of the target)
        asymmetry = (self._tau[:, None] - (deltas.detach() < 0).float()).abs()
        huber = huber_loss(deltas, torch.zeros_like(deltas), reduction="none")
        losses = (asymmetry * huber).mean(dim=2).sum(dim=1)
        q = theta.mean(dim=1)
        mean_delta = target.mean(dim=1) - q
        return Losses(losses, mean_delta if self.config.quantile_priority == "mean" else losses, q)
