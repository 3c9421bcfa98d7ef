"""The learning agent: the network, its loss and its optimizer."""

import os

# Must be set before torch is imported. Otherwise its threads wait for each other in busy loops, and on a machine that
# also does other work an update takes several times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
