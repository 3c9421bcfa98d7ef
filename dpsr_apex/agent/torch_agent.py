"""The part of an agent that does not depend on its loss: networks, optimizer, staging, one update, saving and loading.

Everything inside an update stays on the device; its result returns in one transfer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpsr_apex.agent.devices import (
    autocast,
    choose_device,
    keep_freed_memory,
    set_threads,
    share_with_device,
    to_device,
)
from dpsr_apex.agent.networks import build_network, is_small
from dpsr_apex.agent.protocol import Arrays, Experience, NetworkName, SharedExperience, Update
from dpsr_apex.config import LearnerConfig
from dpsr_apex.machine import usable_cores

_Result = TypeVar("_Result")


class Tensors(NamedTuple):
    """A batch of experience on the device."""

    s_tm1: Tensor
    a_tm1: Tensor  # int64
    r_t: Tensor
    s_t: Tensor
    terminal: Tensor  # bool
    discount_t: Tensor  # discount ** n_steps


class Staged(NamedTuple):
    """A batch prepared for an update: on the device, with the target network's output for s_t being computed."""

    batch: Tensors
    weights: Tensor  # importance weights
    target_t: Callable[[], Tensor]  # waits for the result
    target_version: int  # version of the target network that computes it


class Losses(NamedTuple):
    """The result of an agent's loss function, one number per row of the batch."""

    losses: Tensor  # to be weighted, averaged and differentiated
    deltas: Tensor  # TD errors, whose absolute values are the priorities
    q: Tensor  # value of the action taken


