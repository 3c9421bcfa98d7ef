"""Read TOML files into a validated `Config`, and write it back; the only module that reads the shipped configs.

Later layers override earlier ones: the defaults of the dataclasses, a base (`configs/base/`), the file's own tables, a
parameter set (the file's `[sets.NAME]`, or one of `configs/sets.toml`), and overrides from the command line.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_origin

from dpsr_apex.config import SECTIONS, SETTINGS, Config, ConfigError, Fault, find_faults, settings
from dpsr_apex.formatting import pasteable
from dpsr_apex.kinds import SomeOf, describe, fits, is_number
from dpsr_apex.schedules import Schedule, constant

Option = TypeVar("Option")

ATARI = "atari/"  # folder of the configs of Atari games
COMMON_SET = "dpsr3"  # parameter set of games without a config of their own: one set of the paper for all games


@dataclass(frozen=True)
class _Layer:
    """Settings by dotted key, with their origin."""

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
    """Return the validated config of `source`: a TOML file, or the name of a shipped config such as "atari/breakout".

    "atari/GAME" is accepted for every game of the Arcade Learning Environment.

    `base` and `params` override the file's own keys of these names. An override is "dotted.key=value" with the value
    in TOML syntax, except that a bare word is a string. `tables` are trees of settings, by origin, that override the
    file and are overridden by the overrides. Raise ConfigError if the config is invalid.
    """
    table, path = _read(source)
    more = [_layer(table, origin) for origin, table in (tables or {}).items()]
    return _load(table, path, base, params, [*more, *map(_override, overrides)])


def describe_params(source: str | Path, params: str | None = None) -> str:
    """Return the name, the origin and the settings of the parameter set that `load_config` uses; empty without one."""
    table, path = _read(source)
    name = params if params is not None else table.get("params")
    if name is None:
        return ""
    layer = _choose("params", name, _sets(table, path))
    values = ", ".join(f"{key.split('.')[1]} = {toml_value(value)}" for key, value in layer.values.items())
    return f"{name} of {layer.origin.partition(' of ')[2]} ({values})"


def _read(source: str | Path) -> tuple[dict[str, Any], Path]:
    """Return the content and the path of a config; for an Atari game without a file, the paper's common settings."""
    shipped = shipped_configs()
    folder, slash, game = str(source).removesuffix(".toml").rpartition("/")
    if Path(source).is_file() or folder + slash != ATARI or not re.fullmatch(r"\w+", game):
        path = find_file(source, shipped, "configs")
        return read_toml(path), path
    own = [path for name, path in shipped.items() if name.startswith(ATARI) and _same_game(path.stem, game)]
    if own:
        return read_toml(own[0]), own[0]
    words = [f"{word[0].upper()}{word[1:]}" for word in game.split("_") if word]
    return {"base": "paper", "params": COMMON_SET, "env": {"name": "".join(words)}}, Path(source)


def _same_game(one: str, other: str) -> bool:
    return one.replace("_", "").lower() == other.replace("_", "").lower()


def parse_config(text: str, origin: str) -> Config:
    """Return the validated config that `dump_config` wrote as `text`; `origin` appears in error messages."""
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
        base_path = _choose("base", base, shipped_bases())
        layers.append(_layer(read_toml(base_path), str(base_path)))
    own = {key: value for key, value in table.items() if key not in ("base", "params", "sets")}
    layers.append(_layer(own, str(path)))
    params = params if params is not None else table.get("params")
    if params is not None:
        layers.append(_choose("params", params, sets))
    return _combine([*layers, *more])


def dump_config(config: Config) -> str:
    """Return the whole config as TOML; `load_config` of it returns an equal one. A setting of None is omitted."""
    lines = ["# Every setting of one run; `dpsr-apex train` accepts this file."]
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
    """Raise ConfigError if the config differs from the one saved in `kept`, except in a number of actors above 0."""
    there, here = settings(load_config(kept)), settings(config)
    changeable = set() if 0 in (there["system.actors"], here["system.actors"]) else {"system.actors"}
    differing = sorted(key for key in there.keys() - changeable if there[key] != here[key])
    if differing:
        found = ", ".join(f"{key} = {there[key]!r}" for key in differing)
        longer = ("--steps", str(here["run.total_steps"])) if differing == ["run.total_steps"] else ()
        again = pasteable("resume", kept.parent, *longer)
        raise ConfigError(f"{kept.parent} holds another run, with {found}. To continue that run: {again}")


