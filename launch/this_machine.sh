#!/usr/bin/env bash
# Everything on this machine: a replay, a learner, an evaluator, and an actor for each core that is left.
# Sets everything up on the first call, then trains.
#   launch/this_machine.sh                                    Breakout for a few minutes
#   launch/this_machine.sh atari/qbert --actors 4             any other run; see dpsr-apex train --help
#   launch/this_machine.sh cartpole --solo                    all in one process
set -eu
cd "$(dirname "$0")/.."
make --silent install
test $# -gt 0 || set -- breakout_short
exec .venv/bin/dpsr-apex train "$@"
