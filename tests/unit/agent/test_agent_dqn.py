"""The agent against hand-written oracles: numpy for the targets, naive autograd for the update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the conventional name)
from numpy.typing import NDArray
from torch import Tensor, nn

from dpsr_apex.agent.devices import DeviceError, choose_device, set_threads
from dpsr_apex.agent.dqn import DqnAgent
from dpsr_apex.agent.networks import build_network
from dpsr_apex.agent.protocol import Experience, Update
from dpsr_apex.config import LearnerConfig

CONFIG = LearnerConfig(hidden=(16,), head=8, discount=0.9, device="cpu")
LEARNING_RATE = 0.01
VECTOR, PIXELS, PLANES = (2, 3), (4, 84, 84), (2, 3, 10, 10)
ACTIONS = 3


def new_agent(config: LearnerConfig = CONFIG, shape: tuple[int, ...] = VECTOR, seed: int = 0) -> DqnAgent:
    return DqnAgent(config, shape, len(shape) >= 3, ACTIONS, seed, threads=1)


def observations(rng: np.random.Generator, batch: int, shape: tuple[int, ...]) -> NDArray[Any]:
    if len(shape) >= 3:
        return rng.integers(0, 256, (batch, *shape), dtype=np.uint8)
    return rng.normal(size=(batch, *shape)).astype(np.float32)


def experience(batch: int = 8, shape: tuple[int, ...] = VECTOR, seed: int = 0, scale: float = 2.0) -> Experience:
    rng = np.random.default_rng(seed)
    return Experience(
        s_tm1=observations(rng, batch, shape),
        a_tm1=rng.integers(0, ACTIONS, batch),
        r_t=(scale * rng.normal(size=batch)).astype(np.float32),
        s_t=observations(rng, batch, shape),
        terminal=rng.random(batch) < 0.4,
        n_steps=rng.integers(1, 4, batch).astype(np.uint8),
    )


def weights(batch: int = 8) -> NDArray[np.float32]:
    return np.random.default_rng(1).uniform(0.1, 1.0, batch).astype(np.float32)


def update(
    agent: DqnAgent,
    batch: Experience,
    importance: NDArray[np.float32] | None = None,
    learning_rate: float = LEARNING_RATE,
) -> Update:
    return agent.update(agent.stage(batch, weights() if importance is None else importance), learning_rate)


def diverged(agent: DqnAgent) -> DqnAgent:
    """Train the agent until its two networks differ, and return it."""
    for seed in range(5):
        update(agent, experience(seed=seed))
    return agent


def networks(agent: DqnAgent, shape: tuple[int, ...] = VECTOR) -> tuple[nn.Module, nn.Module]:
    """Rebuild copies of the agent's online and target networks from `save()`."""
    saved = agent.save()
    copies = []
    for name in ("online.", "target."):
        copy = build_network(CONFIG, shape, len(shape) >= 3, ACTIONS, 1)
        state = {key.removeprefix(name): torch.tensor(saved[key]) for key in saved if key.startswith(name)}
        copy.load_state_dict(state)
        copies.append(copy)
    return copies[0], copies[1]


def naive_deltas(agent: DqnAgent, batch: Experience) -> list[float]:
    """Compute the TD errors one row at a time."""
    online, target = networks(agent)
    deltas = []
    for row in range(len(batch.a_tm1)):
        s_tm1, s_t = (torch.tensor(states[row : row + 1]) for states in (batch.s_tm1, batch.s_t))
        value = float(batch.r_t[row])
        if not batch.terminal[row]:
            best = int(online(s_t)[0].argmax())
            value += CONFIG.discount ** int(batch.n_steps[row]) * target(s_t)[0, best].item()
        deltas.append(value - online(s_tm1)[0, batch.a_tm1[row]].item())
    return deltas


def naive_loss(online: nn.Module, target: nn.Module, batch: Experience, importance: NDArray[np.float32]) -> Tensor:
    """Compute the textbook loss, for autograd to differentiate."""
    s_tm1, s_t, r_t = torch.tensor(batch.s_tm1), torch.tensor(batch.s_t), torch.tensor(batch.r_t)
    actions = torch.tensor(batch.a_tm1)[:, None]
    with torch.no_grad():
        bootstrap = target(s_t).gather(1, online(s_t).argmax(1, keepdim=True))[:, 0]
        discount = CONFIG.discount ** torch.tensor(batch.n_steps).float()
        values = r_t + discount * (~torch.tensor(batch.terminal)) * bootstrap
    q = online(s_tm1).gather(1, actions)[:, 0]
    return (torch.tensor(importance) * F.huber_loss(q, values, reduction="none")).mean()


