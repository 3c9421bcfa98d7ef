"""From a name in a config to an environment. Each kind is imported only when it is asked for."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium

from dpsr_apex.envs import classic
from dpsr_apex.envs.corridor import Corridor
from dpsr_apex.envs.snapshot import Environment, UnusableEnvironment
from dpsr_apex.envs.stacked import StackedEnv


def make_env(name: str, arguments: Mapping[str, Any] | None = None, training: bool = True) -> Environment:
    """The environment of that name, its constructor called with `arguments`.

    An ALE game ("Breakout"), "MinAtar/Breakout", "Corridor", a shipped control task ("CartPole-v1"),
    "package.module:Class" (the current directory is importable), or any registered Gymnasium id, which is usable but
    cannot be re-entered. `training` concerns Atari, whose rewards are clipped then.
    """
    given = dict(arguments or {})
    try:
        return _make(name, given, training)
    except UnusableEnvironment:
        raise
    except (TypeError, ValueError, ImportError, gymnasium.error.Error) as error:
        problem = f"it cannot be made with arguments {given}: {error}" if given else f"it cannot be made: {error}"
        remedy = 'Name an ALE game, a Gymnasium id, "Corridor" or "package.module:Class" with its arguments.'
        raise UnusableEnvironment(name, problem, remedy) from error


def make_stacked(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    training: bool = True,
    stack: int | None = None,
    seed: int = 0,
) -> StackedEnv:
    """The same as the roles use it, after its first reset."""
    return StackedEnv(make_env(name, arguments, training), stack, seed, name)


def _make(name: str, arguments: dict[str, Any], training: bool) -> Environment:
    if ":" in name:
        return _from_module(name, arguments)
    if name == "Corridor":
        return Corridor(**arguments)
    if name in classic.EXACT:
        return classic.ClassicControl(name, **arguments)
    if name in classic.BY_HISTORY:
        return classic.ByHistory(name, **{"render_mode": "rgb_array", **arguments})
    if name.startswith("MinAtar/") and "-v" not in name:
        from dpsr_apex.envs.minatar import MinAtar

        return MinAtar(name.removeprefix("MinAtar/"), **arguments)
    game = name.removesuffix("NoFrameskip-v4")
    if game in gymnasium.registry or "/" in game or "-v" in game:
        return gymnasium.make(game, disable_env_checker=True, **arguments)
    from dpsr_apex.envs.atari import Atari

    return Atari(game, **{"training": training, **arguments})


def _from_module(name: str, arguments: dict[str, Any]) -> Environment:
    module_name, _, class_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # a console command does not look there by itself
    module = importlib.import_module(module_name)
    if not hasattr(module, class_name):
        raise ImportError(f"{module_name} has no {class_name}")
    kind = getattr(module, class_name)
    # Looked at before it is called: the name may come from the head of a run on another machine.
    is_environment = isinstance(kind, type) and all(hasattr(kind, method) for method in ("reset", "step"))
    made: Environment | None = kind(**arguments) if is_environment else None
    if made is None or not all(hasattr(made, space) for space in ("observation_space", "action_space")):
        raise TypeError(f"{class_name} is not a Gymnasium environment")
    return made
