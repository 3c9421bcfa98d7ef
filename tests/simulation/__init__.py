"""Runs without sockets, threads or waiting: the real protocol at both ends, over a network that a test controls."""
