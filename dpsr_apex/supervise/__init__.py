"""Start, restart and stop the processes of a run, on this machine or on a cluster."""
