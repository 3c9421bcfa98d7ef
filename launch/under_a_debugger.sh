#!/usr/bin/env bash
# Run the whole algorithm in one thread under pdb, with a breakpoint where a recycling round is opened.
#   `p round_.candidates` shows the candidates, `up` goes to the caller, `c` continues to the next round.
set -eu
cd "$(dirname "$0")/.."
make --silent install
file=dpsr_apex/replay/rounds.py
line=$(grep -n "self.counters.rounds_opened += 1" "$file" | cut -d: -f1)
exec .venv/bin/python -m pdb -c "break $file:$line" -c continue -m dpsr_apex.cli train cartpole --solo "$@"
