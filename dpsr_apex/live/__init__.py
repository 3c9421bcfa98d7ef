"""What a person sees of a run that is going on. It shows what others counted, and a run never depends on it."""
