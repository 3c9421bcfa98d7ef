"""Generate docs/configuration.md from the dataclasses of the configuration: `make docs`.

Type, range and default are those of `dpsr_apex/config.py`; symbol, unit and meaning are the comment on the same line,
"symbol, unit: meaning". A test compares the page.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from dpsr_apex.config import AT_MOST, FIXED, INCIDENTAL, SECTIONS, SETTINGS, Config
from dpsr_apex.config_files import toml_value
from dpsr_apex.kinds import describe
from dpsr_apex.schedules import Schedule

PAGE = Path(__file__).with_name("configuration.md")
UNITS: Final = (
    *("transitions", "environment steps", "episodes", "frames", "seconds", "batches", "checkpoints"),
    *("environments", "processes", "threads", "units", "quantiles", "updates", "MiB"),
)
COLUMNS: Final = ("key", "default", "meaning", "values")

HEAD = """# Configuration

Every setting of a run, generated from `dpsr_apex/config.py` by `make docs`. A config is a TOML file such as:

```toml
base = "paper"        # base settings: paper, released, apex, modern or classic
params = "dpsr3"      # a parameter set, from this file or from configs/sets.toml

[env]
name = "Breakout"

[replay]
method = "dpsr"
replacing_exponent = { start = 0.1, end = 0.6, over = 0.5 }   # a line over the first half of the run

[run]
total_steps = 200_000
```

Later layers override earlier ones: the defaults below, the base, the file's own tables, the parameter set, then
`--set KEY=VALUE` and the flags of `dpsr-apex train`. An unknown key or an invalid value is rejected before anything
starts, with a message that states what is allowed. `RUN_DIR/config.toml` contains every setting of a run;
`dpsr-apex train RUN_DIR/config.toml` repeats it.

A *schedule* is a number, or `{ start = A, end = B, over = F }`: linear from A to B over the first fraction F of the
run, and constant at B afterwards. It is a function of t, the number of transitions inserted so far. Its range applies
to A and B.

Before a run is resumed, its `config.toml` may be edited: the new values take effect from there on, and are listed. A
checkpoint depends on the settings that are marked *fixed*: if one of them differs from the value that the checkpoint
was written with, `resume` and everything else that reads the checkpoint refuses it, with both values. `system.actors`
may change, except to or from 0.
"""


class Comment(NamedTuple):
    """The comment beside a setting; missing parts are empty."""

    symbol: str  # of the paper
    unit: str
    meaning: str


def write_page() -> str:
    """Return the whole page."""
    sections = [_section(name, kind) for name, kind in SECTIONS.items()]
    return "\n".join([HEAD, *sections, _limits(), _recording()])


def comments_of(kind: Any) -> dict[str, Comment]:
    """Return the comment beside each field of a dataclass, from its source."""
    lines = re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(kind), re.MULTILINE)
    return {name: _comment(text) for name, text in lines}


def _comment(text: str) -> Comment:
    """Split "symbol, unit: meaning"; symbol and unit are optional."""
    head, colon, meaning = text.partition(": ")
    found = re.fullmatch(rf"(\w+(?:\(t\))?)??(?:, )?({'|'.join(UNITS)})?", head)
    return Comment(found[1] or "", found[2] or "", meaning) if colon and found else Comment("", "", text)


def _section(name: str, kind: Any) -> str:
    default, comments = getattr(Config(), name), comments_of(kind)
    rows = [_row(f"{name}.{field.name}", getattr(default, field.name), comments[field.name]) for field in fields(kind)]
    head = [f"## `[{name}]`", "", inspect.getdoc(kind) or "", "", _line(COLUMNS), _line(["---"] * len(COLUMNS))]
    return "\n".join([*head, *rows, ""])


def _row(key: str, default: Any, comment: Comment) -> str:
    meaning = f"{comment.symbol}: {comment.meaning}" if comment.symbol else comment.meaning
    shown = "–" if default is None else f"`{toml_value(default)}`"
    return _line([f"`{key}`", shown, meaning, values_of(key, comment.unit)])


def values_of(key: str, unit: str) -> str:
    """Return which values a setting accepts, in which unit, and whether it is fixed."""
    kind, numbers = SETTINGS[key]
    words = "a schedule" if kind is Schedule else describe(kind)
    kind_of_value, *optional = words.split(" or left out")
    accepted = kind_of_value if numbers is None else f"{kind_of_value} {numbers}"
    parts = [accepted, unit, "or left out" if optional else "", "*fixed*" if key in FIXED else ""]
    return ", ".join(filter(None, parts))


def _line(cells: Any) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _limits() -> str:
    lines = [f"- `{key}` must not be greater than `{bound}`." for key, bound in AT_MOST]
    return "\n".join(["## Constraints between settings", "", *lines, ""])


def _recording() -> str:
    """Return the settings that reports do not group by."""
    words = (
        "These settings determine what is recorded or checked, and cannot change what is learned. `dpsr-apex report`",
        "puts seeds that differ only in them into one group:",
    )
    head = ["## Settings that do not affect learning", "", *words, ""]
    return "\n".join([*head, *(f"- `{key}`" for key in INCIDENTAL), ""])


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
