"""Both ends of every conversation of a run, as state machines without sockets, clocks or threads."""
