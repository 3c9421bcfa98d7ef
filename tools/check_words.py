"""Check that code and pages use plain terms: `python -m tools.check_words` prints phrases to avoid, and what to write.

A finding is printed as `file:line: phrase -> suggestion`; the exit code is 1 if there are any. Phrases are found in
text and in identifiers, also across line breaks. Only the paths in CHECKED are searched.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SUFFIXES = {".css", ".html", ".js", ".md", ".py", ".toml"}
ANY_SUFFIX = "launch"  # the folder of which all files are checked

CHECKED = (
    *("CHANGELOG.md", "README.md", "SECURITY.md"),
    *("benchmarks", "configs", "docs", "dpsr_apex", "examples", "launch", "tests", "tools"),
)
"""Folders and files, relative to the root of the project."""

EXCLUDED = ("tools/check_words.py", "tests/unit/test_check_words.py")
"""Files that contain the phrases as data."""

PHRASES = {
    # Terms of the field.
    r"drawn (?:again|at random|by|from)": "sampled, resampled",
    r"draw(?:s|ing)? (?:a batch|candidates)": "sample",
    r"squeez(?:e|es|ed|ing)": "compress",
    r"inflat(?:e|es|ed|ing|ion)": "decompress",
    r"(?:make|makes|made|making) room": "is evicted, is replaced",
    r"(?:points|steps|score) (?:a|of a|of one) game": "per episode",
    r"whole games": "episodes",
    r"learnt": "learned, trained on",
    r"left and re entered": "saved and restored exactly",
    r"re enterable": "restorable",
    r"torn lines?": "incomplete line",
    r"tenants?": "the transition that replaced it",
    r"elder siblings?": "sibling nodes",
    # Metaphors for processes, messages and files.
    r"(?:mourn|bur(?:y|ies|ied)|forgiv(?:e|es|en|ing))": "handle the crash, reap, reset the restart budget",
    r"mend(?:s|ed|ing)?": "fix",
    r"whereabouts": "HeadLocator",
    r"onlookers?": "observer",
    r"who(?:ever)? looks?": "observer, client",
    r"knock(?:s|ed|ing)?": "connect",
    r"sends? everybody home": "ends all other processes",
    r"at the door": "when joining",
    r"let in": "accept",
    r"turn(?:s|ed|ing)? away": "deny",
    r"lets? go of": "release, close",
    r"hand(?:s|ed|ing)? over": "pass",
    r"(?:give|gives|given|gave) away": "pass, return",
    r"knows? nothing of": "does not depend on",
    r"says? it all": "is complete",
    r"(?:go|goes|going|went) on": "continue, be running",
    r"plays? on (?:after|with)": "continue",
    r"stands? still": "be paused, not change",
    # Literal translations.
    r"so many": "the number itself",
    r"the same,? but": "the difference",
    r"what there is": "the thing itself",
    r"(?:do|does) not tell apart": "no significant difference",
    r"(?:tell|tells|told) (?:\w+ )?apart": "distinguish",
    r"what one sees": "what you see",
    r"times better": "speed-up",
    r"dear(?:er|est)?": "expensive",
    r"by and by": "gradually",
    r"in vain": "without effect",
    r"anew": "again",
    r"in turns": "in turn, alternately",
    r"is no (?:address|key|number|port|file|list)": "is not a ...",
}
"""Regular expressions; a space also matches an underscore, a hyphen and a line break. Values are suggestions."""

SEPARATOR = r"(?:[ _-]|[ \t]*\n[ \t]*(?:# ?)?)"
PATTERNS = [
    (re.compile(rf"(?<![A-Za-z]){phrase.replace(' ', SEPARATOR)}(?![A-Za-z])", re.IGNORECASE), suggestion)
    for phrase, suggestion in PHRASES.items()
] + [(re.compile(r'"""The same\b'), "a docstring that stands alone")]


class Finding(NamedTuple):
    """One phrase to avoid."""

    line: int
    phrase: str
    suggestion: str


def findings_in(text: str) -> list[Finding]:
    """Return all phrases to avoid in a text, in order of their lines."""
    found = [
        Finding(text.count("\n", 0, match.start()) + 1, re.sub(r"\s*\n[\s#]*", " ", match[0]), suggestion)
        for pattern, suggestion in PATTERNS
        for match in pattern.finditer(text)
    ]
    return sorted(found)


def files_in(paths: Sequence[str], root: Path | None = None) -> Iterator[Path]:
    """Yield the files to check at or below these paths; a path that does not exist is an error."""
    root = root or ROOT
    for path in paths:
        start = root / path
        if not start.exists():
            raise FileNotFoundError(f"{path} does not exist: correct CHECKED in tools/check_words.py")
        for file in [start] if start.is_file() else _files_below(start):
            name = file.relative_to(root)
            if (file.suffix in SUFFIXES or name.parts[0] == ANY_SUFFIX) and str(name) not in EXCLUDED:
                yield file


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below, without caches and virtual environments."""
    for entry in sorted(folder.iterdir()):
        if entry.is_file():
            yield entry
        elif not entry.name.startswith((".", "__pycache__")):
            yield from _files_below(entry)


def main() -> int:
    """Print the findings in all checked files; return the exit code."""
    count = 0
    for file in files_in(CHECKED):
        for finding in findings_in(file.read_text(encoding="utf-8")):
            print(f"{file.relative_to(ROOT)}:{finding.line}: {finding.phrase} -> {finding.suggestion}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