def gradient_of(agent: DqnAgent, batch: Experience, importance: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Update a new agent once and return the gradient: after one update, Adam's first moment is a tenth of it."""
    update(agent, batch, importance)
    return {name: 10 * array for name, array in agent.save().items() if name.endswith("exp_avg")}


def assert_same(left: dict[str, NDArray[Any]], right: dict[str, NDArray[Any]]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_td_errors_match_the_oracle() -> None:
    agent, batch = diverged(new_agent()), experience(batch=40, seed=9)
    assert set(batch.n_steps) == {1, 2, 3}
    assert set(batch.terminal) == {True, False}
    np.testing.assert_allclose(agent.td_errors(batch), np.abs(naive_deltas(agent, batch)), rtol=1e-5, atol=1e-6)
    assert agent.td_errors(batch).dtype == np.float64


def test_the_batch_distinguishes_double_dqn_from_dqn() -> None:
    agent, batch = diverged(new_agent()), experience(batch=40, seed=9)
    online, target = (net(torch.tensor(batch.s_t)).argmax(1) for net in networks(agent))
    assert (online != target).any(), "on this batch the oracle cannot distinguish double DQN from DQN"


def test_terminals_do_not_bootstrap_and_truncations_do() -> None:
    agent, batch = new_agent(), experience(batch=4)
    ended = agent.td_errors(batch._replace(terminal=np.ones(4, dtype=np.bool_)))
    truncated = agent.td_errors(batch._replace(terminal=np.zeros(4, dtype=np.bool_)))
    q = agent.q_values(batch.s_tm1)[np.arange(4), batch.a_tm1]
    np.testing.assert_allclose(ended, np.abs(batch.r_t - q), rtol=1e-5)
    assert (truncated != ended).all()


def test_a_terminal_row_ignores_an_infinite_next_value() -> None:
    agent, batch = new_agent(), experience(batch=4)
    batch = batch._replace(terminal=np.ones(4, dtype=np.bool_), s_t=np.full_like(batch.s_t, np.inf))
    assert np.isfinite(agent.td_errors(batch)).all()


@pytest.mark.parametrize("shape", [VECTOR, PIXELS, PLANES], ids=["vectors", "pixels", "planes"])
def test_the_gradient_is_autograds_of_the_naive_loss(shape: tuple[int, ...]) -> None:
    config = replace(CONFIG, gradient_clip=1e9)
    agent, batch = new_agent(config, shape), experience(shape=shape)
    online, target = networks(agent, shape)
    naive_loss(online, target, batch, weights()).backward()  # type: ignore[no-untyped-call]  # untyped in torch
    found = gradient_of(agent, batch, weights())
    for name, parameter in online.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(found[f"adam.{name}.exp_avg"], parameter.grad, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("shape", [VECTOR, PIXELS, PLANES], ids=["vectors", "pixels", "planes"])
def test_updates_match_clipping_and_adam_of_torch(shape: tuple[int, ...]) -> None:
    config = replace(CONFIG, gradient_clip=0.1, adam_epsilon=1e-3)
    agent, (online, target) = new_agent(config, shape), networks(new_agent(config, shape), shape)
    adam = torch.optim.Adam(online.parameters(), lr=0.0005, eps=1e-3, foreach=False, fused=False)
    for seed in range(3):
        batch = experience(shape=shape, seed=seed)
        loss = naive_loss(online, target, batch, weights())
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        norm = nn.utils.clip_grad_norm_(online.parameters(), config.gradient_clip)
        adam.step()
        made = update(agent, batch, learning_rate=0.0005)
        assert made.loss == pytest.approx(loss.item(), rel=1e-4)
        assert made.gradient_norm == pytest.approx(norm.item(), rel=1e-3)
        assert made.gradient_norm > config.gradient_clip
    saved = agent.save()
    for name, parameter in online.named_parameters():
        np.testing.assert_allclose(saved[f"online.{name}"], parameter.detach(), rtol=1e-2, atol=2e-5, err_msg=name)


def test_weights_scale_the_gradient() -> None:
    config, batch = replace(CONFIG, gradient_clip=1e9), experience()
    whole, half = (
        gradient_of(new_agent(config), batch, scale * weights()) for scale in (np.float32(1), np.float32(0.5))
    )
    for name in whole:
        np.testing.assert_allclose(half[name], 0.5 * whole[name], rtol=1e-4, atol=1e-8)


def test_a_row_of_weight_zero_does_not_affect_the_gradient() -> None:
    importance, batch = weights(), experience()
    importance[3] = 0
    other = batch._replace(r_t=np.where(np.arange(8) == 3, 100, batch.r_t).astype(np.float32))
    first, second = (gradient_of(new_agent(), each, importance) for each in (batch, other))
    assert_same(first, second)


def test_the_gradient_is_clipped_by_its_norm() -> None:
    batch = experience(scale=100.0)
    free = update(new_agent(replace(CONFIG, gradient_clip=1e9)), batch).gradient_norm
    clipped = gradient_of(new_agent(replace(CONFIG, gradient_clip=free / 4)), batch, weights())
    norm = np.sqrt(sum(float((gradient**2).sum()) for gradient in clipped.values()))
    assert norm == pytest.approx(free / 4, rel=1e-4)


def test_an_update_returns_the_td_errors_before_it() -> None:
    agent, batch = diverged(new_agent()), experience(seed=9)
    before = agent.td_errors(batch)
    mean_q = agent.q_values(batch.s_tm1)[np.arange(8), batch.a_tm1].mean()
    made = update(agent, batch)
    np.testing.assert_allclose(made.priorities, before, rtol=1e-6)
    assert made.mean_q == pytest.approx(mean_q, rel=1e-5)
    assert (agent.td_errors(batch) != before).any()


@pytest.mark.parametrize("updates", [0, 5])
def test_td_errors_and_acting_do_not_change_the_agent(updates: int) -> None:
    agent = new_agent()
    for seed in range(updates):
        update(agent, experience(seed=seed))
    before = agent.save()
    agent.td_errors(experience())
    agent.act(experience().s_t)
    assert_same(agent.save(), before)


def test_acting_is_greedy() -> None:
    agent, states = new_agent(), experience(batch=20).s_t
    actions = agent.act(states)
    assert actions.dtype == np.int64
    np.testing.assert_array_equal(actions, agent.q_values(states).argmax(axis=1))


def test_arguments_may_be_read_only() -> None:
    agent, batch, importance = new_agent(), experience(), weights()
    for array in (*batch, importance):
        array.flags.writeable = False
    update(agent, batch, importance)
    agent.act(batch.s_t)


def test_the_target_network_changes_only_in_sync_target() -> None:
    agent = diverged(new_agent())
    fresh = new_agent().save()
    online, target = (
        {name.removeprefix(of): array for name, array in agent.save().items() if name.startswith(of)}
        for of in ("online.", "target.")
    )
    assert_same(target, {name.removeprefix("target."): fresh[name] for name in fresh if name.startswith("target.")})
    assert any((online[name] != target[name]).any() for name in online)
    agent.sync_target()
    assert_same({name: agent.save()[f"target.{name}"] for name in online}, online)


@pytest.mark.parametrize("shape", [VECTOR, PIXELS, PLANES], ids=["vectors", "pixels", "planes"])
@pytest.mark.parametrize("before", [0, 3])
def test_a_loaded_agent_continues_bit_for_bit(shape: tuple[int, ...], before: int) -> None:
    agent, other = new_agent(shape=shape), new_agent(shape=shape, seed=1)
    for seed in range(before):
        update(agent, experience(shape=shape, seed=seed))
    update(other, experience(shape=shape, seed=99))
    other.load(agent.save())
    for seed in range(10, 13):
        batch = experience(shape=shape, seed=seed)
        left, right = update(agent, batch), update(other, batch)
        assert left[1:] == right[1:]
        np.testing.assert_array_equal(left.priorities, right.priorities)
    assert_same(agent.save(), other.save())


def test_saved_arrays_are_copies() -> None:
    agent = new_agent()
    saved = agent.save()
    copy = {name: array.copy() for name, array in saved.items()}
    diverged(agent)
    assert_same(saved, copy)
    assert all(array.flags.c_contiguous for array in saved.values())


def test_weights_of_another_network_are_refused_and_change_nothing() -> None:
    agent = new_agent()
    before = agent.save()
    with pytest.raises(ValueError, match=r"adam\.advantage\.0\.weight\.exp_avg is \(8, 5\), expected \(8, 16\)"):
        agent.load(new_agent(replace(CONFIG, hidden=(5,))).save())
    with pytest.raises(ValueError, match=r"online\.value\.0\.bias is missing, expected \(8,\)"):
        agent.load({name: array for name, array in before.items() if name != "online.value.0.bias"})
    assert_same(agent.save(), before)


def test_equal_seeds_give_equal_weights_and_do_not_change_the_global_generator() -> None:
    state = torch.get_rng_state()
    first, second, third = new_agent(seed=4).save(), new_agent(seed=4).save(), new_agent(seed=5).save()
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(first, second)
    assert (first["online.value.0.weight"] != third["online.value.0.weight"]).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_loss_is_an_error_and_changes_nothing(bad: float) -> None:
    agent, batch = diverged(new_agent()), experience()
    before = agent.save()
    batch.r_t[5] = bad
    with pytest.raises(FloatingPointError, match=r"loss of an update is (nan|inf).*rows \[5\] of 8"):
        update(agent, batch)
    assert_same(agent.save(), before)


def test_updates_fit_a_small_regression() -> None:
    """With terminal transitions only, Q(s, a) must become r, which depends on the state and the action."""
    agent, rng = new_agent(replace(CONFIG, hidden=(32,))), np.random.default_rng(0)
    batch = experience(batch=64)
    batch = batch._replace(terminal=np.ones(64, dtype=np.bool_))
    for _ in range(600):
        actions = rng.integers(0, ACTIONS, 64)
        rewarded = batch.s_tm1[:, 0].argmax(axis=1) == actions
        rewards = rewarded.astype(np.float32)
        update(agent, batch._replace(a_tm1=actions, r_t=rewards), np.ones(64, dtype=np.float32), 0.003)
    assert (agent.act(batch.s_tm1) == batch.s_tm1[:, 0].argmax(axis=1)).mean() > 0.95


def test_cuda_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto").type == choose_device("cpu").type == "cpu"
    with pytest.raises(DeviceError, match=r"learner\.device is 'cuda' but torch found no GPU"):
        choose_device("cuda")


def test_auto_selects_an_available_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == choose_device("cuda").type == "cuda"
    assert choose_device("cpu").type == "cpu"


def test_torch_uses_the_given_number_of_threads() -> None:
    DqnAgent(LearnerConfig(device="cpu"), (1, 4), False, ACTIONS, 0)
    assert torch.get_num_threads() == 1, "more threads do not help a small MLP"
    DqnAgent(LearnerConfig(device="cpu"), PLANES, True, ACTIONS, 0)
    assert torch.get_num_threads() == 1, "more threads do not help one small convolution"
    DqnAgent(LearnerConfig(device="cpu"), (1, 4), False, ACTIONS, 0, threads=4)
    assert torch.get_num_threads() == 2, "two networks run in parallel, each with half of the threads"
    set_threads(1)
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("shape", [VECTOR, PIXELS, PLANES])
def test_a_second_thread_does_not_change_results(shape: tuple[int, ...]) -> None:
    pixels = len(shape) >= 3
    single, double = (DqnAgent(CONFIG, shape, pixels, ACTIONS, seed=0, threads=threads) for threads in (1, 2))
    for seed in range(4):
        batch = experience(shape=shape, seed=seed)
        for agent in (single, double):
            update(agent, batch)
            if seed == 1:
                agent.sync_target()
        np.testing.assert_array_equal(single.td_errors(batch), double.td_errors(batch))
    assert_same(single.save(), double.save())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("how", ["sync", "load", "load_weights"])
def test_a_batch_staged_before_a_target_update_uses_the_new_target(threads: int, how: str) -> None:
    def build() -> DqnAgent:
        return diverged(DqnAgent(CONFIG, VECTOR, False, ACTIONS, seed=0, threads=threads))

    def change_target(agent: DqnAgent) -> None:
        if how == "sync":
            agent.sync_target()
        elif how == "load":
            agent.load(new_agent(seed=7).save())
        else:
            agent.load_weights("target", new_agent(seed=7).weights("target"))

    early, late = build(), build()
    staged = early.stage(experience(), weights())
    staged.target_t()  # computed with the old target network
    change_target(early)
    change_target(late)
    found, expected = early.update(staged, LEARNING_RATE), update(late, experience())
    np.testing.assert_array_equal(found.priorities, expected.priorities)


def test_saliency_is_the_gradient_of_a_value_by_the_observation() -> None:
    agent, step = new_agent(), 1e-3
    (state,) = observations(np.random.default_rng(3), 1, VECTOR)
    for action in range(ACTIONS):
        saliency = agent.saliency(state, action)
        for place in np.ndindex(*VECTOR):
            ends = [state.copy(), state.copy()]
            ends[0][place] -= step
            ends[1][place] += step
            low, high = agent.q_values(np.stack(ends))[:, action].tolist()
            assert saliency[place] == pytest.approx(abs(high - low) / (2 * step), abs=2e-3)
    assert not any(parameter.grad is not None for parameter in agent.online.parameters())


@pytest.mark.parametrize("shape", [PIXELS, PLANES])
def test_saliency_of_pixels_has_the_shape_of_the_observation_which_is_not_changed(shape: tuple[int, ...]) -> None:
    agent = new_agent(shape=shape)
    (state,) = observations(np.random.default_rng(3), 1, shape)
    before = state.copy()
    saliency = agent.saliency(state, 1)
    assert saliency.shape == shape
    assert saliency.dtype == np.float32
    assert np.isfinite(saliency).all()
    assert saliency.any()
    np.testing.assert_array_equal(state, before)
