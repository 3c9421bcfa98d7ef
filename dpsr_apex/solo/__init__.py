"""The single-process run."""