class TorchAgent(ABC):
    """An agent with an online and a target network, trained with Adam on the weighted mean of `losses`.

    Reproducible: equal seeds yield equal weights, and on a CPU equal calls with equal `threads` yield identical bits.
    """

    outputs_per_action = 1
    """Numbers that the network computes for each action; with more than one, outputs have a third dimension."""

    def __init__(
        self,
        config: LearnerConfig,
        observation_shape: Sequence[int],
        pixels: bool,
        actions: int,
        seed: int,
        threads: int | None = None,
    ) -> None:
        threads = threads or (1 if is_small(observation_shape, pixels) else usable_cores())
        self.config = config
        self.device = choose_device(config.device)
        # Two networks in parallel, each with half of the threads, synchronize less than one network with all threads.
        self._second_thread = ThreadPoolExecutor(1) if threads > 1 and self.device.type == "cpu" else None
        set_threads((threads + 1) // 2 if self._second_thread else threads)
        keep_freed_memory()
        self._autocast = autocast(self.device, config.precision)
        self._actions = actions
        self._target_version = 0
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.online, self.target = (
                build_network(config, observation_shape, pixels, actions, self.outputs_per_action).to(self.device)
                for _ in range(2)
            )
        self._parameters = list(self.online.parameters())
        self._networks = {
            f"{name}.{key}": tensor  # only changed in place, so that the mapping stays valid
            for name, network in (("online", self.online), ("target", self.target))
            for key, tensor in network.state_dict().items()
        }
        self.sync_target()
        self._forward = torch.compile(self._compute) if config.compile else self._compute

    @abstractmethod
    def losses(self, batch: Tensors, out_tm1: Tensor, out_t: Tensor, target_t: Tensor) -> Losses:
        """Return loss and TD error of each row, from the outputs of the networks.

        `out_tm1` is of the online network for s_tm1, `target_t` of the target network for s_t. `out_t`, from which the
        greedy action in s_t is chosen, is of the online network, or of the target network with `learner.double` off.
        """

    def values(self, outputs: Tensor) -> Tensor:
        """Return the value of each action, of shape (batch, actions), from a network's outputs."""
        return outputs

    def act(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """Return the greedy action for each observation; ties go to the lowest index."""
        actions: NDArray[np.int64] = np.argmax(self.q_values(observations), axis=1)
        return actions

    def q_values(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Return Q(s, a) of shape (batch, actions) for raw observations of shape (batch, stack, *frame)."""
        return _to_host(self.values(self._infer(self.online, self._observations(observations))))

    def saliency(self, observation: NDArray[Any], action: int) -> NDArray[np.float32]:
        """Return |dQ(s, a) / ds| for one raw observation of shape (stack, *frame), in its shape."""
        raw = torch.from_numpy(observation[np.newaxis].astype(np.float32)).to(self.device).requires_grad_()
        # A copy, because a network may scale its input in place.
        values = self.values(self._compute(self.online, raw.clone()))
        (gradient,) = torch.autograd.grad(values[0, action], raw)
        saliency: NDArray[np.float32] = _to_host(gradient[0].abs())
        return saliency

    def td_errors(self, experience: Experience) -> NDArray[np.float64]:
        """Return |delta| of each row with the current networks, without an update."""
        batch = self._tensors(experience)
        target_t = self._submit(partial(self._infer, self.target, batch.s_t))
        out_t = self._submit(partial(self._infer, self.online, batch.s_t)) if self.config.double else target_t
        out_tm1 = self._infer(self.online, batch.s_tm1)
        with torch.inference_mode():
            deltas = self.losses(batch, out_tm1, out_t(), target_t()).deltas
        return _to_host(deltas.abs()).astype(np.float64)

    def stage(self, experience: Experience | SharedExperience, weights: NDArray[np.floating[Any]]) -> Staged:
        """Prepare a batch for an update; may be called from another thread while the agent computes.

        The target network's output is computed ahead of time. It is valid until `target_version` changes.
        """
        version = self._target_version  # read before the weights, so that any later change is detected
        batch = self._tensors(experience)
        importance = to_device(weights.astype(np.float32), self.device)
        return Staged(batch, importance, self._submit(partial(self._infer, self.target, batch.s_t)), version)

    def update(self, staged: Staged, learning_rate: float) -> Update:
        """Take one Adam step with this learning rate on the weighted mean of `losses`.

        Raise FloatingPointError, without changing the weights, if the loss or its gradient is not finite.
        """
        batch = staged.batch
        is_current = staged.target_version == self._target_version
        target_t = staged.target_t if is_current else partial(self._infer, self.target, batch.s_t)
        out_t = self._submit(partial(self._infer, self.online, batch.s_t)) if self.config.double else target_t
        with self._autocast:
            out_tm1 = self._forward(self.online, batch.s_tm1)
        losses, deltas, q = self.losses(batch, out_tm1, out_t(), target_t())
        loss = (staged.weights * losses).mean()

        self._optimizer.param_groups[0]["lr"] = learning_rate
        for parameter in self._parameters:  # as zero_grad does, without its overhead, which a small network notices
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        norm = nn.utils.clip_grad_norm_(self._parameters, self.config.gradient_clip)
        self._optimizer.found_inf = (~torch.isfinite(norm + loss.detach())).float()  # type: ignore[attr-defined]
        self._optimizer.step()
        return _report(deltas.detach(), loss.detach(), q.detach().mean(), norm)

    def rows_not_finite(self, staged: Staged) -> list[int]:
        """Return the rows of a staged batch because of which its loss, or the gradient of it, is not finite.

        Halves of the batch are tried, then halves of those. It takes longer than an update, and is needed after one has
        failed.
        """
        target_t = self._infer(self.target, staged.batch.s_t)

        def search(rows: Tensor) -> list[int]:
            if self._is_finite(Tensors(*(column[rows] for column in staged.batch)), target_t[rows]):
                return []
            halves = rows.chunk(2) if len(rows) > 1 else ()
            found = [row for half in halves for row in search(half)]
            return found or [int(row) for row in rows]  # only their sum is not finite, or there is one row

        return search(torch.arange(len(staged.weights), device=self.device))

    def sync_target(self) -> None:
        """Copy the online network's weights to the target network."""
        self.target.load_state_dict(self.online.state_dict())
        self._target_version += 1

    def save(self) -> dict[str, NDArray[Any]]:
        """Return copies of both networks and of Adam's state by name; after `load` an agent continues bit for bit."""
        return _copies(self._networks | self._moments)

    def load(self, arrays: Arrays) -> None:
        """Load arrays returned by `save`; raise ValueError, without changing anything, if the networks differ."""
        _copy_into(self._networks | self._moments, arrays)
        self._target_version += 1

    def weights(self, network: NetworkName) -> dict[str, NDArray[Any]]:
        """Return copies of one network's weights, named as in its state dict."""
        return _copies(self._weights_of(network))

    def load_weights(self, network: NetworkName, arrays: Arrays) -> None:
        """Load arrays returned by `weights`; raise ValueError, without changing anything, if the networks differ.

        The names may begin with that of the network, as those of `save` do.
        """
        own = self._weights_of(network)
        if own.keys() != arrays.keys():
            arrays = {name.removeprefix(f"{network}."): array for name, array in arrays.items()}
        _copy_into(own, arrays)
        self._target_version += 1

    def _weights_of(self, network: NetworkName) -> dict[str, Tensor]:
        prefix = f"{network}."
        own = (name for name in self._networks if name.startswith(prefix))
        return {name.removeprefix(prefix): self._networks[name] for name in own}

    @cached_property
    def _optimizer(self) -> torch.optim.Adam:
        """Adam with its moments; created when it is needed, because that takes two seconds, and actors never do."""
        # Fused: one pass over the weights, four to five times as fast as the default on a CPU. It skips the step where
        # `found_inf` is 1, without asking the host.
        optimizer = torch.optim.Adam(self._parameters, eps=self.config.adam_epsilon, fused=True)
        for parameter in self._parameters:
            # The moments must have the parameter's memory format, because the fused kernel iterates over both.
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=self.device),
                "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
            }
        return optimizer

    @property
    def _moments(self) -> dict[str, Tensor]:
        """Adam's state by name; it exists before the first step, so that saving and loading work before it too."""
        return {
            f"adam.{name}.{key}": tensor
            for name, parameter in self.online.named_parameters()
            for key, tensor in self._optimizer.state[parameter].items()
        }

    def _is_finite(self, batch: Tensors, target_t: Tensor) -> bool:
        """Whether the losses of these rows and their gradient are finite; the weights are not changed."""
        out_t = self._infer(self.online, batch.s_t) if self.config.double else target_t
        with self._autocast:
            out_tm1 = self._compute(self.online, batch.s_tm1)
        loss = self.losses(batch, out_tm1, out_t, target_t).losses.mean()
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        norm = nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None])
        return bool(torch.isfinite(norm + loss.detach()))

    def _submit(self, work: Callable[[], _Result]) -> Callable[[], _Result]:
        """Run `work` in the second thread if there is one; return a function that waits for its result."""
        if self._second_thread is None:
            return work
        future = self._second_thread.submit(work)
        # If the second thread is busy and has not started the work yet, do it here instead of waiting.
        return lambda: work() if future.cancel() else future.result()

    def _tensors(self, experience: Experience | SharedExperience) -> Tensors:
        _, a_tm1, r_t, _, terminal, n_steps = experience[-6:]
        discount_t = self.config.discount ** n_steps.astype(np.float32)
        small = (to_device(column, self.device) for column in (a_tm1, r_t, terminal, discount_t))
        actions, rewards, ends, discounts = small
        if isinstance(experience, SharedExperience):
            frames = share_with_device(experience.frames, self.device)  # each is uploaded once
            states = [_gather(frames, to_device(index, self.device)) for index in (experience.s_tm1, experience.s_t)]
        else:
            states = [self._observations(array) for array in (experience.s_tm1, experience.s_t)]
        return Tensors(states[0], actions, rewards, states[1], ends, discounts)

    def _observations(self, observations: NDArray[Any]) -> Tensor:
        tensor = to_device(observations, self.device)
        return _channels_last(tensor.unbind(1)) if tensor.ndim == 4 else tensor

    def _infer(self, network: nn.Module, observations: Tensor) -> Tensor:
        """Compute a network's outputs without gradients."""
        with torch.inference_mode(), self._autocast:
            return self._forward(network, observations)

    def _compute(self, network: nn.Module, observations: Tensor) -> Tensor:
        """Return outputs of shape (batch, actions), or (batch, actions, outputs_per_action) if that is above 1."""
        outputs: Tensor = network(observations).float()
        return outputs if self.outputs_per_action == 1 else outputs.view(-1, self._actions, self.outputs_per_action)


