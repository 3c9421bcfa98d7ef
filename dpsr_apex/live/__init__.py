"""The live view of a running run. It only displays metrics and statistics; a run never depends on it."""
