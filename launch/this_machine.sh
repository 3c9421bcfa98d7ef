#!/usr/bin/env bash
# Train on this machine: a replay, a learner, an evaluator, and an actor for each remaining core.
# The first call installs everything.
#   launch/this_machine.sh                                    KungFuMaster for a few minutes
#   launch/this_machine.sh atari/qbert --actors 4             another run; see dpsr-apex train --help
#   launch/this_machine.sh cartpole --solo                    all in one process
set -eu
cd "$(dirname "$0")/.."
make --silent install
test $# -gt 0 || set -- quickstart
exec .venv/bin/dpsr-apex train "$@"
