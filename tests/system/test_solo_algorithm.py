"""One step of the single-process mode at which a recycling round is due, recomputed by hand: it is Algorithm 1.

Everything expected here comes from copies of the state before the step: a second environment, a forward pass in numpy,
an update by autograd and Adam's formula, naive draws, and copies of the random generators.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dpsr_apex.config import ActorConfig, Config, EnvConfig, LearnerConfig, ReplayConfig, RunConfig, validate
from dpsr_apex.envs.make import make_env
from dpsr_apex.replay.transitions import Stack, Transitions, unpack
from dpsr_apex.schedules import Schedule, constant
from dpsr_apex.solo.algorithm import Solo
from tests.unit.replay.naive import stratified

CAPACITY, C_R, F_R, T = 30, 6, 20, 400
FLOOR, LEARNING_RATE = 1e-4, 0.005
BETA = Schedule(0.4, 1.0)

Arrays = dict[str, NDArray[Any]]


def config(env: EnvConfig, at_max: bool, seed: int) -> Config:
    made = Config(
        env=env,
        replay=ReplayConfig(
            capacity=CAPACITY,
            sampling_exponent=constant(0.6),
            bias_annealing=BETA,
            replacing_exponent=constant(0.5),
            replace_candidates=8,
            recycle_candidates=C_R,
            recycle_period=F_R,
            recycle_at_max_priority=at_max,
            priority_floor=FLOOR,
        ),
        actor=ActorConfig(exploration=Schedule(1.0, 0.2)),
        learner=LearnerConfig(
            batch_size=8,
            learning_rate=constant(LEARNING_RATE),
            discount=0.9,
            steps_per_update=4,
            target_period=20,
            learning_starts=20,
            hidden=(16, 16),
            head=16,
        ),
        run=RunConfig(seed=seed, total_steps=T, threads=1),
    )
    validate(made)
    return made


class Before(NamedTuple):
    """Copies of all that the step depends on."""

    actor_rng: np.random.Generator
    replay_rng: np.random.Generator
    snapshot: bytes
    frames: NDArray[np.float32]
    weights: Arrays
    stored: Transitions
    identities: NDArray[np.int64]
    births: NDArray[np.int64]
    priorities: NDArray[np.float64]
    next_serial: int


def generator(state: dict[str, Any]) -> np.random.Generator:
    rng = np.random.default_rng()
    rng.bit_generator.state = state
    return rng


def copy_of(solo: Solo) -> Before:
    parts = solo.save()
    actor, replay = parts["actor"], parts["replay"]
    return Before(
        actor_rng=generator(actor.facts["actor"]["generator"]),
        replay_rng=generator(replay.facts["replay"]["generator"]),
        snapshot=actor.arrays["env0/snapshot"].tobytes(),
        frames=actor.arrays["env0/frames"].copy(),
        weights=solo.agent.save(),
        stored=unpack(replay.arrays),
        identities=solo.replay.identities,
        births=solo.replay.births,
        priorities=solo.replay.priorities,
        next_serial=replay.facts["replay"]["next_serial"],
    )


def q_values(weights: dict[str, Any], network: str, states: Any) -> Any:
    """The dueling network written out; works on numpy arrays and on torch tensors alike."""

    def linear(x: Any, layer: str) -> Any:
        return x @ weights[f"{network}.{layer}.weight"].T + weights[f"{network}.{layer}.bias"]

    def relu(x: Any) -> Any:
        return x * (x > 0)

    features = relu(linear(relu(linear(states, "torso.1")), "torso.3"))
    value = linear(relu(linear(features, "value.0")), "value.2")
    advantage = linear(relu(linear(features, "advantage.0")), "advantage.2")
    return value + advantage - advantage.mean(1)[:, None]


class Rows(NamedTuple):
    """Transitions in plain numbers."""

    s_tm1: NDArray[np.float64]
    a_tm1: NDArray[np.int64]
    r_t: NDArray[np.float64]
    s_t: NDArray[np.float64]
    terminal: NDArray[np.bool_]

    def at(self, rows: list[int]) -> Rows:
        return Rows(self.s_tm1[rows], self.a_tm1[rows], self.r_t[rows], self.s_t[rows], self.terminal[rows])


def rows_of(solo: Solo, transitions: Transitions) -> Rows:
    def decompressed(stacks: list[Stack]) -> NDArray[np.float64]:
        frames = solo.actor.envs[0].codec.decompress_stacks(stacks)
        return frames.reshape(len(stacks), -1).astype(np.float64)

    return Rows(
        decompressed(transitions.s_tm1),
        transitions.a_tm1,
        transitions.r_t.astype(np.float64),
        decompressed(transitions.s_t),
        transitions.terminal,
    )


def double(weights: Arrays) -> Arrays:
    return {name: array.astype(np.float64) for name, array in weights.items()}


def deltas(weights: Arrays, rows: Rows) -> NDArray[np.float64]:
    """r + discount (1 - terminal) Q_target(s', argmax Q(s')) - Q(s, a), not absolute."""
    every = np.arange(len(rows.a_tm1))
    best = q_values(double(weights), "online", rows.s_t).argmax(axis=1)
    bootstrap = q_values(double(weights), "target", rows.s_t)[every, best]
    q_tm1 = q_values(double(weights), "online", rows.s_tm1)[every, rows.a_tm1]
    found: NDArray[np.float64] = rows.r_t + 0.9 * ~rows.terminal * bootstrap - q_tm1
    return found


def greedy(weights: Arrays, states: NDArray[Any]) -> NDArray[np.int64]:
    flat = states.reshape(len(states), -1).astype(np.float64)
    actions: NDArray[np.int64] = q_values(double(weights), "online", flat).argmax(axis=1)
    return actions


def step_by_hand(env: EnvConfig, snapshot: bytes, frames: NDArray[Any], action: int) -> tuple[Any, float, bool]:
    twin: Any = make_env(env.name, env.arguments)
    twin.reset(seed=12345)
    twin.restore(snapshot, frames)
    observation, reward, terminal, _, _ = twin.step(action)
    twin.close()
    return observation, float(reward), bool(terminal)


def sample_candidates(before: Before) -> list[int]:
    masses, slots = before.priorities**-0.5, list[int]()
    while len(slots) < C_R:
        drawn = stratified(masses, before.replay_rng.random(C_R - len(slots)))
        slots += [slot for slot in dict.fromkeys(drawn) if slot not in slots]
        masses[slots] = 0.0
    return slots


def update_by_hand(weights: Arrays, rows: Rows, importance: NDArray[np.float64]) -> Arrays:
    """One step of Adam down the weighted mean of Huber's loss, its gradient clipped to a norm of 10."""
    delta = deltas(weights, rows)
    online = {name: torch.tensor(a, dtype=torch.float64, requires_grad=True) for name, a in weights.items()}
    q_tm1 = q_values(online, "online", torch.tensor(rows.s_tm1))[torch.arange(len(delta)), torch.tensor(rows.a_tm1)]
    targets = torch.tensor(delta) + q_tm1.detach()
    losses = torch.nn.functional.huber_loss(q_tm1, targets, reduction="none")
    names = [name for name in weights if name.startswith("online.")]
    slopes = torch.autograd.grad((losses * torch.tensor(importance)).mean(), [online[name] for name in names])
    gradients = {name: slope.numpy() for name, slope in zip(names, slopes, strict=True)}
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
    updated = dict(weights)
    for name in names:
        gradient = gradients[name] * min(1.0, 10 / norm)
        adam = f"adam.{name.removeprefix('online.')}"
        count = weights[f"{adam}.step"] + 1
        first = 0.9 * weights[f"{adam}.exp_avg"] + 0.1 * gradient
        second = 0.999 * weights[f"{adam}.exp_avg_sq"] + 0.001 * gradient**2
        change = first / (1 - 0.9**count) / (np.sqrt(second / (1 - 0.999**count)) + 1e-8)
        updated[name] = weights[name] - LEARNING_RATE * change
    return updated


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("at_max", [False, True], ids=["by_td_error", "at_max_priority"])
@pytest.mark.parametrize(
    "env", [EnvConfig("CartPole-v1"), EnvConfig("Corridor", {"depth": 3})], ids=["CartPole", "Corridor"]
)
def test_a_recycling_round_in_solo_is_algorithm_1(env: EnvConfig, at_max: bool, seed: int) -> None:
    solo = Solo(config(env, at_max, seed))
    replay = solo.replay
    while solo.t < 99:
        solo.step()
    rounds_before = replay.counters.rounds_closed
    assert rounds_before == 3, "t = 40, 60 and 80; at t = 20 the replay was not full"
    before = copy_of(solo)
    t = 100

    # Observe s_t, r_t after the action that was chosen with epsilon(t - 1), and assemble the new experience.
    explores = before.actor_rng.random(1)[0] < solo.actor.epsilons[0]
    random_action = int(before.actor_rng.integers(2, size=1)[0])
    action = random_action if explores else int(greedy(before.weights, before.frames[np.newaxis])[0])
    newcomer = (before.frames[-1], action, *step_by_hand(env, before.snapshot, before.frames, action))

    # The replay is full and t = 0 mod F_r: C_r different experiences are sampled by PR.
    slots = sample_candidates(before)
    stored = rows_of(solo, before.stored)

    # The newest network chooses in each of their states; where it chooses the stored action, another one is taken.
    chosen = greedy(before.weights, stored.s_tm1[slots])
    others = before.actor_rng.integers(1, size=C_R)
    others += others >= stored.a_tm1[slots]
    actions = np.where(chosen == stored.a_tm1[slots], others, chosen)
    assert (actions != stored.a_tm1[slots]).all()

    # One step from each state yields s' and r', and both networks the TD error.
    entered = [
        step_by_hand(env, before.stored.snapshots[slot], stored.s_tm1[[slot]].astype(np.float32), int(action))
        for slot, action in zip(slots, actions, strict=True)
    ]
    recycled = Rows(
        s_tm1=stored.s_tm1[slots],
        a_tm1=actions,
        r_t=np.array([reward for _, reward, _ in entered]),
        s_t=np.array([observation for observation, _, _ in entered], dtype=np.float64),
        terminal=np.array([terminal for _, _, terminal in entered]),
    )
    errors = np.abs(deltas(before.weights, recycled))

    updates = solo.step()

    # Exactly one round took place, and one update, because t = 0 mod F_s.
    assert solo.t == t
    assert replay.counters.rounds_closed == rounds_before + 1
    assert len(updates) == 1
    assert replay.check_valid() == (True, "")

    # The weakest of the recycled gave its slot to the new experience; all others took the slots of their candidates.
    weakest = [place for place in range(C_R) if replay.identities[slots[place]] // CAPACITY == before.next_serial]
    assert len(weakest) == 1
    assert errors[weakest[0]] == pytest.approx(errors.min(), rel=1e-4, abs=1e-6)
    after = rows_of(solo, replay.read(replay.identities))
    kept = [place for place in range(C_R) if place not in weakest]
    for place in kept:
        slot = slots[place]
        assert after.a_tm1[slot] == recycled.a_tm1[place]
        assert after.r_t[slot] == recycled.r_t[place]
        assert after.terminal[slot] == recycled.terminal[place]
        np.testing.assert_array_equal(after.s_tm1[slot], recycled.s_tm1[place])
        np.testing.assert_array_equal(after.s_t[slot], recycled.s_t[place])
        assert replay.read(replay.identities[[slot]]).snapshots == [before.stored.snapshots[slot]]
    new_slot = slots[weakest[0]]
    observed, done, gained = newcomer[2], newcomer[4], newcomer[3]
    np.testing.assert_array_equal(after.s_tm1[new_slot], newcomer[0])
    np.testing.assert_array_equal(after.s_t[new_slot], observed)
    assert (after.a_tm1[new_slot], after.r_t[new_slot], after.terminal[new_slot]) == (action, gained, done)
    assert replay.read(replay.identities[[new_slot]]).snapshots == [before.snapshot]

    # Identities are new and unique, births are t; transitions that were no candidates are unchanged.
    expected_identities, expected_births = before.identities.copy(), before.births.copy()
    expected_births[slots] = t
    expected_identities[new_slot] = before.next_serial * CAPACITY + new_slot
    for number, place in enumerate(kept, start=1):
        expected_identities[slots[place]] = (before.next_serial + number) * CAPACITY + slots[place]
    np.testing.assert_array_equal(replay.identities, expected_identities)
    np.testing.assert_array_equal(replay.births, expected_births)
    untouched = [slot for slot in range(CAPACITY) if slot not in slots]
    np.testing.assert_array_equal(after.s_t[untouched], stored.s_t[untouched])
    np.testing.assert_array_equal(after.a_tm1[untouched], stored.a_tm1[untouched])

    # Priorities of the round: the maximum for the new one and under M, else |delta'|.
    peak = before.priorities.max()
    priorities = before.priorities.copy()
    priorities[slots] = peak if at_max else errors + FLOOR
    priorities[new_slot] = peak

    # A minibatch is sampled by P(i) with weights over the whole replay.
    probabilities = priorities**0.6 / (priorities**0.6).sum()
    batch = stratified(priorities**0.6, before.replay_rng.random(8))
    importance = (CAPACITY * probabilities) ** -BETA.at(t, T)
    importance /= importance.max()
    sampled = after.at(batch)

    # The update saw their TD errors, which became their priorities.
    batch_deltas = deltas(before.weights, sampled)
    np.testing.assert_allclose(updates[0].priorities, np.abs(batch_deltas), rtol=1e-4, atol=1e-5)
    priorities[batch] = np.abs(batch_deltas) + FLOOR
    np.testing.assert_allclose(replay.priorities, priorities, rtol=1e-4, atol=1e-5)

    # The weights moved accordingly, and t = 0 mod F_t: the target network is the new network.
    expected = update_by_hand(before.weights, sampled, importance[batch])
    found = solo.agent.save()
    for name in (name for name in found if name.startswith("online.")):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-4, err_msg=name)
        assert not np.array_equal(found[name], before.weights[name]), name
        np.testing.assert_array_equal(found[name.replace("online.", "target.")], found[name])

    # The next action is chosen by the new network with epsilon(t); then no round is due, and F_s has not passed.
    state, start = solo.actor.envs[0].frames, solo.actor.envs[0].stack
    explored = before.actor_rng.random(1)[0] < Schedule(1.0, 0.2).at(t, T)
    random_action = int(before.actor_rng.integers(2, size=1)[0])
    action = random_action if explored else int(greedy(found, state[np.newaxis])[0])
    assert solo.step() == []
    youngest = replay.read(replay.identities[replay.births == t + 1])
    assert (youngest.s_tm1, youngest.a_tm1.tolist()) == ([start], [action])
    assert replay.counters.rounds_closed == rounds_before + 1
    solo.close()
