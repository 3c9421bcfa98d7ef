"""The one base class of errors that a user can act on."""

from __future__ import annotations


class UserError(Exception):
    """Base class of errors that the user can fix; the message states what happened, why, and what to do next.

    The command prints the message without a traceback and exits with `exit_code`: 2 for invalid input, 1 for a failed
    run.
    """

    exit_code = 2
    trace = ""  # traceback of an exception in the user's own code, which is printed before the message
