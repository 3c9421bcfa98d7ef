"""TOML files in, a checked `Config` out, and back: the only room that knows where configurations are kept.

Layers, a later one wins: the defaults of the dataclasses, a base (`configs/base/`), the file's own tables, a parameter
set (the file's `[sets.NAME]`, or one of `configs/sets.toml`), and overrides from the command line.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_origin

from dpsr_apex.config import (
    KINDS,
    SECTIONS,
    Config,
    ConfigError,
    Fault,
    describe,
    find_faults,
    fits,
    is_number,
    settings,
)
from dpsr_apex.replay.schedules import Schedule, constant

Option = TypeVar("Option")


@dataclass(frozen=True)
class _Layer:
    """Settings by dotted key, with where they were written."""

    values: dict[str, Any]
    origin: str


def load_config(
    source: str | Path,
    *,
    base: str | None = None,
    params: str | None = None,
    overrides: Sequence[str] = (),
    tables: Mapping[str, Any] | None = None,
) -> Config:
    """The checked configuration of `source`: a TOML file, or the name of a shipped one ("cartpole", "atari/breakout").

    `base` and `params` win over the file's own keys of these names. An override is "dotted.key=value", its value
    written as in TOML, where a bare word is text. `tables` are trees of settings, by where they were written, that win
    over the file but not over the overrides. Raises a ConfigError for whatever cannot be run.
    """
    path = find_file(source, shipped_configs())
    more = [_layer(table, origin) for origin, table in (tables or {}).items()]
    return _load(read_toml(path), path, base, params, [*more, *map(_override, overrides)])


def parse_config(text: str, origin: str) -> Config:
    """The checked configuration that `dump_config` wrote as `text`, which came from `origin`."""
    try:
        table = tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"{origin}: not valid TOML: {error}") from error
    return _load(table, Path(origin), None, None, ())


def _load(table: dict[str, Any], path: Path, base: str | None, params: str | None, more: Sequence[_Layer]) -> Config:
    sets = _sets(table, path)
    layers = []
    base = base if base is not None else table.get("base")
    if base is not None:
        base_path = _choose("base", base, _bases())
        layers.append(_layer(read_toml(base_path), str(base_path)))
    own = {key: value for key, value in table.items() if key not in ("base", "params", "sets")}
    layers.append(_layer(own, str(path)))
    params = params if params is not None else table.get("params")
    if params is not None:
        layers.append(_choose("params", params, sets))
    return _combine([*layers, *more])


def dump_config(config: Config) -> str:
    """The whole configuration as TOML; `load_config` of it gives an equal one. A setting of None is left out."""
    lines = ["# Every setting of one run: `dpsr-apex train` runs this file as it is."]
    section = ""
    for key, value in settings(config).items():
        table, name = key.split(".")
        if table != section:
            lines += ["", f"[{table}]"]
            section = table
        if value is not None:
            lines.append(f"{name} = {toml_value(value)}")
    return "\n".join(lines) + "\n"


def ensure_same(config: Config, kept: Path) -> None:
    """Refuse a run whose config is not the one that was kept of it; how many actors it has may have changed since."""
    there, here = settings(load_config(kept)), settings(config)
    changeable = {"system.actors"} if there["system.actors"] and here["system.actors"] != 0 else set()
    differing = [f"{key} = {there[key]!r}" for key in there.keys() - changeable if there[key] != here[key]]
    if differing:
        found = ", ".join(sorted(differing))
        raise ConfigError(f"{kept.parent} holds another run, with {found}; use `dpsr-apex resume {kept.parent}`")


def shipped_configs() -> dict[str, Path]:
    """The configurations that come with the package, by name."""
    paths = {path.relative_to(_root()).with_suffix("").as_posix(): path for path in sorted(_root().rglob("*.toml"))}
    return {
        name: path for name, path in paths.items() if name != "sets" and not name.startswith(("base/", "experiments/"))
    }


def shipped_experiments() -> dict[str, Path]:
    """The experiments that come with the package, by name."""
    return {path.stem: path for path in sorted((_root() / "experiments").glob("*.toml"))}


def _root() -> Path:
    package = Path(__file__).parent
    in_wheel = package / "configs"
    return in_wheel if in_wheel.is_dir() else package.parent / "configs"


def _bases() -> dict[str, Path]:
    return {path.stem: path for path in sorted((_root() / "base").glob("*.toml"))}


def find_file(source: str | Path, shipped: Mapping[str, Path]) -> Path:
    """The file that `source` is the path of, or else the shipped one of that name."""
    name = str(source).removesuffix(".toml")
    if Path(source).is_file():
        return Path(source)
    if name in shipped:
        return shipped[name]
    allowed = f"neither a file nor one of the shipped {', '.join(shipped)}{_hint(name, shipped)}"
    raise ConfigError(f"{source}: {allowed}")


def read_toml(path: Path) -> dict[str, Any]:
    """What is in a TOML file; a ConfigError says why it cannot be had."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # also text that is not UTF-8
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _sets(table: Mapping[str, Any], path: Path) -> dict[str, _Layer]:
    """Every parameter set that the file at `path` can choose: the shipped ones, then its own."""
    shared_path = _root() / "sets.toml"
    found: dict[str, _Layer] = {}
    for tables, origin in ((read_toml(shared_path).get("sets"), shared_path), (table.get("sets", {}), path)):
        if not isinstance(tables, dict):
            raise ConfigError(f"{Fault('sets', tables, 'a table of parameter sets')} (from {origin})")
        found |= {name: _layer(body, f"sets.{name} of {origin}") for name, body in tables.items()}
    return found


