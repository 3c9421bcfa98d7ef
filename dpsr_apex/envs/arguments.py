"""Check the arguments of an environment (`env.arguments`) before it is created, so that none is ignored silently."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dpsr_apex.envs.snapshot import UnusableEnvironment


def refuse_unknown(
    name: str,
    create: Callable[..., Any],
    arguments: Mapping[str, Any],
    fixed: Collection[str] = (),
    additional: Collection[str] = (),
) -> None:
    """Raise UnusableEnvironment for arguments that `create` does not take, by name, with those that it takes.

    `fixed` are parameters of `create` that a config cannot set; `additional` are names that are handled elsewhere.
    """
    allowed = _keywords(create)
    if allowed is None:
        return
    allowed = [*(keyword for keyword in allowed if keyword not in fixed), *additional]
    unknown = [f"env.arguments.{argument}" for argument in arguments if argument not in allowed]
    if unknown:
        remedy = f"Its arguments are {', '.join(allowed)}." if allowed else "It has no arguments."
        raise UnusableEnvironment(name, f"it does not take {' or '.join(unknown)}", remedy)


def require_positive(argument: str, value: Any) -> None:
    """Raise ValueError, with the name of the argument, unless its value is an integer >= 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{argument} must be an integer >= 1 (got {value!r})")


def _keywords(create: Callable[..., Any]) -> list[str] | None:
    """Return the parameters that can be passed by name; None if any name is accepted or the signature is unknown."""
    try:
        parameters = inspect.signature(create).parameters.values()
    except ValueError:
        return None
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters if parameter.kind in named]
