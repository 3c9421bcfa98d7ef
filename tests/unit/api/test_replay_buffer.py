"""`ReplayBuffer` against the replay core and a naive history; wrong input is refused by name and changes nothing."""

from __future__ import annotations

import logging
import tracemalloc
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import dpsr_apex as da
from dpsr_apex.agent.protocol import Experience
from dpsr_apex.api.settings import ReplaySettings
from dpsr_apex.config import ReplayConfig
from dpsr_apex.envs.make import make_env, make_stacked
from dpsr_apex.replay.replay import Replay
from dpsr_apex.replay.transitions import from_lists

VECTOR = spaces.Box(-np.inf, np.inf, (2,), np.float32)
THREE = spaces.Discrete(3)
DISCOUNT = 0.9


def vector(lane: int, step: int) -> NDArray[np.float32]:
    return np.array([lane, step], np.float32)


class Counting(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Counts steps, which are also the rewards; 3 of them lead to a terminal, another length to a time limit."""

    observation_space = VECTOR
    action_space = THREE

    def __init__(self, length: int = 3) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return vector(self.length, 0), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self.steps += 1
        ended = self.steps == self.length
        reward = float(self.steps - 1)
        return vector(self.length, self.steps), reward, ended and self.length == 3, ended and self.length != 3, {}


def first_action(obs: NDArray[Any]) -> NDArray[np.int64]:
    return np.zeros(len(obs), np.int64)


def add_steps(buffer: da.ReplayBuffer, count: int, first: int = 0) -> None:
    for step in range(first, first + count):
        episode, end = step // 7, step % 7 == 6
        buffer.add(vector(episode, step), step % 3, 0.5 * step, vector(episode, step + 1), end, False)


def stored_in(buffer: da.ReplayBuffer, identities: NDArray[np.int64]) -> Experience:
    """These transitions, read as a batch is."""
    return buffer._decompress(buffer._replay._table.store.gather(identities % buffer.capacity))


def test_the_settings_are_those_of_the_config_but_for_what_the_loop_decides() -> None:
    own = {item.name for item in fields(ReplayConfig)} - {"method", "capacity", "initial_priority"}
    assert set(ReplaySettings.__annotations__) == own


@pytest.mark.parametrize("method", ["dpsr", "double", "per", "per_rank", "uniform"])
def test_a_buffer_samples_exactly_what_the_core_does(method: str) -> None:
    buffer = da.ReplayBuffer(
        *(50, VECTOR, THREE, method),
        total_steps=400,
        seed=5,
        sampling_exponent=0.7,
        bias_annealing=(0.4, 1.0),
        replace_candidates=8,
        recycle_period=0,
    )
    core = Replay(buffer.config.replay, 400, np.random.default_rng(5))
    rng = np.random.default_rng(0)
    for step in range(120):
        add_steps(buffer, 1, step)
        s_tm1, s_t = (vector(step // 7, step).tobytes(),), (vector(step // 7, step + 1).tobytes(),)
        core.insert(
            from_lists(
                s_tm1=[s_tm1], a_tm1=[step % 3], r_t=[0.5 * step], s_t=[s_t], terminal=[step % 7 == 6], n_steps=[1]
            )
        )
        batch, expected = buffer.sample(6), core.sample(6)
        assert batch.ids.tolist() == expected.identities.tolist()
        assert batch.weights.tolist() == expected.weights.tolist()
        assert batch.obs.tobytes() == b"".join(stack[0] for stack in expected.transitions.s_tm1)
        assert batch.actions.tolist() == expected.transitions.a_tm1.tolist()
        errors = rng.normal(size=6)
        buffer.update_priorities(torch.tensor(batch.ids), torch.tensor(errors))
        core.update_priorities(expected.identities, np.abs(errors))
    assert buffer.counters["priorities_updated"] == 720


class History:
    """All steps of all lanes, from which any transition can be recomputed."""

    def __init__(self, n_steps: int) -> None:
        self.n_steps = n_steps
        self.steps: dict[tuple[int, int], tuple[int, float, bool, bool]] = {}

    def transition(self, lane: int, step: int) -> tuple[int, float, int, bool, int]:
        """Action, return, step of the next observation, terminal and n of the transition that starts here."""
        total, last = 0.0, step
        for last in range(step, step + self.n_steps):
            _, reward, terminated, truncated = self.steps[lane, last]
            total += DISCOUNT ** (last - step) * reward
            if terminated or truncated:
                break
        return self.steps[lane, step][0], total, last + 1, self.steps[lane, last][2], last - step + 1


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.floats(-3, 3, width=32), st.sampled_from(["go", "go", "terminated", "truncated"])),
    min_size=3,
    max_size=3,
)


@pytest.mark.filterwarnings("ignore:an episode begins with the last observation")
@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.lists(STEPS, min_size=1, max_size=30), st.sampled_from(["dpsr", "per"]))
def test_every_sampled_row_is_a_transition_of_the_history(n_steps: int, rows: list[Any], method: str) -> None:
    buffer = da.ReplayBuffer(
        20, VECTOR, THREE, method, n_steps=n_steps, discount=DISCOUNT, recycle_period=4, recycle_candidates=3
    )
    history = History(n_steps)
    added = 0
    for step, lanes in enumerate(rows):
        ends = np.array([[how == "terminated", how == "truncated"] for _, _, how in lanes])
        for lane, (action, reward, _) in enumerate(lanes):
            history.steps[lane, step] = action, reward, bool(ends[lane, 0]), bool(ends[lane, 1])
        added += buffer.add(
            np.stack([vector(lane, step) for lane in range(3)]),
            np.array([action for action, _, _ in lanes]),
            [reward for _, reward, _ in lanes],
            np.stack([vector(lane, step + 1) for lane in range(3)]),
            *ends.T,
        )
        assert buffer.t == added
        if not len(buffer):
            continue
        batch = buffer.sample(5)
        for row, (lane, start) in enumerate(batch.obs.astype(int).tolist()):
            action, total, end, terminal, n = history.transition(lane, start)
            assert batch.actions[row] == action
            assert batch.rewards[row] == pytest.approx(total, abs=1e-5)
            assert batch.next_obs[row].tolist() == [lane, end]
            assert bool(batch.terminated[row]) == terminal
            assert batch.discounts[row] == pytest.approx(DISCOUNT**n)
        buffer.update_priorities(batch.ids, batch.rewards)
        valid, reason = buffer._replay.check_valid()
        assert valid, reason
    assert len(buffer) <= 20


def test_final_observations_and_masked_lanes() -> None:
    buffer = da.ReplayBuffer(10, VECTOR, THREE, "uniform")
    two = np.stack([vector(0, 0), vector(1, 0)])
    final = np.array([None, vector(9, 9)], dtype=object)
    assert buffer.add(two, [0, 1], [0, 0], two, [0, 0], [0, 1], final_obs=final) == 2
    assert buffer.add(two, [0, 1], [0, 0], two, [0, 0], [0, 0], mask=[True, False]) == 1
    assert stored_in(buffer, buffer._replay.identities).s_t.tolist() == [[0, 0], [9, 9], [0, 0]]


@pytest.mark.parametrize("final_obs", [5, [None], [None] * 3])
def test_final_observations_of_another_number_of_lanes_are_refused(final_obs: Any) -> None:
    buffer = da.ReplayBuffer(10, VECTOR, THREE)
    two = np.stack([vector(0, 0), vector(1, 0)])
    with pytest.raises(da.UserError, match="an entry for each of the 2 lanes"):
        buffer.add(two, [0, 1], [0, 0], two, [0, 0], [0, 1], final_obs=final_obs)
    with pytest.raises(da.UserError, match=r"final_obs must have the shape \(2,\)"):
        buffer.add(two, [0, 1], [0, 0], two, [0, 0], [0, 1], final_obs=[None, np.zeros(3)])
    assert buffer.t == 0


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("n_steps", [1, 3])
def test_the_loop_of_each_way_to_reset_stores_the_steps_of_its_episodes(mode: AutoresetMode, n_steps: int) -> None:
    envs = SyncVectorEnv([Counting, lambda: Counting(5)], autoreset_mode=mode)
    buffer = da.ReplayBuffer(500, VECTOR, THREE, "uniform", n_steps=n_steps)
    obs, _ = envs.reset(seed=0)
    was_reset = np.zeros(2, np.bool_)
    for _ in range(100):
        actions = np.zeros(2, int)
        next_obs, rewards, terminated, truncated, infos = envs.step(actions)
        final_obs = infos.get("final_obs")
        buffer.add(obs, actions, rewards, next_obs, terminated, truncated, final_obs=final_obs, mask=~was_reset)
        ended = terminated | truncated
        was_reset = ended & (mode == AutoresetMode.NEXT_STEP)
        if mode == AutoresetMode.DISABLED and ended.any():
            next_obs, _ = envs.reset(options={"reset_mask": ended})
        obs = next_obs
    rows = stored_in(buffer, buffer._replay.identities)
    for start, total, end, terminal, n in zip(rows.s_tm1, rows.r_t, rows.s_t, rows.terminal, rows.n_steps, strict=True):
        (length, first), (same, last) = start, end
        assert (length, min(first + n_steps, length)) == (same, last)
        assert total == pytest.approx(sum(0.99**k * (first + k) for k in range(n)))
        assert terminal == (last == length == 3)  # the others are cut by their time limit
        assert n == last - first
    assert len(rows.r_t) >= 2 * 100 * 3 // 4 - n_steps


def test_an_observation_after_the_end_of_its_episode_is_warned_of_once() -> None:
    envs = SyncVectorEnv([Counting], autoreset_mode=AutoresetMode.SAME_STEP)
    buffer = da.ReplayBuffer(50, VECTOR, THREE, "uniform")
    obs, _ = envs.reset(seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(20):
            next_obs, rewards, terminated, truncated, _ = envs.step([0])
            buffer.add(obs, [0], rewards, next_obs, terminated, truncated)
            obs = next_obs
    assert len(caught) == 1
    assert "pass final_obs=" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_a_step_that_does_not_continue_the_last_one_begins_an_episode(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"n_steps": 3, "discount": 1.0, "recycle_choice": "failure"}
    first, second = (da.ReplayBuffer(20, VECTOR, THREE, **arguments) for _ in range(2))
    for step in range(5):
        first.add(vector(0, step), 0, 1.0, vector(0, step + 1), False, False)
    first.save(tmp_path)
    second.load(tmp_path)
    for buffer in (first, second):
        assert (buffer.t, buffer.add(vector(9, 0), 0, 1.0, vector(9, 1), False, False)) == (3, 2)
        rows = buffer._replay.read(np.sort(buffer._replay.identities))
        ends = stored_in(buffer, np.sort(buffer._replay.identities)).s_t.tolist()
        assert ends == [[0, 3], [0, 4], [0, 5], [0, 5], [0, 5]]
        assert rows.r_t.tolist() == rows.n_steps.tolist() == [3, 3, 3, 2, 1]
        assert not rows.terminal.any()
        assert buffer.add(vector(9, 1), 0, 1.0, vector(9, 2), True, False) == 2
        steps = buffer._replay.read(np.sort(buffer._replay.identities))
        assert steps.episode_steps.tolist() == [0, 1, 2, 3, 4, 0, 1]
        assert len(set(steps.episodes.tolist())) == 2


@pytest.mark.parametrize("choice", ["low", "novel", "failure"])
def test_recycling_stores_what_the_environment_does_from_the_stored_states(choice: str) -> None:
    env, recycler, oracle = (make_env("CartPole-v1") for _ in range(3))
    for one in (env, recycler, oracle):
        one.reset(seed=0)
    buffer = da.ReplayBuffer(
        *(60, env.observation_space, env.action_space),
        recycle_period=10,
        recycle_candidates=5,
        recycle_steps=3,
        recycle_choice=choice,
    )
    rng = np.random.default_rng(1)
    obs, _ = env.reset(seed=3)
    recycled = 0
    for _ in range(200):
        action, snapshot = int(rng.integers(2)), env.snapshot()  # type: ignore[attr-defined]  # restorable
        next_obs, reward, terminated, truncated, _ = env.step(action)
        buffer.add(obs, action, reward, next_obs, terminated, truncated, snapshot)
        recycled += buffer.recycle(
            recycler, lambda batch: np.zeros(len(batch)).astype(int), lambda batch: batch.rewards
        )
        assert buffer.rounds_open == 0
        obs = env.reset()[0] if terminated or truncated else next_obs
    assert recycled == buffer.counters["recycled"] > 0
    assert buffer._replay.check_valid() == (True, "")
    stored = buffer._replay.read(buffer._replay.identities[buffer._replay.depths > 0])
    states, ends = (buffer._codec.decompress_stacks(stacks) for stacks in (stored.s_tm1, stored.s_t))
    for row in range(len(stored)):
        oracle.restore(stored.snapshots[row], states[row])  # type: ignore[attr-defined]  # restorable
        after, paid, terminated, _, _ = oracle.step(int(stored.a_tm1[row]))
        assert (after.tolist(), paid, terminated) == (ends[row].tolist(), stored.r_t[row], stored.terminal[row])


def test_a_round_that_is_not_recycled_ends_with_the_next_step_and_nothing_is_lost() -> None:
    buffer = da.ReplayBuffer(10, VECTOR, THREE, recycle_period=10, recycle_candidates=3)
    add_steps(buffer, 20)
    assert (buffer.rounds_open, buffer.t) == (1, 20)
    add_steps(buffer, 1, 20)
    assert (buffer.rounds_open, buffer.counters["rounds_expired"]) == (0, 1)
    assert buffer._replay.check_valid() == (True, "")


def test_a_state_without_a_snapshot_is_not_re_entered_which_is_reported_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a script that does not configure logging
    buffer, env = da.ReplayBuffer(10, VECTOR, THREE, recycle_period=10, recycle_candidates=3), make_env("CartPole-v1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(40):
            add_steps(buffer, 1, step)
            assert buffer.recycle(env, first_action, lambda batch: batch.rewards) == 0
    assert buffer.counters["candidates_lost"] == 9
    assert ["added without a snapshot" in str(warning.message) for warning in caught] == [True]
    assert caught[0].filename == __file__
    assert capsys.readouterr().err == ""


def test_a_loaded_buffer_continues_exactly(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"n_steps": 3, "replace_candidates": 4, "recycle_period": 0, "seed": 2}
    first = da.ReplayBuffer(30, VECTOR, THREE, **arguments)
    add_steps(first, 50)
    first.update_priorities(first.sample(10).ids, np.arange(10.0))
    later = da.ReplayBuffer(30, VECTOR, THREE, **arguments)
    add_steps(later, 60)
    later.save(tmp_path / "buffer")  # replaced, although it has the greater t
    first.save(tmp_path / "buffer")
    second = da.ReplayBuffer(30, VECTOR, THREE, **arguments)
    second.load(tmp_path / "buffer")
    for buffer in (first, second):
        add_steps(buffer, 20, 50)
    for mine, theirs in zip(first.sample(16), second.sample(16), strict=True):
        assert mine.tobytes() == theirs.tobytes()
    with pytest.raises(da.UserError, match="saved with n_steps = 3, but this buffer has 1"):
        da.ReplayBuffer(30, VECTOR, THREE, **arguments | {"n_steps": 1}).load(tmp_path / "buffer")
    with pytest.raises(da.UserError, match="only into a new buffer"):
        second.load(tmp_path / "buffer")
    with pytest.raises(da.UserError, match="not a saved buffer"):
        da.ReplayBuffer(30, VECTOR, THREE).load(tmp_path)


def breakout_buffer(capacity: int, shape: tuple[int, ...] = (4, 84, 84)) -> da.ReplayBuffer:
    return da.ReplayBuffer(capacity, spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(4))


def play_breakout(buffer: da.ReplayBuffer, steps: int, channels_last: bool) -> list[NDArray[np.uint8]]:
    """Add random steps of Breakout, with observations and snapshots as copies; return a few of the observations."""
    env = make_stacked("Breakout", seed=0)
    rng = np.random.default_rng(0)
    kept = []
    for step in range(steps):
        obs, snapshot, action = env.frames.copy(), env.snapshot(), int(rng.integers(env.actions))
        outcome = env.step(action)
        pair = [np.moveaxis(one, 0, -1) if channels_last else one for one in (obs, env.frames.copy())]
        buffer.add(pair[0], action, outcome.reward, pair[1], outcome.terminal, outcome.truncated, snapshot)
        if step % (steps // 10) == 0:
            kept.append(pair[0])
        if outcome.terminal or outcome.truncated:
            env.reset()
    env.close()
    return kept


@pytest.mark.parametrize("channels_last", [False, True])
def test_stacked_frames_are_stored_once_and_returned_exactly(channels_last: bool) -> None:
    steps = 200
    buffer = breakout_buffer(steps, (84, 84, 4) if channels_last else (4, 84, 84))
    kept = play_breakout(buffer, steps, channels_last)
    rows = buffer._replay.read(buffer._replay.identities)
    frames = {id(frame) for stack in [*rows.s_tm1, *rows.s_t] for frame in stack}
    episodes = 1 + int(rows.terminal.sum())
    assert len(frames) <= steps + episodes
    stored = stored_in(buffer, buffer._replay.identities).s_tm1
    for place, obs in enumerate(kept):
        np.testing.assert_array_equal(stored[place * (steps // 10)], obs)


def test_an_atari_transition_takes_less_than_a_kilobyte_with_its_snapshot() -> None:
    few, many = 150, 750
    play_breakout(breakout_buffer(20), 20, False)  # imports and compiles
    tracemalloc.start()
    try:
        used = []
        for steps in (few, many):
            before = tracemalloc.get_traced_memory()[0]
            buffer = breakout_buffer(steps)
            play_breakout(buffer, steps, False)
            used.append(tracemalloc.get_traced_memory()[0] - before)
            del buffer
    finally:
        tracemalloc.stop()
    assert 0 < (used[1] - used[0]) / (many - few) < 1024  # what does not grow with the capacity cancels out


def test_a_batch_becomes_tensors() -> None:
    buffer = da.ReplayBuffer(10, VECTOR, THREE)
    add_steps(buffer, 5)
    batch = buffer.sample(4)
    tensors = batch.torch("meta").torch("meta")
    assert {column.device.type for column in tensors[:-1]} == {"meta"}
    tensors = batch.torch("cpu").torch("cpu")
    assert tensors.actions.dtype == torch.int64
    for array, tensor in zip(batch[:-1], tensors[:-1], strict=True):
        np.testing.assert_array_equal(array, tensor.numpy())


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize(("device", "message"), [("cuda", "torch found no GPU"), ("gpu", "must be one of torch's")])
def test_a_device_that_is_not_there_is_refused(device: str, message: str) -> None:
    buffer = da.ReplayBuffer(10, VECTOR, THREE)
    add_steps(buffer, 5)
    with pytest.raises(da.UserError, match=message):
        buffer.sample(4).torch(device)


def test_td_errors_in_bfloat16_are_those_numbers() -> None:
    one, two = da.ReplayBuffer(10, VECTOR, THREE), da.ReplayBuffer(10, VECTOR, THREE)
    for buffer, dtype in ((one, torch.bfloat16), (two, torch.float64)):
        add_steps(buffer, 3)
        buffer.update_priorities(torch.tensor([0, 1]), torch.tensor([0.5, -3.0], dtype=dtype))
    assert one._replay.priorities.tolist() == two._replay.priorities.tolist()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"method": "perr"}, "method must be one of .*'per'.* \\(got 'perr'\\)"),
    ({"capacity": -1}, "capacity must be between 1 and .* \\(got -1\\)"),
    ({"capacity": 10.5}, "capacity must be an integer"),
    ({"sampling_exponent": 9}, "sampling_exponent must be between 0 and 5 \\(got 9\\)"),
    ({"sampling_exponent": "high"}, "sampling_exponent must be a finite number, or \\(start, end\\)"),
    ({"replace_candidates": 11}, "replace_candidates must be at most capacity, which is 10"),
    ({"n_steps": 0}, "n_steps must be between 1 and 255"),
    ({"discount": 1.5}, "discount must be between 0 and 1"),
    ({"total_steps": 0}, "total_steps must be between 1 and 1000000000000"),
    ({"seed": -1}, "seed must be between"),
    ({"alpha": 0.6}, "no setting 'alpha'; it has sampling_exponent"),
    ({"observation_space": spaces.Dict(a=VECTOR)}, "observation_space must be a Box"),
    ({"action_space": VECTOR}, "action_space must be a Discrete space that starts at 0"),
    ({"action_space": spaces.Discrete(3, start=1)}, "action_space must be a Discrete space that starts at 0"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_a_wrong_argument_is_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"capacity": 10, "observation_space": VECTOR, "action_space": THREE}
    with pytest.raises(da.UserError, match=message) as refusal:
        da.ReplayBuffer(**usual | arguments)
    assert "\n" not in str(refusal.value)


def test_what_is_stored_does_not_change_with_the_arrays_of_the_caller() -> None:
    obs, next_obs = vector(0, 0), vector(0, 1)
    one, two = da.ReplayBuffer(10, VECTOR, THREE), da.ReplayBuffer(10, VECTOR, THREE)
    one.add(obs, np.int64(2), np.float32(0.5), next_obs, np.bool_(True), False)
    two.add(np.stack([obs, obs]), [2, 2], [0.5, 0.5], np.stack([next_obs, next_obs]), [True, True], [False, False])
    obs[:], next_obs[:] = 7, 8
    for buffer in (one, two):
        batch = buffer.sample(1)
        found = [batch.obs.tolist(), batch.next_obs.tolist(), *(column.tolist() for column in batch[1:3])]
        assert found == [[[0, 0]], [[0, 1]], [2], [0.5]]
        assert batch.terminated.tolist() == [1]


def test_numbers_whose_square_is_infinite_are_finite() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        space = spaces.Box(-np.inf, np.inf, (3,), dtype)
        buffer = da.ReplayBuffer(10, space, THREE)
        greatest = np.full(3, np.finfo(dtype).max)
        buffer.add(greatest, 0, 0.0, -greatest, False, False)
        assert buffer.sample(1).next_obs.tolist() == [(-greatest).tolist()]


STEP = {"obs": vector(0, 0), "action": 0, "reward": 0.0, "next_obs": vector(0, 1), "terminated": False}
REFUSED_STEPS: list[tuple[dict[str, Any], str]] = [
    ({"obs": np.zeros(3, np.float32)}, "obs must have the shape \\(2,\\) \\(got \\(3,\\)\\)"),
    ({"obs": np.zeros((2, 2), np.float32)}, "obs must be of 1 lanes"),
    ({"obs": ["a", "b"]}, "obs must be float32"),
    ({"obs": 0.5}, "obs must have the shape"),
    ({"obs": "ab"}, "obs must have the shape"),
    ({"obs": np.array([0, 1e300])}, "obs must fit into float32, as the observation_space is \\(got 1e\\+300\\)"),
    ({"obs": (b"frame", object())}, "obs must be an array of numbers"),
    ({"next_obs": np.array([0, np.nan])}, "next_obs must be finite \\(got nan\\)"),
    ({"action": 3}, "action must be between 0 and 2 \\(got 3\\)"),
    ({"action": 0.5}, "action must be integers"),
    ({"reward": float("inf")}, "reward must be finite"),
    ({"reward": 1e31}, "reward must be between -1e\\+30 and 1e\\+30 \\(got 1e\\+31\\)"),
    ({"reward": [1.0, 2.0]}, "reward must have the shape \\(\\)"),
    ({"terminated": 0.5}, "terminated must be booleans"),
    ({"truncated": None}, "truncated must be an array"),
    ({"snapshot": "state"}, "snapshot must be bytes"),
    ({"mask": [True, False]}, "mask must have the shape \\(1,\\)"),
    ({"final_obs": [vector(0, 1)]}, "final_obs is for the steps of a vector environment"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED_STEPS)
def test_a_wrong_step_is_refused_and_changes_nothing(arguments: dict[str, Any], message: str) -> None:
    buffer = da.ReplayBuffer(10, VECTOR, THREE, n_steps=2)
    add_steps(buffer, 4)
    with pytest.raises(da.UserError, match=message):
        buffer.add(**{"truncated": False, **STEP, **arguments})
    assert buffer.t == 3
    add_steps(buffer, 1, 4)
    rows = stored_in(buffer, buffer._replay.identities)
    assert rows.s_tm1[:, 1].tolist() == [0, 1, 2, 3]
    assert rows.s_t[:, 1].tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("snapshot", [b"state", 5, [b"state"], ["one", "two"]])
def test_lanes_need_a_list_of_snapshots(snapshot: Any) -> None:
    buffer = da.ReplayBuffer(10, VECTOR, THREE)
    lanes, none = np.zeros((2, 2), np.float32), [False, False]
    with pytest.raises(da.UserError, match=r"snapshot must .*, one for each lane \("):
        buffer.add(lanes, [0, 1], [0.0, 0.0], lanes + 1, none, none, snapshot)
    assert len(buffer) == 0


def test_a_capacity_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsr_apex.api.buffer.available_memory", lambda: 2**20)
    assert da.ReplayBuffer(1_000, VECTOR, THREE).capacity == 1_000
    with pytest.raises(da.UserError, match=r"capacity must fit into memory: 100,000 .* MiB, and 1 MiB are available"):
        da.ReplayBuffer(100_000, VECTOR, THREE)


def test_a_sparse_tensor_is_an_observation() -> None:
    buffer = da.ReplayBuffer(10, VECTOR, THREE)
    buffer.add(torch.tensor([0.0, 5.0]).to_sparse(), 0, 0.0, vector(0, 1), False, False)
    assert buffer.sample(1).obs.tolist() == [[0, 5]]


def test_pixels_are_not_taken_from_floats() -> None:
    buffer = da.ReplayBuffer(10, spaces.Box(0, 255, (2, 2), np.uint8), THREE)
    with pytest.raises(da.UserError, match="obs must be uint8"):
        buffer.add(np.ones((2, 2)), 0, 0.0, np.ones((2, 2)), False, False)


@pytest.mark.parametrize(
    ("ids", "td_errors", "message"),
    [
        ([0, 1], [1.0], "td_errors must have the shape \\(2,\\) \\(got \\(1,\\)\\)"),
        ([0, 1], torch.tensor([1.0, torch.nan]), "td_errors must be finite"),
        ([0.5], [1.0], "ids must be integers"),
        (0, 1.0, "ids must have one axis"),
        ([0], [1e60], "td_errors: .*1e\\+50"),
    ],
)
def test_wrong_priorities_are_refused_and_change_nothing(ids: Any, td_errors: Any, message: str) -> None:
    buffer = da.ReplayBuffer(10, VECTOR, THREE)
    add_steps(buffer, 3)
    before = buffer._replay.priorities.tolist()
    with pytest.raises(da.UserError, match=message):
        buffer.update_priorities(ids, td_errors)
    assert buffer._replay.priorities.tolist() == before


def test_no_priorities_change_nothing() -> None:
    buffer = da.ReplayBuffer(10, VECTOR, THREE)
    add_steps(buffer, 3)
    before = buffer._replay.priorities.tolist()
    buffer.update_priorities([], [])
    assert buffer._replay.priorities.tolist() == before
    assert buffer.counters["priorities_updated"] == buffer.counters["priorities_stale"] == 0


@pytest.mark.parametrize("shape", [(), (0,), (1, 3, 3), (3, 3, 1), (0, 4, 4), (2, 65, 65), (65, 2, 66)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_observations_of_any_shape_are_returned(shape: tuple[int, ...], dtype: type[np.number[Any]]) -> None:
    buffer = da.ReplayBuffer(10, spaces.Box(0, 255, shape, dtype), THREE)
    obs, next_obs = (np.random.default_rng(seed).integers(0, 255, shape).astype(dtype) for seed in (1, 2))
    buffer.add(obs, 0, 1.0, next_obs, True, False)
    batch = buffer.sample(2)
    assert batch.obs.dtype == dtype
    for row in range(2):
        np.testing.assert_array_equal(batch.obs[row], obs)
        np.testing.assert_array_equal(batch.next_obs[row], next_obs)


def test_what_cannot_be_sampled_or_recycled_is_refused() -> None:
    buffer = da.ReplayBuffer(10, VECTOR, THREE)
    with pytest.raises(da.UserError, match="the buffer is empty"):
        buffer.sample(4)
    for size in (0, -1, 2.5, True):
        with pytest.raises(da.UserError, match="batch_size must be an integer >= 1"):
            buffer.sample(size)  # type: ignore[arg-type]  # the wrong type is the test
    with pytest.raises(da.UserError, match="env cannot be restored: object has no step"):
        buffer.recycle(object(), lambda obs: obs, lambda batch: batch)
    with pytest.raises(da.UserError, match="td_errors must be a function \\(got None\\)"):
        buffer.recycle(da.make_env("CartPole-v1"), first_action, None)  # type: ignore[arg-type]  # the wrong type is the test
