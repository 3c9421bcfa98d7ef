"""Experiment trackers as further sinks of the rows of metrics: one module per tracker, loaded only if it is used."""
