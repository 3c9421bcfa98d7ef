"""Writes docs/configuration.md from the dataclasses of the configuration: `make docs`.

What a key means and its unit are the comments beside it in `dpsr_apex/config.py`, so there is one place to say it; a
test holds the page to them.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from dpsr_apex.config import AT_MOST, KINDS, RANGES, SECTIONS, Config, describe
from dpsr_apex.config_files import toml_value
from dpsr_apex.replay.schedules import Schedule

PAGE = Path(__file__).with_name("configuration.md")

HEAD = """# Configuration

Every setting of a run, generated from `dpsr_apex/config.py` by `make docs`. A config is a TOML file such as:

```toml
base = "paper"        # beneath everything: paper, released or apex (configs/base/)
params = "dpsr3"      # a parameter set, of this file or of configs/sets.toml

[env]
name = "Breakout"

[replay]
method = "dpsr"
replacing_exponent = { start = 0.1, end = 0.6, over = 0.5 }   # a line over the first half of the run

[run]
total_steps = 200_000
```

A later layer wins: the defaults below, the base, the file's own tables, the parameter set, then `--set KEY=VALUE` and
the flags of `dpsr-apex train`. Whatever is misspelt or out of range is refused before anything starts, with what would
be allowed. `RUN_DIR/config.toml` holds every setting of a run and can be run again as it is.

A *schedule* is a number, or a line `{ start = A, end = B, over = F }` from A to B over the first share F of the run,
and B from there on. Its clock is t, the number of transitions inserted so far.
"""


def write_page() -> str:
    """The whole page."""
    sections = [_section(name, kind) for name, kind in SECTIONS.items()]
    return "\n".join([HEAD, *sections, _limits()])


def _section(name: str, kind: Any) -> str:
    default = getattr(Config(), name)
    comments = _comments(kind)
    rows = [
        f"| `{name}.{field.name}` | {_default(getattr(default, field.name))} | {_allowed(f'{name}.{field.name}')} | "
        f"{comments.get(field.name, '')} |"
        for field in fields(kind)
    ]
    head = [f"## `[{name}]`", "", inspect.getdoc(kind) or "", "", "| key | default | allowed | meaning |"]
    return "\n".join([*head, "| --- | --- | --- | --- |", *rows, ""])


def _comments(kind: Any) -> dict[str, str]:
    """The comment beside each field, in the source."""
    lines = re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(kind), re.MULTILINE)
    return {name: _escaped(comment) for name, comment in lines}


def _allowed(key: str) -> str:
    words = "a schedule" if KINDS[key] is Schedule else describe(KINDS[key])
    numbers = f", {RANGES[key]}" if key in RANGES else ""
    return _escaped(f"{words}{numbers}")


def _default(value: Any) -> str:
    return "–" if value is None else f"`{toml_value(value)}`"


def _limits() -> str:
    lines = [f"- `{key}` may not be greater than `{bound}`." for key, bound in AT_MOST]
    return "\n".join(["## Together", "", *lines, ""])


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
