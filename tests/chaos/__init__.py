"""Chaos: a real run whose processes, network and disk fail at random, and a check of what became of its transitions."""
