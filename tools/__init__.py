"""Checks of the source tree that `make lint` and `make graph` run."""
