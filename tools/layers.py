"""The layers of the package: `python -m tools.layers` prints the imports between its parts, and fails on a wrong one.

A part is a package or a module directly in `dpsr_apex/`. It may import parts of lower layers, and parts of its layer
that precede it in the table. Imports inside functions and under TYPE_CHECKING count as well.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1] / "dpsr_apex"

LAYERS: dict[str, tuple[str, ...]] = {
    "base": (
        *(
            "timeouts",
            "errors",
            "checksums",
            "files",
            "rate_limit",
            "logs",
            "machine",
            "formatting",
            "state",
            "schedules",
            "methods",
            "agents",
            "imports",
            "kinds",
        ),
        *("trackers", "config", "config_files", "exploration", "interrupt"),
    ),
    "domain": ("replay", "envs", "agent", "wire"),
    "protocol": ("protocol",),
    "roles": ("roles",),
    "record": ("record", "callbacks"),
    "live": ("live",),
    "run": ("solo", "processes", "supervise", "usability", "running"),
    "tools": ("inspection", "check", "listing", "play", "watch", "report", "experiment", "web"),
    "front": ("api", "sb3", "cli", "__init__"),
}
"""The parts of each layer, lowest first."""

ORDER = [part for parts in LAYERS.values() for part in parts]

EVERYWHERE = {"__init__"}
"""Parts that all may import: the version. Importing the package loads no other part until a public name is used."""


class Import(NamedTuple):
    """One import between two parts."""

    importer: str  # part
    imported: str  # part
    where: str  # file:line


def imports_of(package: Path) -> list[Import]:
    """Return every import from one part of `package` to another, at any depth of the code."""
    return [
        Import(importer, imported, f"{file.relative_to(package.parent)}:{line}")
        for file in sorted(package.rglob("*.py"))
        for importer in [_part_of(file.relative_to(package))]
        for imported, line in _imported_parts(ast.parse(file.read_text(encoding="utf-8")), package)
        if imported != importer
    ]


def forbidden(imports: list[Import]) -> list[str]:
    """Return a line for each import that does not point downward, and for each part that no layer names."""
    parts = {part for one in imports for part in (one.importer, one.imported)}
    unknown = [f"{part}: not in any layer; add it to LAYERS" for part in sorted(parts - set(ORDER))]
    upward = [
        f"{one.where}: {one.importer} imports {one.imported}, which is above it"
        for one in imports
        if one.imported not in EVERYWHERE and not {one.importer, one.imported} & (parts - set(ORDER))
        if ORDER.index(one.imported) > ORDER.index(one.importer)
    ]
    return unknown + upward


def graph(imports: list[Import]) -> dict[str, list[str]]:
    """Return for each part those that it imports, both in the order of the layers."""
    edges = {(one.importer, one.imported) for one in imports}
    return {part: [other for other in ORDER if (part, other) in edges] for part in ORDER}


def show(edges: Mapping[str, list[str]]) -> str:
    """Return the graph as text, layer by layer, the highest first."""
    lines = []
    for layer, parts in reversed(LAYERS.items()):
        lines.append(layer)
        lines += [f"  {part:<14} -> {', '.join(edges[part]) or '-'}" for part in parts if part in edges]
    return "\n".join(lines)


def _part_of(file: Path) -> str:
    return file.parts[0].removesuffix(".py")


def _imported_parts(tree: ast.Module, package: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise ValueError(f"line {node.lineno}: a relative import; name the module in full")
        elif isinstance(node, ast.ImportFrom) and node.module == package.name:
            names = [f"{package.name}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            root, _, rest = name.partition(".")
            if root == package.name:
                yield _existing(rest.partition(".")[0], package), node.lineno


def _existing(part: str, package: Path) -> str:
    """Return the part of this name; `from package import __version__` names something in `__init__` instead."""
    return part if (package / part).is_dir() or (package / f"{part}.py").is_file() else "__init__"


def main() -> int:
    """Print the graph and what is wrong with it; return the exit code."""
    imports = imports_of(PACKAGE)
    print(show(graph(imports)))
    faults = forbidden(imports)
    print(*faults, sep="\n", file=sys.stderr) if faults else None
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
