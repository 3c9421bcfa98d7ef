"""`train`, `resume`, `Run`, `load_policy` and `evaluate` on a real, short run, which is trained in another thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import dpsr_apex as da
from dpsr_apex.checksums import add_checksum
from dpsr_apex.record.provenance import PYTHON_API, read_provenance
from dpsr_apex.record.run_directory import RunDirectory

SHORT: dict[str, Any] = {
    "replay.capacity": 150,
    "replay.replace_candidates": 16,
    "replay.recycle_period": 50,
    "replay.recycle_candidates": 4,
    "actor.n_steps": 1,
    "learner.learning_starts": 50,
    "learner.batch_size": 16,
    "learner.hidden": [8],
    "learner.head": 8,
    "evaluation.period": 100,
    "evaluation.episodes": 2,
    "run.log_period": 100,
    "run.threads": 1,
}
untyped_train: Any = da.train  # which takes wrong types
WORST: dict[str, Any] = {"weights": "worst"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> da.Run:
    path = tmp_path_factory.mktemp("runs") / "short"
    with ThreadPoolExecutor(1) as other_thread:  # where no signal handlers can be installed
        future = other_thread.submit(da.train, "cartpole", method="dpsr", seed=3, steps=200, set=SHORT, run_dir=path)
        return future.result()


def test_a_run_has_its_rows_and_settings(run: da.Run) -> None:
    assert run.config.replay.capacity == 150
    assert (run.config.run.seed, run.config.system.actors) == (3, 0)
    assert [row["t"] for row in run.metrics] == [100, 200]
    assert [row["t"] for row in run.evaluations] == [100, 200]
    assert all(len(row["scores"]) == 2 for row in run.evaluations)


def test_the_best_weights_repeat_their_evaluation(run: da.Run) -> None:
    best = max(run.evaluations, key=lambda row: row["mean"])
    again = da.evaluate(run.path, "best")
    assert again == {key: best[key] for key in again} == da.evaluate(run, "best")
    last = da.evaluate(run.path, "last")
    assert last["scores"] == run.evaluations[-1]["scores"]
    assert len(da.evaluate(run.path, "last", episodes=1)["scores"]) == 1


def test_a_policy_is_a_function_of_observations_with_a_plain_network(run: da.Run) -> None:
    policy, other = da.load_policy(run.path, "last"), run.policy("best")
    env = da.make_env("CartPole-v1")
    obs = np.stack([env.reset(seed=seed)[0] for seed in range(5)])
    actions = policy(obs)
    assert actions.tolist() == [policy(one) for one in obs]
    assert policy.q_values(obs).argmax(axis=1).tolist() == actions.tolist()
    other.network.load_state_dict(policy.network.state_dict())
    np.testing.assert_array_equal(other.q_values(obs), policy.q_values(obs))
    best = run.policy("best")
    best.network.load_state_dict(load_file(run.path / "weights" / "last.safetensors"))
    np.testing.assert_array_equal(best.q_values(obs), policy.q_values(obs))
    other.agent.load_weights(
        "online", {f"online.{key}": array for key, array in policy.agent.weights("online").items()}
    )
    np.testing.assert_array_equal(other.q_values(obs), policy.q_values(obs))
    with pytest.raises(da.UserError, match="obs must have the shape"):
        policy(np.zeros(3, np.float32))


def test_a_stored_moment_becomes_a_live_environment(run: da.Run) -> None:
    replay = run.replay
    identity = int(replay.identities[np.flatnonzero(replay.depths == 0)[0]])
    stored = replay.read(np.array([identity]))
    env = run.enter(identity)
    assert add_checksum(env.observation.tobytes()) == stored.s_tm1[0][0]
    obs, reward, terminated, _, _ = env.step(int(stored.a_tm1[0]))
    assert add_checksum(obs.tobytes()) == stored.s_t[0][0]
    assert (reward, terminated) == (stored.r_t[0], stored.terminal[0])
    env.close()
    with pytest.raises(da.UserError, match="is not in the replay"):
        run.enter(10**12)


def test_a_run_is_named_after_its_environment_and_its_parameter_set_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = SHORT | {"env": {"name": "Acrobot-v1"}, "evaluation.max_steps": np.int64(20), "evaluation.period": 0}
    run = da.train("cartpole", params="dpsr2", steps=60, set=settings)
    assert run.path.parent == Path("runs")
    assert run.path.name.startswith("acrobot-dpsr-seed0-")
    assert capsys.readouterr().out.startswith("Parameter set: dpsr2 of ")


def test_a_run_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first = da.train("cartpole", steps=60, set=SHORT | {"evaluation.period": 0}, run_dir=path)
    assert [row["t"] for row in first.evaluations] == [60]
    assert da.resume(path, steps=90).evaluations[-1]["t"] == 90
    parts = read_provenance(RunDirectory(path))
    assert [(part.command, part.t, part.outcome, part.ended_t) for part in parts] == [
        (PYTHON_API, 0, "finished", 60),
        (PYTHON_API, 60, "finished", 90),
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: da.train("cartpole", set={"replay.capcity": 5}), "did you mean replay.capacity"),
        (lambda _: da.train("cartpole", method="perr"), "replay.method must be one of"),
        (lambda _: da.train("cartpole", solo=True, actors=2), "actors must be left out"),
        (lambda run: da.train("cartpole", run_dir=run.path), "exists and is not empty"),
        (lambda run: da.evaluate(run.path, **WORST), "weights must be one of 'best', 'last'"),
        (lambda run: da.evaluate(run.path, episodes=0), "episodes must be an integer >= 1"),
        (lambda run: da.Run(run.path / "nowhere"), "is not a run directory"),
        (lambda _: da.Run(None), r"run_dir must be a path \(got None\)"),  # type: ignore[arg-type]  # is the test
        (lambda _: da.resume(5), r"run_dir must be a path \(got 5\)"),  # type: ignore[arg-type]  # is the test
        (lambda run: run.enter("newest"), "identity must be an integer"),
        (lambda _: untyped_train(None), "config must be a file, or the name"),
        (lambda _: untyped_train("cartpole", set=["run.seed=1"]), "set must be a dict"),
        (lambda _: untyped_train("cartpole", set={1: 2}), "set must have dotted keys such as 'replay.capacity'"),
        (lambda _: da.train("cartpole", method="per", set={"replay.method": "dpsr"}), "replay.method is given twice"),
        (lambda _: da.train("cartpole", set={"system": {"actors": 2}}), "system.actors is given twice"),
        (lambda _: da.train("cartpole", set={"replay": 5, "replay.capacity": 9}), "replay.capacity is given twice"),
        (lambda _: untyped_train("cartpole", callbacks=da.Callback()), "callbacks must be a list"),
    ],
)
def test_wrong_input_is_refused(run: da.Run, call: Any, message: str) -> None:
    with pytest.raises(da.UserError, match=message):
        call(run)
