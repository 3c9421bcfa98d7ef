#!/usr/bin/env bash
# Actors on other machines, for a run whose head and learner are on this one. Manually, this takes three commands:
#
#   here     .venv/bin/dpsr-apex train atari/breakout --actors 2 --run-dir runs/breakout --bind 0.0.0.0:5555
#   here     scp -p runs/breakout/keys/actor.key other-host:
#   there    .venv/bin/dpsr-apex actor --connect this-host:5555 --key ~/actor.key         once per core
#
# Whoever has the key file can send transitions to the run: keep it as private as an ssh key. It is created for its owner
# only, and scp -p preserves that. The replay listens at the given port and the learner at the next one (5555 and 5556): open both.
# Actors may join and leave during the run: acknowledged transitions are kept, and pending recycling requests are
# reassigned.
#
# This script runs the second and the third command for hosts that ssh can reach without a password, and that have this
# folder at the same path (a shared home folder, or a clone in which `make install` was run):
#
#   launch/other_machines.sh runs/breakout 8 host-1 host-2             8 actors on each
#   HEAD=10.0.0.1 launch/other_machines.sh runs/breakout 8 host-1      if they reach this machine by that address
#
# It shows the actors' output until the run ends. If the script is ended earlier, its actors leave the run.
set -eu
cd "$(dirname "$0")/.."
stop() { echo "$1" >&2; exit 2; }
test $# -ge 3 || stop "usage: $0 RUN_DIR ACTORS HOST..."
run=$1 actors=$2
shift 2
test -f "$run/connection.json" || stop "$run is not running"
if test -z "${HEAD:-}" && grep -Eq '"tcp://(127\.|\[::1\])' "$run/connection.json"; then
    stop "$run accepts only this machine: start it with --bind 0.0.0.0:5555"
fi
port=$(sed 's/.*"endpoint": "[^"]*:\([0-9]*\)".*/\1/' "$run/connection.json")

for host in "$@"; do
    scp -pq "$run/keys/actor.key" "$host:.dpsr_apex.key"
    for number in $(seq "$actors"); do
        act="actor --connect ${HEAD:-$(hostname)}:$port --key ~/.dpsr_apex.key --name $host-$number"
        # With --lifeline an actor leaves when its standard input is closed, which happens when this script ends.
        ssh "$host" "cd '$PWD' && exec .venv/bin/dpsr-apex $act --lifeline" 2>&1 \
            < <(exec tail --pid=$$ -f /dev/null) | sed -u "s/^/$host-$number: /" &
    done
done
wait
