"""Agents and networks by name, and users' own from files outside the package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dpsr_apex.agent.build import build_agent
from dpsr_apex.agent.dqn import DqnAgent
from dpsr_apex.agent.networks import build_network
from dpsr_apex.agent.quantile import QuantileAgent
from dpsr_apex.agents import AGENTS, NETWORKS
from dpsr_apex.config import Config, ConfigError, LearnerConfig, find_faults

CONFIG = LearnerConfig(device="cpu", hidden=(8,), head=8)
VECTOR, FRAMES = (2, 3), (4, 84, 84)

USERS_FILE = """
import torch
from torch import nn

from dpsr_apex.agent.dqn import DqnAgent
from dpsr_apex.agent.torch_agent import Losses, pick


class Tiny(nn.Module):
    def __init__(self, observation_shape, actions, units=4):
        super().__init__()
        size = observation_shape[0] * observation_shape[1]
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(size, units), nn.ReLU(), nn.Linear(units, actions))

    def forward(self, observations):
        return self.layers(observations)


class WrongShape(Tiny):
    def forward(self, observations):
        return super().forward(observations)[:, :1]


class NotANumber(Tiny):
    def forward(self, observations):
        return super().forward(observations) * float("nan")


class NoParameters(nn.Module):
    def __init__(self, observation_shape, actions):
        super().__init__()
        self.actions = actions

    def forward(self, observations):
        return torch.zeros(len(observations), self.actions)


class Fails(Tiny):
    def forward(self, observations):
        return self.layers(observations.flatten(1)[:, :1])


class NotAModule:
    pass


class Incomplete:
    act = q_values = td_errors = stage = update = sync_target = weights = load_weights = save = load = None


class Pessimist(DqnAgent):
    def losses(self, batch, q_tm1, q_t, target_q_t):
        losses, deltas, q = super().losses(batch, q_tm1, q_t, target_q_t)
        return Losses(losses, deltas - 1.0, q)
"""


@pytest.fixture
def _users_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "users_file.py").write_text(USERS_FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("users_file", None)


def test_every_agent_of_the_table_can_be_built() -> None:
    built = {name: type(build_agent(replace(CONFIG, agent=name), VECTOR, False, 3, 0, 1)) for name in AGENTS}
    assert built == {"dqn": DqnAgent, "quantile": QuantileAgent}


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_of_the_table_can_be_built(name: str, dueling: bool) -> None:
    shape = VECTOR if name == "mlp" else (2, 10, 10) if name == "small" else FRAMES
    config = replace(CONFIG, network=name, dueling=dueling)
    agent = DqnAgent(config, shape, name != "mlp", 3, 0, threads=1)
    states = np.zeros((2, *shape), dtype=np.float32 if name == "mlp" else np.uint8)
    assert agent.q_values(states).shape == (2, 3)
    assert ("value.0.weight" in agent.weights("online")) == dueling


def test_pooling_shrinks_the_network() -> None:
    nature, pooled = (build_network(replace(CONFIG, network=name), FRAMES, True, 4, 1) for name in ("nature", "pooled"))
    assert sum(map(torch.numel, pooled.parameters())) < sum(map(torch.numel, nature.parameters()))


@pytest.mark.parametrize(("name", "shape", "pixels"), [("mlp", FRAMES, True), ("nature", VECTOR, False)])
def test_a_network_must_fit_the_observations(name: str, shape: tuple[int, ...], pixels: bool) -> None:
    with pytest.raises(ConfigError, match=r"learner\.network must fit the observations"):
        build_network(replace(CONFIG, network=name), shape, pixels, 3, 1)


@pytest.mark.usefixtures("_users_file")
def test_a_users_network_is_built_with_its_arguments_and_trained() -> None:
    config = replace(CONFIG, network="users_file:Tiny", network_arguments={"units": 7})
    for name, outputs in (("dqn", 3), ("quantile", 3 * CONFIG.quantiles)):
        agent = build_agent(replace(config, agent=name), VECTOR, False, 3, 0, 1)
        weights = agent.weights("online")
        assert weights["layers.1.weight"].shape == (7, 6)
        assert weights["layers.3.weight"].shape == (outputs, 7)


@pytest.mark.usefixtures("_users_file")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("WrongShape", r"must map \(2, \.\.\.\) observations to \(2, 3\) \(got \(2, 1\)\)"),
        ("NotANumber", "returns NaN or infinite values on its first batch"),
        ("NoParameters", "has no parameters to train"),
        ("Fails", r"fails on a batch of shape \(2, 2, 3\): "),
        ("NotAModule", r"is not a torch\.nn\.Module"),
        ("Missing", "cannot be built: users_file has no class Missing"),
    ],
)
def test_a_broken_network_is_refused_in_one_line(name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"learner\.network = 'users_file:{name}' {problem}") as refusal:
        build_agent(replace(CONFIG, network=f"users_file:{name}"), VECTOR, False, 3, 0, 1)
    assert "\n" not in str(refusal.value)


@pytest.mark.usefixtures("_users_file")
def test_wrong_arguments_of_a_network_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot be built: .*unexpected keyword argument 'unit'"):
        build_agent(replace(CONFIG, network="users_file:Tiny", network_arguments={"unit": 7}), VECTOR, False, 3, 0, 1)


@pytest.mark.usefixtures("_users_file")
def test_a_users_agent_only_defines_its_loss() -> None:
    agent = build_agent(replace(CONFIG, agent="users_file:Pessimist"), VECTOR, False, 3, 0, 1)
    assert isinstance(agent, DqnAgent)
    assert type(agent).__name__ == "Pessimist"


@pytest.mark.usefixtures("_users_file")
def test_what_is_not_an_agent_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.agent = 'users_file:NotAModule' is not an agent: it has no act, "):
        build_agent(replace(CONFIG, agent="users_file:NotAModule"), VECTOR, False, 3, 0, 1)


@pytest.mark.usefixtures("_users_file")
def test_an_agent_must_have_every_method_of_the_protocol() -> None:
    with pytest.raises(ConfigError, match=r"is not an agent: it has no rows_not_finite$"):
        build_agent(replace(CONFIG, agent="users_file:Incomplete"), VECTOR, False, 3, 0, 1)


@pytest.mark.parametrize("name", ["dqnn", "module", "a:b:c", ""])
def test_an_unknown_name_is_a_fault_of_the_config(name: str) -> None:
    faults = find_faults(Config(learner=replace(CONFIG, agent=name)))
    assert [fault.key for fault in faults] == ["learner.agent"]
    assert "one of 'dqn', 'quantile'" in str(faults[0])
