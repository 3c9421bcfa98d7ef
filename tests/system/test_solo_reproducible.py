"""Equal seeds give equal bits; a run that is stopped anywhere and resumed ends as if it had not been stopped."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from dpsr_apex.config import Config
from dpsr_apex.config_files import dump_config, load_config
from dpsr_apex.files import read_rows
from dpsr_apex.interrupt import Interrupt
from dpsr_apex.live.view import LiveView
from dpsr_apex.methods import METHODS
from dpsr_apex.record.checkpoint import Checkpoint, newest_checkpoint
from dpsr_apex.record.metrics import fingerprint
from dpsr_apex.record.progress import goal_of, is_finished
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.replay.transitions import unpack
from dpsr_apex.solo.training import Training
from tests.system.runs import eventually

SMALL = (
    *("replay.capacity=60", "replay.replace_candidates=16", "replay.recycle_candidates=6", "replay.recycle_period=25"),
    *("learner.learning_starts=40", "learner.target_period=50", "learner.batch_size=16", "learner.head=32"),
    *("evaluation.episodes=2", "run.threads=1", "learner.device=cpu"),
)
CARTPOLE = (
    *SMALL,
    *("run.total_steps=270", "run.log_period=70", "run.checkpoint_period=150", "evaluation.period=130"),
    "learner.steps_per_update=2",
)
BREAKOUT = (
    *SMALL,
    *("learner.steps_per_update=4", "run.total_steps=160", "run.log_period=40", "evaluation.max_steps=30"),
)
MOVING = (  # everything that has a state of its own, at once
    *("actor.environments=3", "actor.n_steps=3", "replay.initial_priority=td_error"),
    *("replay.sampling_exponent={ start = 0.4, end = 0.8 }", "replay.replacing_exponent={ start = 0.1, end = 0.6 }"),
    *("replay.recycle_at_max_priority=true", "learner.discount=0.97"),
)


DEEP = (  # chains, each choice of states that has a state of its own, and an end that t does not give
    *("replay.recycle_steps=4", "replay.recycle_choice=novel", "replay.recycle_share=0.25", "actor.n_steps=2"),
    *("run.environment_steps=260", "system.actors=0", "replay.initial_priority=td_error"),
)


PACKED = ("stack_sizes", "references", "piece_sizes", "pieces")


class Outcome(NamedTuple):
    """The results of a run as hashes, equal for two runs that are equal bit for bit."""

    metrics: str
    evaluations: str
    weights: str
    everything: str  # actors and environments, replay, learner
    rounds: int


def hash_of(checkpoint: Checkpoint, parts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        facts, arrays = checkpoint.parts[part]
        digest.update(repr(sorted(facts.items())).encode())
        for prefix in [name.removesuffix("pieces") for name in arrays if name.endswith("pieces")]:
            # Which transitions share their bytes is a matter of memory: it may differ, what they hold may not.
            columns = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
            stored = unpack(columns)
            digest.update(repr((stored.s_tm1, stored.s_t, stored.snapshots)).encode())
            arrays = {name: arrays[name] for name in arrays if name.removeprefix(prefix) not in PACKED}
        for name in sorted(arrays):
            digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode() + arrays[name].tobytes())
    return digest.hexdigest()


def outcome(path: Path) -> Outcome:
    run = RunDirectory.open(path)
    checkpoint = newest_checkpoint(run.checkpoints)
    assert checkpoint is not None
    return Outcome(
        metrics=fingerprint(run.metrics),
        evaluations=fingerprint(run.evaluations),
        weights=hash_of(checkpoint, ["learner"]),
        everything=hash_of(checkpoint, ["actor", "replay", "learner"]),
        rounds=read_rows(run.metrics)[-1]["rounds_closed"],
    )


class StopAfter(Interrupt):
    """An interrupt that is requested after a number of reads of `asked`: at any place of a run that reads it."""

    def __init__(self, looks: int | None = None) -> None:
        super().__init__()
        self.looks = looks

    @property
    def asked(self) -> bool:
        if self.looks is not None:
            self.looks -= 1
        return self.looks is not None and self.looks < 0

    @asked.setter
    def asked(self, value: bool) -> None:
        del value


def train(config: Config, path: Path, looks: int | None = None, checkpoint: Checkpoint | None = None) -> Training:
    run = RunDirectory.open(path) if checkpoint else RunDirectory.create(path)
    run.config.write_text(dump_config(config))
    with LiveView(goal_of(config.run), Console(file=io.StringIO())) as view:
        training = Training(config, run, view, checkpoint)
        training.run(StopAfter(looks))
    return training


def finish(config: Config, path: Path) -> Outcome:
    assert train(config, path).finished
    return outcome(path)


def finish_in_pieces(config: Config, path: Path, stops: Sequence[int]) -> tuple[Outcome, list[int]]:
    """Stop after each number of reads, resume from the checkpoint, and finish; return also the clocks of stops."""
    training = train(config, path, stops[0])
    clocks = [training.solo.t]
    for looks in (*stops[1:], None):
        assert not training.finished
        training = train(config, path, looks, newest_checkpoint(path / "checkpoints"))
        clocks.append(training.solo.t)
    assert training.finished
    return outcome(path), clocks[:-1]


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes as long as a run here, and is tested elsewhere."""
    monkeypatch.setattr("dpsr_apex.solo.training.draw_run", lambda *_: None)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits_on_cartpole(method: str, tmp_path: Path) -> None:
    config = load_config("cartpole", base="paper", overrides=[*CARTPOLE, f"replay.method={method}"])
    first, second = (finish(config, tmp_path / name) for name in ("first", "second"))
    assert first == second
    assert first.rounds == (8 if METHODS[method].recycles else 0)