@cache
def shipped_configs() -> Mapping[str, Path]:
    """Return the paths of the configs that are part of the package, by name."""
    paths = {path.relative_to(_root()).with_suffix("").as_posix(): path for path in sorted(_root().rglob("*.toml"))}
    return {
        name: path for name, path in paths.items() if name != "sets" and not name.startswith(("base/", "experiments/"))
    }


@cache
def shipped_experiments() -> Mapping[str, Path]:
    """Return the paths of the experiments that are part of the package, by name."""
    return {path.stem: path for path in sorted((_root() / "experiments").glob("*.toml"))}


@cache
def _root() -> Path:
    package = Path(__file__).parent
    in_wheel = package / "configs"
    return in_wheel if in_wheel.is_dir() else package.parent / "configs"


@cache
def shipped_bases() -> Mapping[str, Path]:
    """Return the paths of the base settings that are part of the package, by name."""
    return {path.stem: path for path in sorted((_root() / "base").glob("*.toml"))}


def find_file(source: str | Path, shipped: Mapping[str, Path], kind: str) -> Path:
    """Return the file at the path `source`, or else the shipped one of that name; `kind` as in `dpsr-apex list`."""
    name = str(source).removesuffix(".toml")
    if Path(source).is_file():
        return Path(source)
    if name in shipped:
        return shipped[name]
    if (Path(source) / "config.toml").is_file():
        raise ConfigError(
            f"{source} is a run directory. To continue it: {pasteable('resume', source)}. To start a new run with its "
            f"settings: {pasteable('train', Path(source) / 'config.toml')}"
        )
    raise ConfigError(f"{source} is neither a file nor one of `dpsr-apex list {kind}`{_hint(name, shipped)}")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raise ConfigError with the reason if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # also text that is not UTF-8
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _sets(table: Mapping[str, Any], path: Path) -> dict[str, _Layer]:
    """Return every parameter set that the file at `path` can use: the shipped ones, then its own."""
    return {**_shared_sets(), **_named_sets(table.get("sets", {}), path)}


def shipped_sets() -> list[str]:
    """Return the names of parameter sets: those of the configs of Atari games, and those for any config."""
    own = {name for path in shipped_configs().values() for name in read_toml(path).get("sets", {})}
    return [*sorted(own), *_shared_sets()]


@cache
def _shared_sets() -> Mapping[str, _Layer]:
    path = _root() / "sets.toml"
    return _named_sets(read_toml(path).get("sets"), path)


def _named_sets(tables: Any, origin: Path) -> dict[str, _Layer]:
    if not isinstance(tables, dict):
        raise ConfigError(Fault("sets", tables, "a table of parameter sets").found_in(origin))
    return {name: _layer(body, f"sets.{name} of {origin}") for name, body in tables.items()}


def _choose(key: str, name: Any, options: Mapping[str, Option]) -> Option:
    if isinstance(name, str) and name in options:
        return options[name]
    fault = Fault(key, name, "one of " + ", ".join(options))
    raise ConfigError(f"{fault}{_hint(str(name), options)}")


def _override(text: str) -> _Layer:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: write it as key=value, for example replay.capacity=10000")
    table: Any = _bare_value(value.strip())
    for part in reversed(key.strip().split(".")):
        table = {part: table}
    return _layer(table, f"--set {text}")


