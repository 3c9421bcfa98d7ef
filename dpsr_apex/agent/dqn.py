"""DQN, by default double and dueling: the TD error of the paper, and its Huber loss."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import huber_loss

from dpsr_apex.agent.torch_agent import Losses, Tensors, TorchAgent, pick


class DqnAgent(TorchAgent):
    """An agent that learns the expected return of each action."""

    def losses(self, batch: Tensors, q_tm1: Tensor, q_t: Tensor, target_q_t: Tensor) -> Losses:
        """Return the Huber loss of delta = r + discount^n (1 - terminal) Q_target(s', argmax_a Q(s', a)) - Q(s, a).

        All Q have shape (batch, actions); `q_t` is of the online network, or of the target network if not double.
        """
        bootstrap = pick(target_q_t, q_t.argmax(dim=1))
        target = batch.r_t + batch.discount_t * bootstrap.masked_fill(batch.terminal, 0.0)
        q = pick(q_tm1, batch.a_tm1)
        return Losses(huber_loss(q, target, reduction="none"), target - q, q)
