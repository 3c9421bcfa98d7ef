"""Write the tables of replay methods into docs/concepts.md: `make docs`.

Methods are those of `dpsr_apex/methods.py`; what a sampler, a remover or a recycler does is the docstring of its
class. A test compares the pages.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dpsr_apex.methods import METHODS
from dpsr_apex.replay.recyclers import RECYCLERS
from dpsr_apex.replay.removers import REMOVERS
from dpsr_apex.replay.samplers import SAMPLERS

ROOT = Path(__file__).parents[1]
PAGES: Final = (ROOT / "docs" / "concepts.md",)
_MARKED = re.compile(r"(<!-- methods: (\w+) -->\n).*?(<!-- end of methods -->)", re.DOTALL)


def fill_in(page: str) -> str:
    """Return the page with every marked table rewritten."""
    tables = {
        "table": _methods(),
        "samplers": _classes(SAMPLERS),
        "removers": _classes(REMOVERS),
        "recyclers": _classes(RECYCLERS),
    }
    return _MARKED.sub(lambda marked: f"{marked[1]}{tables[marked[2]]}{marked[3]}", page)


def _methods() -> str:
    rows = [
        [
            f"`{method.name}`",
            method.description,
            method.paper,
            f"`{method.sampler}`",
            f"`{method.remover}`",
            f"`{method.recycler}`",
        ]
        for method in METHODS.values()
    ]
    return _markdown(["method", "description", "in the paper", "sampler", "remover", "recycler"], rows)


def _classes(classes: Mapping[str, type[object]]) -> str:
    rows = [[f"`{name}`", (inspect.getdoc(kind) or "").partition("\n")[0]] for name, kind in classes.items()]
    return _markdown(["", ""], rows)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in [columns, ["---"] * len(columns), *rows])


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(fill_in(path.read_text(encoding="utf-8")), encoding="utf-8")
