"""The estimate of a run's memory, compared with real replays, which are filled by real actors."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import dpsr_apex as da
from dpsr_apex.config import Config
from dpsr_apex.config_files import load_config
from dpsr_apex.replay.replay import Replay
from dpsr_apex.roles.actor import Actor
from dpsr_apex.roles.build import build_agent, build_env
from dpsr_apex.roles.memory import Sizes, describe_memory, estimate_memory, measure_sizes
from dpsr_apex.usability import NotEnoughMemory, ensure_usable

TOLERANCE = 0.1  # of the measured memory, as documented


def config_of(name: str, method: str, capacity: int, *more: str) -> Config:
    settings = (f"replay.method={method}", f"replay.capacity={capacity}", "replay.replace_candidates=128")
    return load_config(name, overrides=[*settings, "system.actors=0", "actor.exploration=1.0", *more])


def fill(replay: Replay, actor: Actor, count: int) -> None:
    rng = np.random.default_rng(1)
    while replay.t < count:
        if collected := actor.step():
            replay.insert(collected.transitions, rng.lognormal(-3.0, 2.0, len(collected.transitions)))


@pytest.mark.parametrize(
    ("name", "method", "capacity"), [("cartpole", "per", 2_000), ("atari/breakout", "double", 1_000)]
)
def test_the_estimate_is_that_of_a_filled_replay(name: str, method: str, capacity: int) -> None:
    config = config_of(name, method, capacity, "run.total_steps=100000")
    estimate = estimate_memory(config, ensure_usable(config).sizes)
    env = build_env(config, 0, training=True)
    actor = Actor(config, build_agent(config, env, 0), [env], None, np.random.default_rng(0))
    rng = np.random.default_rng(0)
    fill(Replay(config.replay, 100_000, rng), actor, 2 * capacity)  # compiles all functions
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    replay = Replay(config.replay, 100_000, rng)
    fill(replay, actor, 2 * capacity)
    measured = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    env.close()
    assert replay.size == capacity
    assert estimate.replay == pytest.approx(measured, rel=TOLERANCE)
    assert estimate.transition * capacity == pytest.approx(estimate.replay)


def test_memory_grows_with_what_is_stored_and_with_actors() -> None:
    sizes = Sizes(frame=400.0, snapshot=100.0, depth=4)
    small = estimate_memory(config_of("cartpole", "dpsr", 10_000), sizes)
    large = estimate_memory(config_of("cartpole", "dpsr", 20_000), sizes)
    short = estimate_memory(config_of("cartpole", "dpsr", 20_000, "run.total_steps=10000"), sizes)
    assert large.replay == pytest.approx(2 * small.replay)
    assert small.replay < short.replay < large.replay, "empty slots need some memory, too"
    assert short.transition == small.transition
    assert "10,000 transitions of" in describe_memory(config_of("cartpole", "dpsr", 10_000), small, None)
    described = describe_memory(config_of("cartpole", "dpsr", 20_000, "run.total_steps=10000"), short, None)
    assert f"10,000 transitions of {small.transition:,.0f} bytes in 20,000 slots" in described
    assert small.total == small.replay_process + small.replay, "a second copy while saving"
    assert small.learner == small.actor == 0


def test_each_process_has_its_memory_and_shares_the_libraries() -> None:
    sizes = Sizes(frame=400.0, snapshot=100.0, depth=4, has_images=True)
    one, three = (
        estimate_memory(config_of("cartpole", "dpsr", 10_000, f"system.actors={actors}"), sizes) for actors in (1, 3)
    )
    assert one.replay_process == three.replay_process > one.replay
    assert 0 < three.total - one.total < 2 * one.actor
    assert (
        estimate_memory(
            config_of("cartpole", "dpsr", 10_000, "system.actors=1"), sizes._replace(has_images=False)
        ).actor
        < one.actor
    )
    text = describe_memory(config_of("cartpole", "dpsr", 10_000, "system.actors=1"), one, 2**30)
    assert all(name in text for name in ("replay", "learner", "each actor", "1.0 GiB available"))


def test_sizes_are_those_of_the_allocated_objects() -> None:
    sizes = measure_sizes((4, 84, 84), [b"x" * 100, b"x" * 600], [b""])
    assert sizes == Sizes(frame=(144 + 656) / 2, snapshot=0.0, depth=4, has_images=True)
    assert not measure_sizes((1, 4), [b"x"], [b"x"]).has_images


def test_a_run_that_does_not_fit_is_refused_unless_the_check_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"learner.learning_starts": 50, "learner.batch_size": 16, "evaluation.episodes": 1, "run.threads": 1}
    monkeypatch.setattr("dpsr_apex.usability.available_memory", lambda: 2**20)
    with pytest.raises(NotEnoughMemory, match=r"reduce replay\.capacity \(25000\)"):
        da.train("cartpole", steps=60, set=settings, run_dir=tmp_path / "run")
    assert "1 MiB available" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()
    unchecked = settings | {"system.memory_check": False}
    assert da.train("cartpole", steps=60, set=unchecked, run_dir=tmp_path / "run").metrics[-1]["t"] == 60
    monkeypatch.setattr("dpsr_apex.usability.available_memory", lambda: None)  # unknown
    assert da.train("cartpole", steps=60, set=settings, run_dir=tmp_path / "other").metrics[-1]["t"] == 60
