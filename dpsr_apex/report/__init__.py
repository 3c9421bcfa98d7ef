"""Generate one HTML page of learning curves and tables from run directories, which are only read."""

from __future__ import annotations

from dpsr_apex.record.run_directory import RunDirectoryError


class ReportError(RunDirectoryError):
    """Raised when no report can be made from, or written to, the given paths."""