def _bare_value(text: str) -> Any:
    """Parse `text` as a TOML value; return it as a string if it is not one, so that words need no quotes in a shell."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _layer(table: Any, origin: str) -> _Layer:
    """Return the settings of a tree of TOML tables; raise ConfigError for unknown keys and wrong types."""
    if not isinstance(table, dict):
        raise ConfigError(f"{origin} must be a table of settings (got {table!r})")
    flat = _flatten(table)
    if faults := [fault for key, raw in flat.items() if (fault := _refusal(key, raw))]:
        raise ConfigError(*(f"{fault} (from {origin})" for fault in faults))
    return _Layer({key: _from_toml(SETTINGS[key].kind, raw) for key, raw in flat.items()}, origin)


def _flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted key; anything that is not a table of a known section stays under its own key."""
    flat: dict[str, Any] = {}
    for section, body in table.items():
        if section in SECTIONS and isinstance(body, dict):
            flat |= {f"{section}.{name}": raw for name, raw in body.items()}
        else:
            flat[section] = body
    return flat


def _refusal(key: str, raw: Any) -> str | None:
    """Return why the setting `key` cannot have the value `raw`; None if it can."""
    if key in SECTIONS:
        return str(Fault(key, raw, "a table of settings"))
    if key not in SETTINGS:
        return f"{key} is not a setting{_hint_setting(key) or _neighbours(key)}"
    kind = SETTINGS[key].kind
    if fits(kind, _from_toml(kind, raw)):
        return None
    if kind is Schedule and isinstance(raw, dict) and (whole := _completed(key, raw)):
        return f"{key} must be a whole schedule, such as '{key} = {toml_value(whole)}' (got {toml_value(raw)})"
    return str(Fault(key, raw, describe(kind)))


def _completed(key: str, part: dict[str, Any]) -> Schedule | None:
    """Return the default schedule of a setting with some numbers replaced; None if `part` has anything else."""
    default = asdict(settings(Config())[key])
    is_part = part.keys() <= default.keys() and all(map(is_number, part.values()))
    return Schedule(**default | {name: float(number) for name, number in part.items()}) if is_part else None


def _hint_setting(key: str) -> str:
    """Suggest a setting or section whose last part resembles that of `key`; it may be in another section."""
    words = {name.split(".")[1]: name for name in SETTINGS} | dict(zip(SECTIONS, SECTIONS, strict=True))
    close = difflib.get_close_matches(key.split(".")[-1], words, n=1)
    return f"; did you mean {words[close[0]]}?" if close else ""


def _neighbours(key: str) -> str:
    section = key.split(".")[0]
    names = [name.removeprefix(f"{section}.") for name in SETTINGS if name.startswith(f"{section}.")]
    return f"; {section} has {', '.join(names)}" if names else f"; the sections are {', '.join(SECTIONS)}"


def _hint(name: str, options: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, options, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _from_toml(kind: Any, raw: Any) -> Any:
    """Convert `raw` to the form in which the tree stores a `kind`; return it unchanged if that is impossible."""
    if kind is Schedule:
        return _schedule(raw)
    if kind is float and is_number(raw):
        return float(raw)
    if kind is int and isinstance(raw, float) and raw.is_integer():  # such as 1e6
        return int(raw)
    is_list = get_origin(kind) is tuple or isinstance(kind, SomeOf)
    return tuple(raw) if is_list and isinstance(raw, list) else raw


def _schedule(raw: Any) -> Any:
    if is_number(raw):
        return constant(float(raw))
    if isinstance(raw, dict) and {"start", "end"} <= raw.keys() <= {"start", "end", "over"}:
        return Schedule(**{name: _from_toml(float, number) for name, number in raw.items()})
    return raw


def _combine(layers: Sequence[_Layer]) -> Config:
    values, origins = settings(Config()), dict.fromkeys(SETTINGS, "the defaults")
    for layer in layers:
        for key, value in layer.values.items():
            values[key] = {**values[key], **value} if isinstance(value, dict) else value
            origins[key] = layer.origin
    config = Config(**{section: _section(section, values) for section in SECTIONS})
    faults = find_faults(config)
    if faults:
        raise ConfigError(*(fault.found_in(origins[fault.setting]) for fault in faults))
    return config


def _section(section: str, values: Mapping[str, Any]) -> Any:
    own = {key.removeprefix(f"{section}."): value for key, value in values.items() if key.startswith(f"{section}.")}
    return SECTIONS[section](**own)


def toml_value(value: Any) -> str:
    """Return a value as TOML on one line."""
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
    # JSON and TOML use the same escapes, except that TOML requires DEL to be escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_text(key)
