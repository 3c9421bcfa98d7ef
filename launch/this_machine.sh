#!/usr/bin/env bash
# One process on this machine: sets everything up on the first call, then trains.
#   launch/this_machine.sh                                     Breakout for a few minutes
#   launch/this_machine.sh configs/atari/qbert.toml --solo     any other run
set -eu
cd "$(dirname "$0")/.."
make --silent install
exec .venv/bin/dpsr-apex train "${@:-configs/breakout_short.toml}" --solo
