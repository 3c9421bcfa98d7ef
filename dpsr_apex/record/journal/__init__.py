"""The journal of a run: every event that changes its replay, written before its effects become visible."""