def _gather(frames: Tensor, index: Tensor) -> Tensor:
    """Return the observations with these frames: in channels last if the frames have rows and columns."""
    if frames.ndim != 3:
        return frames[index]
    return _channels_last([frames[column] for column in index.unbind(1)])


def _channels_last(channels: Sequence[Tensor]) -> Tensor:
    """Stack channels of shape (batch, rows, columns); this takes half as long as torch's own conversion."""
    return torch.stack(tuple(channels), dim=-1).permute(0, 3, 1, 2)


def pick(outputs: Tensor, actions: Tensor) -> Tensor:
    """Return the outputs of one action per row: (batch, actions, ...) to (batch, ...)."""
    return outputs[torch.arange(len(actions), device=actions.device), actions]


def _report(deltas: Tensor, loss: Tensor, mean_q: Tensor, norm: Tensor) -> Update:
    """Transfer the results of an update to the host, all at once; raise FloatingPointError if they are not finite."""
    numbers = _to_host(torch.cat([deltas, torch.stack([loss, mean_q, norm])])).astype(np.float64)
    loss_value, q_value, norm_value = numbers[-3:].tolist()
    for name, value in (("loss", loss_value), ("gradient", norm_value)):
        if not math.isfinite(value):
            rows = np.flatnonzero(~np.isfinite(numbers[:-3])).tolist()
            raise FloatingPointError(
                f"the {name} of an update is {value} (TD errors are not finite in rows {rows} of {len(deltas)}); "
                "the weights were not changed. Check the rewards or lower learner.learning_rate"
            )
    return Update(np.abs(numbers[:-3]), loss_value, q_value, norm_value)


def _to_host(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: np.array(_to_host(tensor), order="C") for name, tensor in tensors.items()}


def _copy_into(state: Mapping[str, Tensor], arrays: Arrays) -> None:
    for name in sorted(state.keys() | arrays.keys()):
        expected = tuple(state[name].shape) if name in state else "missing"
        found = arrays[name].shape if name in arrays else "missing"
        if expected != found:
            raise ValueError(f"these weights are from a different network: {name} is {found}, expected {expected}")
    for name, tensor in state.items():
        tensor.copy_(torch.tensor(arrays[name]))
