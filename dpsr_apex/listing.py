"""`dpsr-apex list`: the names that configs and commands accept, with one line about each. Nothing is started."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from rich.table import Table

from dpsr_apex.agents import AGENTS, NETWORKS
from dpsr_apex.config_files import read_toml, shipped_configs, shipped_experiments
from dpsr_apex.live.console import make_console
from dpsr_apex.methods import METHODS


class Entry(NamedTuple):
    """One name."""

    name: str
    description: str


def list_command(kind: str, as_json: bool) -> int:
    """Print the names of a kind, which is a key of KINDS, as a table or as JSON; return the exit code."""
    entries = KINDS[kind]()
    if as_json:
        sys.stdout.write(json.dumps([entry._asdict() for entry in entries], indent=2) + "\n")
        return 0
    console = make_console()
    if console.is_terminal:
        console.print(_table(entries))
    else:  # one line per name for other programs
        width = max(len(entry.name) for entry in entries)
        sys.stdout.writelines(f"{entry.name:{width}}  {entry.description}\n" for entry in entries)
    if kind in _MORE:
        console.print(_MORE[kind], soft_wrap=True)
    return 0


def _table(entries: Iterable[Entry]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("name", no_wrap=True, style="cyan")
    table.add_column("description")
    for entry in entries:
        table.add_row(*entry)
    return table


def _configs() -> list[Entry]:
    """Return the shipped configs with their first line, a comment."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in shipped_configs().items()}
    return [Entry(name, text.partition("\n")[0].removeprefix("# ")) for name, text in texts.items()]


def _experiments() -> list[Entry]:
    return [Entry(name, read_toml(path)["description"]) for name, path in shipped_experiments().items()]


def _environments() -> list[Entry]:
    from dpsr_apex.envs import classic
    from dpsr_apex.envs.atari import games
    from dpsr_apex.envs.check import PAPER_GAMES

    return [
        *_entries(classic.EXACT, "control task of Gymnasium; snapshots contain its state"),
        Entry("LunarLander-v3", "task of Gymnasium (extra box2d); snapshots contain the actions since the start"),
        Entry("Corridor", "the paper's motivating example, with the argument depth"),
        *_optional("MinAtar", _minatar),
        *_optional("MiniGrid", _minigrid),
        *(Entry(game, f"Atari game{', in the paper' if game in PAPER_GAMES else ''}") for game in games()),
    ]


def _optional(package: str, found: Callable[[], list[Entry]]) -> list[Entry]:
    """Return the environments of a package; one entry with the reason if it is not installed."""
    from dpsr_apex.envs.snapshot import UnusableEnvironment

    try:
        return found()
    except UnusableEnvironment as missing:
        return [Entry(package, str(missing))]


def _minatar() -> list[Entry]:
    from dpsr_apex.envs.minatar import GAMES

    return _entries((f"MinAtar/{game}" for game in GAMES), "small version of an Atari game")


def _minigrid() -> list[Entry]:
    from dpsr_apex.envs.minigrid import tasks

    return _entries(tasks(), "grid with a goal, keys and doors")


def _entries(names: Iterable[str], description: str) -> list[Entry]:
    return [Entry(name, description) for name in names]


KINDS: Final[dict[str, Callable[[], list[Entry]]]] = {
    "configs": _configs,
    "experiments": _experiments,
    "envs": _environments,
    "methods": lambda: [Entry(method.name, method.description) for method in METHODS.values()],
    "agents": lambda: [Entry(name, entry.description) for name, entry in AGENTS.items()],
    "networks": lambda: [Entry(name, description) for name, description in NETWORKS.items()],
}

_MORE: Final = {
    "configs": "For any other Atari game of `dpsr-apex list envs`: atari/GAME",
    "envs": "Also: any registered id of Gymnasium, and your own package.module:Class",
    "agents": "Also: your own package.module:Class",
    "networks": "Also: your own package.module:Class",
}
