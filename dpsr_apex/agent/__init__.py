"""The learning agent: the only room that knows torch's tensors."""

import os

# Before torch is loaded: its threads would else wait for each other in busy loops, which on a machine that does other
# work too makes an update several times as slow.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
