"""Batches of transitions, as the user's own training loop gets them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Batch(NamedTuple):
    """Transitions, one per row: numpy arrays from `ReplayBuffer.sample`, tensors after `torch`.

    The target of a DQN is `rewards + discounts * (1 - terminated) * max_a Q(next_obs, a)`, also for n-step transitions.
    """

    obs: Any  # (batch, *observation shape), in the dtype of the observation space
    actions: Any  # (batch,), int64
    rewards: Any  # (batch,), float32; of an n-step transition: the discounted sum of its rewards
    next_obs: Any  # (batch, *observation shape): n steps after `obs`
    terminated: Any  # (batch,), float32: 1 if the episode ended; 0 for a time limit, where the value is bootstrapped
    discounts: Any  # (batch,), float32: discount ** n
    weights: Any  # (batch,), float32: importance weights, at most 1
    ids: Any  # (batch,), int64: pass them to `ReplayBuffer.update_priorities`

    def torch(self, device: Any = "cpu") -> Batch:
        """Return the batch as tensors on `device`; `ids` stay an array, because only the buffer reads them."""
        from dpsr_apex.agent.devices import to_tensors

        return Batch._make([*to_tensors(self[:-1], device), self.ids])
