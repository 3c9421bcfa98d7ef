"""The shipped configurations are the paper's tables, and every one can be run as it is."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from dpsr_apex.config import Config, EnvConfig, validate
from dpsr_apex.config_files import load_config, shipped_configs
from dpsr_apex.methods import METHODS
from dpsr_apex.schedules import Schedule, constant

# Table 3 as printed: the best, second and third (gamma, C_c, F_r, C_r) of each game.
TABLE_3 = """
AirRaid & (.5, 128, 10k, 16), (.2, 128, 20k, 8), (.2, 128, 10k, 8)
Alien & (.5, 256, 20k, 16), (.6, 256, 0, 0), (.2, 256, 20k, 64)
Amidar & (.1, 128, 10k, 8), (.3, 256, 0, 0), (.1, 128, 10k, 16)
Assault & (.6, 256, 10k, 64), (.1, 128, 20k, 8), (.5, 128, 10k, 8)
Asterix & (.2, 128, 10k, 16), (.1, 256, 20k, 64), (.3, 128, 20k, 8)
BeamRider & (.4, 256, 10k, 8), (.1, 128, 0, 0), (.3, 128, 10k, 8)
Bowling & (.6, 256, 10k, 16), (.6, 256, 20k, 64), (.6, 128, 20k, 8)
Breakout & (.1, 128, 10k, 64), (.3, 128, 10k, 8), (.2, 128, 20k, 32)
Carnival & (.1, 128, 10k, 32), (.1, 256, 10k, 16), (.6, 128, 20k, 8)
Enduro & (.6, 256, 10k, 64), (.6, 256, 10k, 64), (.6, 128, 10k, 16)
Freeway & (.1, 256, 10k, 8), (.3, 128, 20k, 16), (.3, 128, 20k, 64)
Frostbite & (.1, 256, 20k, 8), (.4, 256, 20k, 16), (.6, 128, 10k, 16)
Hero & (.5, 128, 10k, 32), (.6, 256, 10k, 64), (.4, 256, 10k, 64)
JourneyEscape & (.6, 256, 10k, 64), (.3, 128, 10k, 8), (.2, 128, 20k, 64)
Krull & (.5, 256, 20k, 16), (.1, 256, 20k, 64), (.2, 128, 20k, 64)
KungFuMaster & (.6, 128, 20k, 32), (.4, 128, 20k, 16), (.3, 256, 20k, 64)
MsPacman & (.3, 128, 10k, 32), (.1, 128, 10k, 32), (.4, 256, 20k, 8)
Phoenix & (.2, 256, 10k, 16), (.3, 128, 10k, 8), (.6, 256, 20k, 16)
Qbert & (.6, 256, 10k, 32), (.5, 128, 10k, 16), (.6, 128, 10k, 16)
Riverraid & (.5, 256, 10k, 32), (.1, 256, 20k, 64), (.6, 128, 10k, 32)
SpaceInvaders & (.3, 256, 10k, 8), (.1, 128, 10k, 16), (.1, 256, 20k, 64)
StarGunner & (.3, 128, 20k, 16), (.2, 128, 10k, 16), (.3, 128, 10k, 8)
VideoPinball & (.1, 128, 0, 0), (.1, 128, 20k, 16), (.4, 256, 20k, 8)
Zaxxon & (.1, 256, 20k, 64), (.3, 128, 10k, 64), (.1, 256, 20k, 32)
"""

# The footnote of Table 4: DPSR0 to DPSR4.
TABLE_4 = "(.6, 128, 20k, 8), (.1, 128, 10k, 16), (.2, 256, 20k, 8), (.3, 128, 10k, 8), (.3, 256, 10k, 16)"

Parameters = tuple[float, int, int, int]  # gamma, C_c, F_r, C_r

BASES = (None, "paper", "released", "apex", "modern", "classic")
MINATAR = {
    "minatar/asterix": "MinAtar/Asterix",
    "minatar/breakout": "MinAtar/Breakout",
    "minatar/freeway": "MinAtar/Freeway",
    "minatar/seaquest": "MinAtar/Seaquest",
    "minatar/space_invaders": "MinAtar/SpaceInvaders",
}
SHARED = tuple(f"dpsr{i}" for i in range(5))
OWN = ("best", "second", "third")


def parse(text: str) -> list[Parameters]:
    found = re.findall(r"\(([.\d]+), (\d+), (\d+)(k?), (\d+)\)", text)
    return [(float(g), int(c_c), int(f_r) * (1000 if k else 1), int(c_r)) for g, c_c, f_r, k, c_r in found]


def parameters(config: Config) -> Parameters:
    replay = config.replay
    assert replay.replacing_exponent == constant(replay.replacing_exponent.start)
    return (
        replay.replacing_exponent.start,
        replay.replace_candidates,
        replay.recycle_period,
        replay.recycle_candidates,
    )


GAMES = {row.split(" & ")[0]: parse(row.split(" & ")[1]) for row in TABLE_3.strip().splitlines()}


def config_name(game: str) -> str:
    return "atari/" + "_".join(re.findall("[A-Z][a-z]+", game)).lower()


def params_of(name: str) -> tuple[str, ...]:
    return SHARED + (OWN if name.startswith("atari/") else ())


def test_the_transcription_is_whole() -> None:
    assert len(GAMES) == 24
    assert all(len(sets) == 3 for sets in GAMES.values())
    assert len(parse(TABLE_4)) == 5


def test_there_is_one_file_for_each_game_and_no_other() -> None:
    assert {name for name in shipped_configs() if name.startswith("atari/")} == set(map(config_name, GAMES))
    assert {name for name in shipped_configs() if name.startswith("minatar/")} == set(MINATAR)
    assert {name for name in shipped_configs() if name.startswith("minigrid/")} == {"minigrid/door_key"}
    assert {name for name in shipped_configs() if "/" not in name} == {"cartpole", "corridor", "quickstart"}


@pytest.mark.parametrize("game", GAMES)
def test_a_game_has_the_sets_of_table_3(game: str) -> None:
    loaded = [load_config(config_name(game), params=name) for name in OWN]
    assert [parameters(config) for config in loaded] == GAMES[game]
    assert {config.env.name for config in loaded} == {game}
    assert load_config(config_name(game)) == loaded[0]
    assert load_config(config_name(game)) == load_config(config_name(game), base="paper", params="best")


def test_the_shared_sets_are_table_4() -> None:
    assert [parameters(load_config("cartpole", params=name)) for name in SHARED] == parse(TABLE_4)


@pytest.mark.parametrize("name", shipped_configs())
def test_a_shipped_configuration_can_be_run_with_every_base_and_set(name: str) -> None:
    for base, params in itertools.product(BASES, (None, *params_of(name))):
        validate(load_config(name, base=base, params=params))


@pytest.mark.parametrize("method", METHODS)
def test_a_game_can_be_run_with_every_method(method: str) -> None:
    assert load_config("atari/video_pinball", overrides=[f"replay.method={method}"]).replay.method == method


@pytest.mark.parametrize("game", ["Alien", "VideoPinball"])
def test_a_set_of_zeros_turns_recycling_off(game: str) -> None:
    rank = GAMES[game].index(next(sets for sets in GAMES[game] if sets[2:] == (0, 0)))
    replay = load_config(config_name(game), params=OWN[rank]).replay
    assert replay.method == "dpsr"
    assert not replay.recycles


def test_the_paper_base_is_table_2() -> None:
    config = load_config("atari/breakout", base="paper")
    assert config.learner.batch_size == 32
    assert config.learner.learning_rate == constant(0.0005)
    assert config.replay.capacity == 50_000
    assert config.replay.sampling_exponent == constant(0.6)
    assert config.learner.target_period == 500
    assert config.learner.steps_per_update == 1
    assert config.run.total_steps == 1_000_000
    assert config.learner.discount == 1.0
    for t in (0, 1, 50_000, 99_999, 100_000, 500_000, 1_000_000):
        assert config.actor.exploration.at(t, 1_000_000) == pytest.approx(max(1 - 9.8 * t / 1_000_000, 0.02))
        assert config.replay.bias_annealing.at(t, 1_000_000) == pytest.approx(0.4 + 0.6 * t / 1_000_000)


def test_the_released_base_is_what_the_authors_code_runs() -> None:
    config = load_config("atari/breakout", base="released")
    assert config.learner.learning_rate == constant(0.0001)
    assert config.replay.capacity == 10_000
    assert config.learner.discount == 0.99
    assert config.learner.steps_per_update == 4
    assert config.learner.learning_starts == 10_000
    assert config.learner.target_period == 1_000
    assert config.actor.exploration == Schedule(1.0, 0.01, over=0.1)


def test_the_apex_base_has_the_options_of_ape_x() -> None:
    config = load_config("atari/breakout", base="apex")
    assert config.actor.n_steps == 3
    assert config.replay.initial_priority == "td_error"
    assert config.learner.batch_size == 512
    assert config.replay.capacity == 2_000_000


def test_the_modern_base_learns_quantiles_of_three_step_returns() -> None:
    config = load_config("atari/breakout", base="modern")
    assert config.learner.agent == "quantile"
    assert config.actor.n_steps == 3
    assert config.learner.discount == 0.99


def test_cartpole_has_the_settings_of_the_paper_with_its_base() -> None:
    config, paper = load_config("cartpole", base="paper"), load_config("atari/breakout", base="paper")
    assert config.learner == paper.learner
    assert config.actor == paper.actor
    assert config.replay.bias_annealing == paper.replay.bias_annealing
    assert config.replay.priority_floor == paper.replay.priority_floor


@pytest.mark.parametrize("name", MINATAR)
def test_the_games_of_minatar_differ_in_nothing_but_the_game(name: str) -> None:
    config = load_config(name)
    assert config.env.name == MINATAR[name]
    assert replace(config, env=EnvConfig()) == replace(load_config("minatar/breakout"), env=EnvConfig())


@pytest.mark.parametrize("name", ["cartpole", "corridor", "quickstart", "minigrid/door_key", *MINATAR])
def test_a_small_run_really_replaces_and_recycles(name: str) -> None:
    config = load_config(name)
    assert config.replay.recycles
    assert config.replay.capacity <= config.run.total_steps / 2
    rounds = (config.run.total_steps - config.replay.capacity) // config.replay.recycle_period
    assert rounds >= 10
