"""The documents as tests read them: their blocks, the files that a reader is told to save, and the commands to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = (
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "launch").glob("*.md")),
)
RUN = "<!-- run -->"  # on the line before a block: its commands are cheap, and a test types them

_SUFFIXES = {"python": ".py", "toml": ".toml"}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """What stands between two fences."""

    page: Path
    line: int  # of its first line, counted from 1
    language: str  # empty where none is named
    text: str
    saved_as: str  # the name that the paragraph before or after it gives to its file; empty where none does
    is_run: bool

    @property
    def title(self) -> str:
        """Where it is."""
        return f"{self.page.name}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command of ours in it, without the command itself."""
        lines = self.text.replace("\\\n", " ") if self.language == "sh" else ""
        typed = re.findall(r"^ *(?:\.venv/bin/)?dpsr-apex (.+)$", lines, re.MULTILINE)
        return [shlex.split(line, comments=True) for line in typed]


def blocks_of(page: Path) -> Iterator[Block]:
    """All blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        before, after = text[: match.start()], text[match.end() :]
        is_run = before.endswith(f"{RUN}\n")
        paragraphs = before.removesuffix(f"{RUN}\n").rstrip().split("\n\n")[-1:] + after.strip().split("\n\n")[:1]
        yield Block(page, before.count("\n") + 2, match[1], match[2], _saved_as(match[1], paragraphs), is_run)


def blocks(*languages: str) -> list[Block]:
    """The blocks of all pages in these languages."""
    return [block for page in PAGES for block in blocks_of(page) if block.language in languages]


def without_blocks(page: Path) -> str:
    """A page's text alone."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def save_files(page: Path, folder: Path) -> None:
    """Do what the page tells its reader: save its files."""
    for block in blocks_of(page):
        if block.saved_as:
            (folder / block.saved_as).write_text(block.text, encoding="utf-8")


def _saved_as(language: str, paragraphs: Sequence[str]) -> str:
    names = [name for text in paragraphs for name in re.findall(r"[Ss]aved as `([\w.]+)`", text)]
    return next((name for name in names if name.endswith(_SUFFIXES.get(language, "nothing"))), "")
