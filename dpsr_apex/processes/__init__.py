"""One file for each kind of process: a role, its sockets and its clock, and the loop that joins them."""
