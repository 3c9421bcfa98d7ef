"""The one base class of errors that a user can act on."""

from __future__ import annotations

from collections.abc import Sequence


class UserError(Exception):
    """Base class of errors that the user can fix; the message states what happened, why, and what to do next.

    The command prints the message without a traceback and exits with `exit_code`: 2 for invalid input, 1 for a failed
    run.
    """

    exit_code = 2
    trace = ""  # traceback of an exception in the user's own code, which is printed before the message


class MissingPackage(UserError, ImportError):
    """Raised where an optional package is missing: who needs it, and how it is installed."""

    def __init__(self, user: str, package: str, requirements: str | Sequence[str], extra: str) -> None:
        needed = [requirements] if isinstance(requirements, str) else requirements
        super().__init__(
            f"{user} needs the package {package}, which is not installed: "
            f"pip install {' '.join(map(repr, needed))} (in a clone: pip install '.[{extra}]')"
        )
