"""Create environments by the name used in a config. Each kind is imported only when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from dpsr_apex.envs import classic
from dpsr_apex.envs.arguments import refuse_unknown
from dpsr_apex.envs.corridor import Corridor
from dpsr_apex.envs.snapshot import Environment, UnusableEnvironment
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.imports import load_class


def make_env(name: str, arguments: Mapping[str, Any] | None = None, training: bool = True) -> Environment:
    """Create the environment `name`, passing `arguments` to its constructor; unknown ones raise UnusableEnvironment.

    `name` is an ALE game ("Breakout"), "MinAtar/Breakout", a MiniGrid task ("MiniGrid-DoorKey-5x5-v0"), "Corridor", a
    supported control task ("CartPole-v1"), "package.module:Class" (the current directory is importable), or any
    registered Gymnasium id, which works but cannot be restored. `training` only affects Atari, where it clips rewards.
    """
    keywords = dict(arguments or {})
    try:
        return _make(name, keywords, training)
    except UnusableEnvironment:
        raise
    except (TypeError, ValueError, ImportError, gymnasium.error.Error) as error:
        with_arguments = f" with arguments {keywords}" if keywords else ""
        problem = f"it cannot be created{with_arguments}: {' '.join(str(error).split())}"
        remedy = 'Name an ALE game, a Gymnasium id, "Corridor" or "package.module:Class" with its arguments.'
        raise UnusableEnvironment(name, problem, remedy) from error


def make_stacked(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    training: bool = True,
    stack: int | None = None,
    seed: int = 0,
) -> StackedEnv:
    """Create the environment `name` with frame stacking, reset with `seed`; arguments as in `make_env`."""
    return StackedEnv(make_env(name, arguments, training), stack, seed, name)


def _make(name: str, arguments: dict[str, Any], training: bool) -> Environment:
    if ":" in name:
        return _from_module(name, arguments)
    if name == "Corridor":
        refuse_unknown(name, Corridor, arguments)
        return Corridor(**arguments)
    if name in classic.EXACT:
        return classic.ClassicControl(name, **arguments)
    if name in classic.BY_HISTORY:
        return classic.ByHistory(name, **{"render_mode": "rgb_array", **arguments})
    if name.startswith("MinAtar/") and "-v" not in name:
        from dpsr_apex.envs.minatar import MinAtar

        refuse_unknown(name, MinAtar, arguments, fixed=("game",))
        return MinAtar(name.removeprefix("MinAtar/"), **arguments)
    if name.startswith("MiniGrid-"):
        from dpsr_apex.envs.minigrid import MiniGrid

        return MiniGrid(name, **arguments)
    game = name.removesuffix("NoFrameskip-v4")
    if game in gymnasium.registry or "/" in game or "-v" in game:
        return classic.make_registered(game, **arguments)
    from dpsr_apex.envs.atari import Atari

    refuse_unknown(name, Atari, arguments, fixed=("game", "training"))
    return Atari(game, training, **arguments)


def _from_module(name: str, arguments: dict[str, Any]) -> Environment:
    cls = load_class(name)
    # Checked before it is called: the name may come from a head on another machine, and must not call any function.
    is_environment = all(hasattr(cls, method) for method in ("reset", "step"))
    if is_environment:
        refuse_unknown(name, cls, arguments)
    env: Environment | None = cls(**arguments) if is_environment else None
    if env is None or not all(hasattr(env, space) for space in ("observation_space", "action_space")):
        raise TypeError(f"{cls.__name__} is not a Gymnasium environment")
    return env
