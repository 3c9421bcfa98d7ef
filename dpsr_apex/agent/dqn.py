"""Double DQN: acting, TD errors, and one update of the network.

The agent sees inflated arrays and returns arrays. It never explores, never counts steps and never knows where a batch
came from: epsilon, the clock and the replay belong to others.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpsr_apex.agent.network import DuelingNetwork, is_small
from dpsr_apex.config import ConfigError, LearnerConfig

_Result = TypeVar("_Result")


class Experience(NamedTuple):
    """Inflated transitions, row by row; observations are of shape (batch, stack, *frame)."""

    s_tm1: NDArray[Any]
    a_tm1: NDArray[np.int64]
    r_t: NDArray[np.float32]  # for an n-step transition: the discounted sum of its n rewards
    s_t: NDArray[Any]
    terminal: NDArray[np.bool_]  # a time limit is not a terminal: the value of s_t still counts
    n_steps: NDArray[np.uint8]  # environment steps between s_tm1 and s_t


class Staged(NamedTuple):
    """The same on its way through the agent: observations on the device, and Q_target(s_t) begun."""

    experience: Experience
    s_tm1: Tensor
    s_t: Tensor
    q_target: Callable[[], Tensor]  # waits for it
    target_version: int  # of the network that Q_target is of


class Update(NamedTuple):
    """What one update saw, before it moved the weights."""

    td_errors: NDArray[np.float64]  # |delta| of each row
    loss: float  # weighted Huber loss, mean over the batch
    mean_q: float  # of the actions taken
    gradient_norm: float  # before clipping


class DeviceError(ConfigError):
    """The device that was asked for is not there."""


class DqnAgent:
    """A dueling double DQN with its target network and its optimizer.

    The same seed gives the same weights, and the same calls give the same bits on a CPU with the same `threads`.
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
        threads = threads or (1 if is_small(observation_shape, pixels) else usable_cores())
        self.device = choose_device(config.device)
        # Two networks at a time with half of the threads each wait less for each other than all threads on one do.
        self._aside = ThreadPoolExecutor(1) if threads > 1 and self.device.type == "cpu" else None
        set_threads((threads + 1) // 2 if self._aside else threads)
        keep_freed_memory()
        self._config = config
        self._target_version = 0
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self._online, self._target = (
                DuelingNetwork(
                    observation_shape, pixels=pixels, actions=actions, hidden=config.hidden, head=config.head
                ).to(self.device)
                for _ in range(2)
            )
        self.sync_target()
        self._parameters = list(self._online.parameters())
        # Fused: one pass over the weights; measured four to five times as fast as the default on a CPU.
        self._optimizer = torch.optim.Adam(self._parameters, lr=config.learning_rate, fused=True)
        self._state = self._name_state()

    def stage(self, experience: Experience) -> Staged:
        """Make ready for an update; another thread may do this while the agent computes.

        Q_target(s_t) stays right until the target network changes, so it is computed ahead; the version tells.
        """
        version = self._target_version  # read before the weights are: a change from here on is noticed
        s_tm1, s_t = self._tensor(experience.s_tm1), self._tensor(experience.s_t)
        return Staged(experience, s_tm1, s_t, self._begin(partial(_infer, self._target, s_t)), version)

    def q_values(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """Q(s, a) of shape (batch, actions) for raw observations of shape (batch, stack, *frame)."""
        return _array(_infer(self._online, self._tensor(observations)))

    def act(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """The greedy action in each observation; the lowest of equals."""
        return _greedy(self.q_values(observations))

    def td_errors(self, experience: Experience) -> NDArray[np.float64]:
        """|delta| of each row by the present networks; nothing is learnt and nothing changes."""
        staged = self.stage(experience)
        q_t = self._begin(partial(_infer, self._online, staged.s_t))
        q_tm1 = _array(_infer(self._online, staged.s_tm1))
        return np.abs(self._target_values(staged, q_t()) - _of_actions(q_tm1, experience.a_tm1))

    def update(self, experience: Experience | Staged, weights: NDArray[np.floating[Any]]) -> Update:
        """One step of Adam down the importance-weighted Huber loss; `weights` holds one number for each row.

        FloatingPointError when the loss or its gradient is not finite; the weights are untouched then.
        """
        staged = experience if isinstance(experience, Staged) else self.stage(experience)
        actions = staged.experience.a_tm1
        q_t = self._begin(partial(_infer, self._online, staged.s_t))
        q_tm1 = self._online(staged.s_tm1)
        q_taken = _of_actions(_array(q_tm1), actions)
        deltas = self._target_values(staged, q_t()) - q_taken
        loss = float(np.mean(weights * huber(deltas)))
        _require_finite("loss", loss, deltas)

        self._optimizer.zero_grad(set_to_none=True)
        q_tm1.backward(self._gradient_of_q(q_tm1, actions, weights * deltas.clip(-1, 1)))
        gradient_norm = self._clip_gradients(deltas)
        self._optimizer.step()
        return Update(np.abs(deltas), loss, float(q_taken.mean()), gradient_norm)

    def sync_target(self) -> None:
        """Make the target network equal to the online network."""
        self._target.load_state_dict(self._online.state_dict())
        self._target_version += 1

    def save(self) -> dict[str, NDArray[Any]]:
        """Copies of both networks and of Adam's state, by name; with `load` an agent continues bit for bit."""
        return {name: np.array(_array(tensor), order="C") for name, tensor in self._state.items()}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `save` gave; ValueError, with nothing changed, when it is of another network."""
        _copy_into(self._state, arrays)
        self._target_version += 1

    def weights(self, network: Literal["online", "target"]) -> dict[str, NDArray[Any]]:
        """Copies of one network's weights, by name."""
        return {name: np.array(_array(tensor), order="C") for name, tensor in self._weights_of(network).items()}

    def load_weights(self, network: Literal["online", "target"], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `weights` gave; ValueError, with nothing changed, when it is of another network."""
        _copy_into(self._weights_of(network), arrays)
        self._target_version += 1

    def _weights_of(self, network: Literal["online", "target"]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self._state.items() if name.startswith(network)}

    def _name_state(self) -> dict[str, Tensor]:
        """Every tensor that the agent's future depends on; all are changed in place, so the names stay valid."""
        state: dict[str, Tensor] = {}
        for network, name in ((self._online, "online"), (self._target, "target")):
            state |= {f"{name}.{key}": tensor for key, tensor in network.state_dict().items()}
        for name, parameter in self._online.named_parameters():
            # Made now and not at Adam's first step, so that there is one way to save and load before and after it.
            # The moments keep the parameter's memory format: the fused kernel walks them side by side.
            moments = {
                "step": torch.zeros((), dtype=torch.float32, device=self.device),
                "exp_avg": torch.zeros_like(parameter, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
            }
            self._optimizer.state[parameter] = moments
            state |= {f"adam.{name}.{key}": tensor for key, tensor in moments.items()}
        return state

    def _begin(self, work: Callable[[], _Result]) -> Callable[[], _Result]:
        """Have it done beside what this thread goes on with, or else when its result is asked for."""
        if self._aside is None:
            return work
        begun = self._aside.submit(work)
        # Who asks for what was not even started, because the other thread is busy, does it instead of waiting.
        return lambda: work() if begun.cancel() else begun.result()

    def _tensor(self, observations: NDArray[Any]) -> Tensor:
        if self.device.type == "cuda":  # from pinned memory the copy runs beside the computation
            tensor = torch.from_numpy(observations).pin_memory().to(self.device, non_blocking=True)
        else:
            tensor = torch.tensor(observations)
        if tensor.ndim != 4:
            return tensor
        # Channels last. Stacking the channels takes half as long as torch's own conversion does.
        return torch.stack(tensor.unbind(1), dim=-1).permute(0, 3, 1, 2)

    def _target_values(self, staged: Staged, q_t: Tensor) -> NDArray[np.float64]:
        """Reward + discount^n (1 - terminal) Q_target(s', argmax Q(s')), each row with its own n; `q_t` is Q(s')."""
        is_current = staged.target_version == self._target_version
        q_target = staged.q_target() if is_current else _infer(self._target, staged.s_t)
        bootstrap = _of_actions(_array(q_target), _greedy(_array(q_t)))
        _, _, r_t, _, terminal, n_steps = staged.experience
        return r_t + self._config.discount ** n_steps.astype(np.float64) * np.where(terminal, 0.0, bootstrap)

    def _gradient_of_q(self, q_tm1: Tensor, actions: NDArray[np.int64], descent: NDArray[np.floating[Any]]) -> Tensor:
        """The loss's derivative by Q: only the actions taken have one, and Huber's is the clipped TD error."""
        gradient = np.zeros(tuple(q_tm1.shape), dtype=np.float32)
        gradient[np.arange(len(actions)), actions] = -descent / len(actions)
        return torch.from_numpy(gradient).to(self.device)

    def _clip_gradients(self, deltas: NDArray[np.float64]) -> float:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = float(nn.utils.get_total_norm(gradients))
        _require_finite("gradient", norm, deltas)
        if norm > self._config.gradient_clip:
            for gradient in gradients:
                gradient.mul_(self._config.gradient_clip / norm)
        return norm


def _infer(network: DuelingNetwork, observations: Tensor) -> Tensor:
    """Q-values without a trace for gradients."""
    with torch.inference_mode():
        q: Tensor = network(observations)
        return q


def _copy_into(state: Mapping[str, Tensor], arrays: Mapping[str, NDArray[Any]]) -> None:
    for name in sorted(state.keys() | arrays.keys()):
        expected = tuple(state[name].shape) if name in state else "nothing"
        found = arrays[name].shape if name in arrays else "nothing"
        if expected != found:
            raise ValueError(f"these weights are of another network: {name} is {found}, expected {expected}")
    for name, tensor in state.items():
        tensor.copy_(torch.tensor(arrays[name]))


def huber(deltas: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half the square up to an error of 1, and a line from there on."""
    errors = np.abs(deltas)
    near = np.minimum(errors, 1.0)
    return near * (errors - 0.5 * near)


def choose_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device to compute on; `auto` takes a GPU where there is one."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise DeviceError("learner.device = 'cuda', but torch finds no GPU here; use 'auto' or 'cpu'")
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


def set_threads(threads: int) -> None:
    """Let torch use so many threads in this process."""
    torch.set_num_threads(threads)
    # Torch takes this number only before its first parallel work; later it would not matter, nothing here uses it.
    with contextlib.suppress(RuntimeError):
        torch.set_num_interop_threads(1)


def keep_freed_memory() -> None:
    """Have the allocator keep what it gets back, where it is glibc's.

    It would else return the large tensors of every update to the system and fault them in again, which took a tenth
    of an update's time.
    """
    trim_threshold, mmap_threshold = -1, -3  # their numbers in malloc.h
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(mmap_threshold, 32 * 2**20)  # the greatest that it takes
        mallopt(trim_threshold, 512 * 2**20)


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def _greedy(q: NDArray[np.float32]) -> NDArray[np.int64]:
    actions: NDArray[np.int64] = np.argmax(q, axis=1)
    return actions


def _of_actions(q: NDArray[np.float32], actions: NDArray[np.int64]) -> NDArray[np.float64]:
    return q[np.arange(len(actions)), actions].astype(np.float64)


def _require_finite(what: str, value: float, deltas: NDArray[np.float64]) -> None:
    if not math.isfinite(value):
        rows = np.flatnonzero(~np.isfinite(deltas)).tolist()
        raise FloatingPointError(
            f"the {what} of an update is {value}; TD errors that are not finite: rows {rows} of {len(deltas)}. "
            "The weights were not changed. Look at the rewards, or lower learner.learning_rate"
        )
