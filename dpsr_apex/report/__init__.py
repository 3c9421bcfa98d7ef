"""One page of curves and tables from run directories. It reads what runs left behind, and never changes it."""

from __future__ import annotations

from dpsr_apex.run.run_directory import RunDirectoryError


class ReportError(RunDirectoryError):
    """Paths of which, or to which, no report can be made: why, and what to give instead."""
