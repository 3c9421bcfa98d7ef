"""`dpsr-apex list`: everything that is listed exists, and everything that exists is listed."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import pytest

from dpsr_apex.agents import AGENTS, NETWORKS
from dpsr_apex.cli import list as list_cli
from dpsr_apex.cli import main
from dpsr_apex.config_files import load_config, shipped_configs
from dpsr_apex.envs.check import PAPER_GAMES
from dpsr_apex.envs.make import make_env
from dpsr_apex.experiment.grid import load_experiment
from dpsr_apex.listing import KINDS
from dpsr_apex.methods import METHODS


def listed(kind: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    assert main(["list", kind, "--json"]) == 0
    entries: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    found = {entry["name"]: entry["description"] for entry in entries}
    assert len(found) == len(entries)
    assert all(text and "\n" not in text and len(text) < 150 for text in found.values())
    return found


def test_every_kind_is_an_argument_of_the_command() -> None:
    assert tuple(KINDS) == list_cli.KINDS


def test_other_programs_get_one_line_per_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "configs"]) == 0
    *lines, more = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_configs())
    assert more.startswith("For any other Atari game")


def test_every_config_and_experiment_can_be_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    configs = listed("configs", capsys)
    assert {"cartpole", "quickstart", "atari/breakout"} <= configs.keys()
    assert configs["atari/breakout"].startswith("Breakout with its three best parameter sets")
    for name in configs:
        load_config(name)
    for name, description in listed("experiments", capsys).items():
        assert load_experiment(name).description == description


def test_methods_agents_and_networks_are_those_of_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed("methods", capsys) == {name: method.description for name, method in METHODS.items()}
    assert listed("agents", capsys) == {name: agent.description for name, agent in AGENTS.items()}
    assert listed("networks", capsys) == NETWORKS


def test_every_kind_of_environment_is_listed_and_can_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    found = listed("envs", capsys)
    assert set(PAPER_GAMES) <= found.keys()
    assert all(found[game].endswith("in the paper") for game in PAPER_GAMES)
    for name in ("CartPole-v1", "Corridor", "MinAtar/Seaquest", "MiniGrid-DoorKey-5x5-v0", "Pong"):
        assert name in found
        make_env(name).close()
    assert "LunarLander-v3" in found
    assert not {name for name in found if "-v" in name} - set(gymnasium.registry)


def test_a_table_has_every_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)
