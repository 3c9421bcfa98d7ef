"""An update stays on the device: nothing inside it waits for the host, and one transfer returns its result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

from dpsr_apex.agent import torch_agent
from dpsr_apex.agent.build import build_agent
from dpsr_apex.agent.devices import DeviceError, autocast
from dpsr_apex.agent.protocol import Experience
from dpsr_apex.config import LearnerConfig

WAITS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique"}
"""Operations whose result the host must wait for: `.item()`, a condition on a tensor, sizes that depend on data."""


class Recorder(TorchDispatchMode):
    """Records every operation, and every copy between devices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self.names: list[str] = []
        self.copies: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.names.append(name)
        if name == "_to_copy" and (kwargs or {}).get("device") is not None:
            self.copies.append(kwargs["device"])
        return func(*args, **(kwargs or {}))


def experience(pixels: bool) -> Experience:
    rng = np.random.default_rng(0)
    shape = (4, 2, 40, 40) if pixels else (4, 1, 3)
    states = rng.integers(0, 256, (2, *shape)).astype(np.uint8) if pixels else rng.normal(size=(2, *shape))
    s_tm1, s_t = states if pixels else states.astype(np.float32)
    ends = np.array([True, False, False, False])
    return Experience(s_tm1, np.array([0, 1, 2, 0]), np.ones(4, np.float32), s_t, ends, np.ones(4, np.uint8))


@pytest.mark.parametrize("pixels", [True, False])
@pytest.mark.parametrize("name", ["dqn", "quantile"])
def test_an_update_never_waits_for_the_host(name: str, pixels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LearnerConfig(agent=name, device="cpu", hidden=(8,), head=8, quantiles=4)
    batch = experience(pixels)
    agent = build_agent(config, batch.s_t.shape[1:], pixels, 3, 0, threads=1)
    weights = np.ones(4, np.float32)
    agent.update(agent.stage(batch, weights), 0.01)  # creates the optimizer
    staged = agent.stage(batch, weights)
    transfers: list[torch.Tensor] = []
    to_host = torch_agent._to_host

    def transfer(tensor: torch.Tensor) -> NDArray[Any]:
        transfers.append(tensor)
        return to_host(tensor)

    monkeypatch.setattr(torch_agent, "_to_host", transfer)
    with Recorder() as recorder:
        agent.update(staged, 0.01)
    assert "convolution_backward" in recorder.names or not pixels
    assert "_fused_adam_" in recorder.names
    assert WAITS.isdisjoint(recorder.names)
    assert recorder.copies == []
    assert [tensor.shape for tensor in transfers] == [(4 + 3,)], "priorities, loss, mean value and gradient norm"


def test_waiting_would_be_noticed() -> None:
    with Recorder() as recorder:
        torch.ones(1).item()
        torch.ones(1).to("meta")
    assert not WAITS.isdisjoint(recorder.names)
    assert recorder.copies


def test_bfloat16_needs_a_gpu() -> None:
    with pytest.raises(DeviceError, match=r"learner\.precision is 'bfloat16', which needs a GPU"):
        autocast(torch.device("cpu"), "bfloat16")