@pytest.mark.parametrize(
    "method", ["dpsr", *(pytest.param(name, marks=pytest.mark.slow) for name in METHODS if name != "dpsr")]
)
def test_the_same_seed_gives_the_same_bits_on_breakout_also_when_stopped(method: str, tmp_path: Path) -> None:
    config = load_config("atari/breakout", overrides=[*BREAKOUT, f"replay.method={method}"])
    first, second = (finish(config, tmp_path / name) for name in ("first", "second"))
    assert first == second
    assert first.rounds == (4 if METHODS[method].recycles else 0)
    assert read_rows(tmp_path / "first" / "metrics.jsonl")[-1]["updates"] == 31
    third, clocks = finish_in_pieces(config, tmp_path / "third", [3 * 30, 3 * 75])
    assert clocks == [30, 105]
    assert third == first


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Outcome]:
    config = load_config("cartpole", base="paper", overrides=CARTPOLE)
    return config, finish(config, tmp_path_factory.mktemp("cartpole") / "whole")


# A step has three looks. The replay is full at t = 60, rows are due every 70, evaluations at 130 and 260.
@pytest.mark.parametrize(
    "steps", [[0], [1, 38, 1, 1], [69], [70, 1], [75, 25, 24, 1, 1], [150], [269]], ids=lambda steps: f"after {steps}"
)
def test_a_run_that_is_stopped_anywhere_and_resumed_ends_as_if_it_had_not_been_stopped(
    steps: list[int], cartpole: tuple[Config, Outcome], tmp_path: Path
) -> None:
    config, whole = cartpole
    found, clocks = finish_in_pieces(config, tmp_path / "pieces", [3 * count for count in steps])
    assert clocks[0] <= steps[0]
    assert found == whole


def test_a_run_that_is_stopped_in_an_evaluation_repeats_it_from_its_first_episode(
    cartpole: tuple[Config, Outcome], tmp_path: Path
) -> None:
    config, whole = cartpole
    training = train(config, tmp_path / "run", looks=3 * 130 + 5)
    assert training.solo.t == 130
    assert read_rows(tmp_path / "run" / "evaluations.jsonl") == []
    assert train(config, tmp_path / "run", None, newest_checkpoint(tmp_path / "run" / "checkpoints")).finished
    assert outcome(tmp_path / "run") == whole


@pytest.mark.parametrize("steps", [[2, 1, 1], [41, 60, 3]], ids=lambda steps: f"after {steps}")
def test_several_environments_n_step_returns_and_moving_exponents_are_continued_too(
    steps: list[int], tmp_path: Path
) -> None:
    config = load_config("cartpole", base="paper", overrides=[*CARTPOLE, *MOVING])
    whole = finish(config, tmp_path / "whole")
    assert whole.rounds == 8
    found, clocks = finish_in_pieces(config, tmp_path / "pieces", [3 * count for count in steps])
    assert clocks == sorted(clocks)
    assert found == whole


