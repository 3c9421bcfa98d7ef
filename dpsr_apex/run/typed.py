"""Commands of ours as a person can type them again."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def pasteable(*words: str | Path) -> str:
    """A command with these words behind its name, to be pasted into a shell."""
    return " ".join([_command(), *(shlex.quote(str(word)) for word in words)])


def _command() -> str:
    """What was typed to get here."""
    name = Path(sys.argv[0]).name
    if name == "__main__.py":
        return "python -m dpsr_apex.cli"
    return name if shutil.which(name) else shlex.quote(sys.argv[0])
