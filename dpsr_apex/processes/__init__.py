"""One file per kind of process: a role, its sockets and its clock, and the loop that connects them."""