@pytest.mark.parametrize("choice", ["novel", "failure"])
def test_chains_are_continued_too(choice: str, tmp_path: Path) -> None:
    config = load_config("cartpole", base="paper", overrides=[*CARTPOLE, *DEEP, f"replay.recycle_choice={choice}"])
    whole = finish(config, tmp_path / "whole")
    found, clocks = finish_in_pieces(config, tmp_path / "pieces", [3 * count for count in (75, 20, 30)])
    assert clocks[0] > 60
    assert found == whole
    assert is_finished(RunDirectory.open(tmp_path / "whole"))
    last = read_rows(tmp_path / "whole" / "metrics.jsonl")[-1]
    assert last["environment_steps"] == 260
    assert last["t"] == 260 - last["chains"]
    assert 0.1 < last["chain_steps"] / (260 - 60) <= 0.25
    assert last["chain_steps_stored"] > 0
    assert last["sampled_recycled"] > 0
    assert last["depth_max"] >= 4
    assert read_rows(tmp_path / "whole" / "evaluations.jsonl")[-1]["t"] == last["t"]


@pytest.mark.parametrize("n_steps", [1, 3])
def test_a_run_of_several_environments_ends_exactly_at_its_last_step(n_steps: int, tmp_path: Path) -> None:
    overrides = [*CARTPOLE, *MOVING, "run.total_steps=100", f"actor.n_steps={n_steps}"]
    config = load_config("cartpole", overrides=overrides)
    training = train(config, tmp_path / "run")
    assert training.finished
    assert training.solo.t == 100
    checkpoint = newest_checkpoint(tmp_path / "run" / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.t == 100
    assert read_rows(tmp_path / "run" / "metrics.jsonl")[-1]["t"] == 100
    assert read_rows(tmp_path / "run" / "evaluations.jsonl")[-1]["t"] == 100


def test_a_finished_run_that_is_made_longer_loses_no_transition(tmp_path: Path) -> None:
    still = [f"{name}=0.5" for name in ("actor.exploration", "replay.bias_annealing")]  # not a function of t / T
    still += ["replay.sampling_exponent=0.6", "replay.replacing_exponent=0.4", "learner.learning_rate=0.001"]
    short, longer = (
        load_config("cartpole", overrides=[*CARTPOLE, *MOVING, *still, f"run.total_steps={steps}"])
        for steps in (100, 170)
    )
    assert train(short, tmp_path / "run").finished
    assert train(longer, tmp_path / "run", None, newest_checkpoint(tmp_path / "run" / "checkpoints")).solo.t == 170
    assert outcome(tmp_path / "run").everything == finish(longer, tmp_path / "whole").everything


def test_another_seed_gives_another_run(cartpole: tuple[Config, Outcome], tmp_path: Path) -> None:
    found = finish(load_config("cartpole", base="paper", overrides=[*CARTPOLE, "run.seed=1"]), tmp_path / "run")
    assert found.metrics != cartpole[1].metrics
    assert found.weights != cartpole[1].weights


def test_evaluations_do_not_disturb_the_training(cartpole: tuple[Config, Outcome], tmp_path: Path) -> None:
    found = finish(
        load_config("cartpole", base="paper", overrides=[*CARTPOLE, "evaluation.period=0"]), tmp_path / "run"
    )
    assert found.evaluations != cartpole[1].evaluations
    assert found.everything == cartpole[1].everything


def test_a_run_that_is_killed_continues_from_its_last_checkpoint_to_the_same_end(tmp_path: Path) -> None:
    overrides = [*CARTPOLE, "run.total_steps=900", "learner.steps_per_update=4"]
    command = [sys.executable, "-m", "dpsr_apex.cli"]
    options = [word for override in overrides for word in ("--set", override)]
    path = tmp_path / "killed"
    with subprocess.Popen(
        [*command, "train", "cartpole", "--base=paper", "--solo", "--run-dir", str(path), *options],
        stdout=subprocess.PIPE,
    ) as process:
        eventually(lambda: any(row["t"] >= 350 for row in read_rows(path / "metrics.jsonl")))
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    found = newest_checkpoint(path / "checkpoints")
    assert found is not None
    assert found.t in range(300, 900, 150)
    subprocess.run([*command, "resume", str(path)], check=True, stdout=subprocess.PIPE)
    assert outcome(path) == finish(load_config("cartpole", base="paper", overrides=overrides), tmp_path / "whole")


@pytest.mark.thorough
@pytest.mark.slow
def test_cartpole_is_learned(tmp_path: Path) -> None:
    config = load_config("cartpole", overrides=["run.threads=1", "learner.device=cpu"])
    finish(config, tmp_path / "run")
    evaluation = read_rows(tmp_path / "run" / "evaluations.jsonl")[-1]
    assert (evaluation["t"], evaluation["games"]) == (config.run.total_steps, 20)
    assert evaluation["mean"] >= 195
