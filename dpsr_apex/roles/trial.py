"""Try out in a child process which states can be re-entered: a damaged one can end the process that re-enters it.

A child costs more than re-entering the states does, so states are tried out only after an actor has died.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import warnings
from collections.abc import Sequence

from dpsr_apex import timeouts
from dpsr_apex.envs.stacked import StackedEnv
from dpsr_apex.replay.transitions import Transitions
from dpsr_apex.roles.experience import Faults

_TRIED = b"."


def states_that_end_a_process(env: StackedEnv, starts: Transitions, rows: Sequence[int]) -> Faults:
    """Return those of these rows whose state ends a process, or does not return, when it is restored and stepped.

    What raises an exception there is not included: that can be handled where it happens. `env` is not changed.
    """
    faults: Faults = {}
    remaining = list(rows)
    while remaining:
        tried, ended_by = _try_out(env, starts, remaining)
        if ended_by:
            faults[remaining[tried]] = _reason(ended_by)
            tried += 1
        remaining = remaining[tried:]
    return faults


def _try_out(env: StackedEnv, starts: Transitions, rows: Sequence[int]) -> tuple[int, int]:
    """Try these rows in one child; return how many it has survived, and the signal that has ended it (0 if none)."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Newer Python versions warn about forking with threads; the child does not use what those threads own.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            _run_child(env, starts, rows, write)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        tried = len(stream.read())  # until the child has ended
    _, status = os.waitpid(child, 0)
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return (tried, ended_by) if ended_by or tried == len(rows) else (tried, signal.SIGABRT)


def _run_child(env: StackedEnv, starts: Transitions, rows: Sequence[int], write: int) -> None:
    """Take a step with every action from each state; the alarm ends this process if one takes too long."""
    faulthandler.disable()  # a crash is expected here, and reported by the parent
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for row in rows:
        signal.setitimer(signal.ITIMER_REAL, timeouts.STATE_TRIAL)
        try:
            env.restore(starts.snapshots[row], starts.s_tm1[row])
            for action in range(env.actions):
                env.step(action)
        except Exception:
            pass
        os.write(write, _TRIED)


def _reason(ended_by: int) -> str:
    if ended_by == signal.SIGALRM:
        return f"re-entering it takes longer than {timeouts.STATE_TRIAL:g} s"
    return f"re-entering it ends the process with {signal.Signals(ended_by).name}"
