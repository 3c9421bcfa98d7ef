"""Create environments by the name used in a config. Each kind is imported only when it is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, cast, get_origin, get_type_hints

import gymnasium

from dpsr_apex.envs import classic
from dpsr_apex.envs.arguments import refuse_unknown
from dpsr_apex.envs.corridor import Corridor
from dpsr_apex.envs.snapshot import Environment, UnusableEnvironment, is_restorable
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.imports import load_class, load_module, load_object

# An id has a version or a namespace, and a Python name neither a hyphen nor a slash, so that the two uses of a colon
# cannot be confused.
_ID_OF_MODULE = re.compile(r"(?P<module>[\w.]+):(?P<id>.+-v\d+|.+/.+)")
_ALE_V5 = re.compile(r"ALE/(?P<game>\w+)-v5")
V5_REPEAT_ACTION_PROBABILITY = 0.25  # of the ids "ALE/...-v5"; all others have no sticky actions


def make_env(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    training: bool = True,
    wrappers: Sequence[str] = (),
    by_history: bool = False,
) -> Environment:
    """Create the environment `name`, passing `arguments` to its constructor; unknown ones raise UnusableEnvironment.

    `name` is an ALE game ("Breakout"), "MinAtar/Breakout", a MiniGrid task ("MiniGrid-DoorKey-5x5-v0"), "Corridor", a
    supported control task ("CartPole-v1"), "package.module:Class" (the current directory is importable), a function
    "package.module:function" that returns a Gymnasium environment, or any registered Gymnasium id. "package:Id-v0"
    imports the package first, which registers its ids. "ALE/Pong-v5" is the game "Pong" with the sticky actions of that
    id. `training` only affects Atari, where it clips rewards.

    `wrappers` are names of Gymnasium wrappers, "package.module:Class", applied in this order. Under wrappers, an id is
    Gymnasium's own environment, also if there is one with snapshots here: they are written for its observations.

    With `by_history`, an environment without snapshots is restored by replaying its history, if that can be recorded.
    That is exact only for a deterministic environment, which `dpsr_apex.envs.check` verifies.
    """
    keywords = dict(arguments or {})
    try:
        env = _make(name, keywords, training, is_wrapped=len(wrappers) > 0)
        for wrapper in wrappers:
            env = _wrap(name, env, wrapper)
        is_replayed = by_history and not is_restorable(env) and classic.can_replay(env)
        return classic.ByHistory(cast(Any, env)) if is_replayed else env
    except UnusableEnvironment:
        raise
    except (TypeError, ValueError, ImportError, gymnasium.error.Error) as error:
        with_arguments = f" with arguments {keywords}" if keywords else ""
        problem = f"it cannot be created{with_arguments}: {' '.join(str(error).split())}"
        remedy = (
            'Name an ALE game, a Gymnasium id ("package:Id-v0" for one of another package), "Corridor" or '
            '"package.module:Class" with its arguments.'
        )
        raise UnusableEnvironment(name, problem, remedy) from error


def make_stacked(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    training: bool = True,
    stack: int | None = None,
    seed: int = 0,
    wrappers: Sequence[str] = (),
    by_history: bool = False,
) -> StackedEnv:
    """Create the environment `name` with frame stacking, reset with `seed`; all else as in `make_env`."""
    return StackedEnv(make_env(name, arguments, training, wrappers, by_history), stack, seed, name)


def _make(name: str, arguments: dict[str, Any], training: bool, is_wrapped: bool) -> Environment:
    if of_module := _ID_OF_MODULE.fullmatch(name):
        load_module(of_module["module"])
        return _make(of_module["id"], arguments, training, is_wrapped)
    if v5 := _ALE_V5.fullmatch(name):
        sticky = {"repeat_action_probability": V5_REPEAT_ACTION_PROBABILITY}
        return _make(v5["game"], {**sticky, **arguments}, training, is_wrapped)
    if ":" in name:
        return _from_module(name, arguments)
    if name == "Corridor":
        refuse_unknown(name, Corridor, arguments)
        return Corridor(**arguments)
    if name in classic.EXACT and not is_wrapped:
        return classic.ClassicControl(name, **arguments)
    if name.startswith("MinAtar/") and "-v" not in name:
        from dpsr_apex.envs.minatar import MinAtar

        refuse_unknown(name, MinAtar, arguments, fixed=("game",))
        return MinAtar(name.removeprefix("MinAtar/"), **arguments)
    if name.startswith("MiniGrid-"):
        from dpsr_apex.envs.minigrid import MiniGrid, make_task

        return make_task(name, arguments) if is_wrapped else MiniGrid(name, **arguments)
    game = name.removesuffix("NoFrameskip-v4")
    if game in gymnasium.registry or "/" in game or "-v" in game:
        return classic.make_registered(game, **arguments)
    from dpsr_apex.envs.atari import Atari

    refuse_unknown(name, Atari, arguments, fixed=("game", "training"))
    return Atari(game, training, **arguments)


def _from_module(name: str, arguments: dict[str, Any]) -> Environment:
    # Checked before it is called: the name may come from a head on another machine, and must not call any function.
    found = load_object(name)
    create: Callable[..., Any] = _factory(name, found) if isinstance(found, FunctionType) else load_class(name)
    if isinstance(create, type) and not all(hasattr(create, method) for method in ("reset", "step")):
        raise TypeError(f"{create.__name__} is not a Gymnasium environment")
    refuse_unknown(name, create, arguments)
    env: Environment = create(**arguments)
    if isinstance(create, FunctionType) and not isinstance(env, gymnasium.Env):
        raise TypeError(f"{create.__name__}() returned {type(env).__name__}, which is not a gymnasium.Env")
    if not all(hasattr(env, space) for space in ("observation_space", "action_space")):
        raise TypeError(f"{create.__name__} is not a Gymnasium environment")
    return env


def _factory(name: str, function: FunctionType) -> Callable[..., Any]:
    """Return a function whose annotation promises a Gymnasium environment; raise ImportError for any other one."""
    try:
        promised = get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):  # an annotation that cannot be evaluated
        promised = None
    kind = get_origin(promised) or promised
    if isinstance(kind, type) and issubclass(kind, gymnasium.Env):
        return function
    module_name, _, function_name = name.partition(":")
    raise ImportError(
        f"{module_name} has no class {function_name}, and the function of this name does not promise an environment: "
        f"annotate it, def {function_name}(...) -> gymnasium.Env"
    )


def _wrap(name: str, env: Environment, wrapper: str) -> Environment:
    cls = load_class(wrapper)
    if not issubclass(cls, gymnasium.Wrapper):
        raise TypeError(f"{wrapper} is not a gymnasium.Wrapper")
    try:
        wrapped: Environment = cls(cast(Any, env))
    except Exception as error:  # a user's wrapper may raise anything
        problem = f"the wrapper {wrapper} cannot be applied: {type(error).__name__}: {' '.join(str(error).split())}"
        remedy = "A wrapper in env.wrappers gets the environment as its only argument."
        raise UnusableEnvironment(name, problem, remedy) from error
    return wrapped
