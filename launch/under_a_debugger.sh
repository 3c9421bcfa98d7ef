#!/usr/bin/env bash
# The whole algorithm in one thread under pdb, stopped wherever a recycling round has been opened.
#   `p round_.candidates` shows who is recycled, `up` who inserted, `c` runs on to the next round.
set -eu
cd "$(dirname "$0")/.."
make --silent install
file=dpsr_apex/replay/memory.py
line=$(grep -n "self.rounds\[number\] = round_" "$file" | cut -d: -f1)
exec .venv/bin/python -m pdb -c "break $file:$line" -c continue -m dpsr_apex.cli train cartpole --solo "$@"
