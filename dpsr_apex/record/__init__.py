"""What a run writes to disk: its directory, lock, checkpoints, metrics and evaluations."""