def _choose(key: str, name: Any, options: Mapping[str, Option]) -> Option:
    if isinstance(name, str) and name in options:
        return options[name]
    raise ConfigError(Fault(key, name, f"one of {', '.join(options)}{_hint(str(name), options)}"))


def _override(text: str) -> _Layer:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: write it as key=value, for example replay.capacity=10000")
    table: Any = _bare_value(value.strip())
    for part in reversed(key.strip().split(".")):
        table = {part: table}
    return _layer(table, f"--set {text}")


def _bare_value(text: str) -> Any:
    """`text` as a TOML value; as itself if it is none, so that words need no quotes on a command line."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _layer(table: Any, origin: str) -> _Layer:
    """The settings of a tree of TOML tables, every one known and of its type."""
    if not isinstance(table, dict):
        raise ConfigError(f"{origin} is {table!r}: a table of settings")
    flat = _flatten(table)
    values = {key: _from_toml(KINDS.get(key), raw) for key, raw in flat.items()}
    faults = [Fault(key, flat[key], reason) for key, value in values.items() if (reason := _refusal(key, value))]
    if faults:
        raise ConfigError(*(f"{fault} (from {origin})" for fault in faults))
    return _Layer(values, origin)


def _flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted key; whatever is no table of a known section stays under its own key."""
    flat: dict[str, Any] = {}
    for section, body in table.items():
        if section in SECTIONS and isinstance(body, dict):
            flat |= {f"{section}.{name}": raw for name, raw in body.items()}
        else:
            flat[section] = body
    return flat


def _refusal(key: str, value: Any) -> str | None:
    """Why no setting `key` can be `value`, or None."""
    if key in SECTIONS:
        return "a table of settings"
    if key not in KINDS:
        return "no such setting" + (_hint_setting(key) or _neighbours(key))
    return None if fits(KINDS[key], value) else describe(KINDS[key])


def _hint_setting(key: str) -> str:
    """The setting or section whose last word is like that of `key`: it may be in another section."""
    words = {name.split(".")[1]: name for name in KINDS} | dict(zip(SECTIONS, SECTIONS, strict=True))
    close = difflib.get_close_matches(key.split(".")[-1], words, n=1)
    return f"; did you mean {words[close[0]]}?" if close else ""


def _neighbours(key: str) -> str:
    section = key.split(".")[0]
    names = [name.removeprefix(f"{section}.") for name in KINDS if name.startswith(f"{section}.")]
    return f"; {section} has {', '.join(names)}" if names else f"; the sections are {', '.join(SECTIONS)}"


def _hint(name: str, options: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, options, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _from_toml(kind: Any, raw: Any) -> Any:
    """`raw` in the form that the tree keeps a `kind` in; unchanged if it cannot be one."""
    if kind is Schedule:
        return _schedule(raw)
    if kind is float and is_number(raw):
        return float(raw)
    return tuple(raw) if get_origin(kind) is tuple and isinstance(raw, list) else raw


def _schedule(raw: Any) -> Any:
    if is_number(raw):
        return constant(float(raw))
    if isinstance(raw, dict) and {"start", "end"} <= raw.keys() <= {"start", "end", "over"}:
        return Schedule(**{name: _from_toml(float, number) for name, number in raw.items()})
    return raw


def _combine(layers: Sequence[_Layer]) -> Config:
    values, origins = settings(Config()), dict.fromkeys(KINDS, "the defaults")
    for layer in layers:
        for key, value in layer.values.items():
            values[key] = {**values[key], **value} if isinstance(value, dict) else value
            origins[key] = layer.origin
    config = Config(**{section: _section(section, values) for section in SECTIONS})
    faults = find_faults(config)
    if faults:
        raise ConfigError(*(f"{fault} (from {origins[fault.setting]})" for fault in faults))
    return config


def _section(section: str, values: Mapping[str, Any]) -> Any:
    own = {key.removeprefix(f"{section}."): value for key, value in values.items() if key.startswith(f"{section}.")}
    return SECTIONS[section](**own)


def toml_value(value: Any) -> str:
    """One value as TOML on one line."""
    if isinstance(value, Schedule):
        if value == constant(value.start):
            return toml_value(value.start)
        return toml_value({"start": value.start, "end": value.end, "over": value.over})
    if isinstance(value, dict):
        items = ", ".join(f"{_toml_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}"
    return _toml_text(value) if isinstance(value, str) else repr(value)


def _toml_text(text: str) -> str:
    # JSON's escapes are TOML's, except that TOML wants DEL escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_text(key)
