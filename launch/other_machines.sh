#!/usr/bin/env bash
# Actors on other machines, for a run whose head and learner are here. By hand it takes three commands:
#
#   here     .venv/bin/dpsr-apex train atari/breakout --actors 2 --run-dir runs/breakout --bind 0.0.0.0:5555
#   here     scp -p runs/breakout/keys/client.key other-host:
#   there    .venv/bin/dpsr-apex actor --connect this-host:5555 --key ~/client.key        as often as it has cores
#
# Whoever has that file is in: it is as private as an ssh key, made for its owner alone, and scp -p keeps it so.
# Others reach the replay at the port that was named and the learner at the next one (5555 and 5556): both must be open.
# Actors may come and go while the run goes on: what was acknowledged is kept, and others do what they were to do.
#
# This script does the second and the third for hosts that ssh can reach without asking, and that have this folder at
# the same path (a shared home, or a clone in which `make install` was run):
#
#   launch/other_machines.sh runs/breakout 8 host-1 host-2             8 actors on each
#   HEAD=10.0.0.1 launch/other_machines.sh runs/breakout 8 host-1      where they know this machine by that address
#
# It shows what they print, until the run ends. When it is ended before, its actors leave the run.
set -eu
cd "$(dirname "$0")/.."
stop() { echo "$1" >&2; exit 2; }
test $# -ge 3 || stop "usage: $0 RUN_DIR ACTORS HOST..."
run=$1 actors=$2
shift 2
test -f "$run/connection.json" || stop "$run is not running"
test -f "$run/keys/client.key" || stop "$run is for this machine alone: start it with --bind 0.0.0.0:5555"
port=$(sed 's/.*"endpoint": "[^"]*:\([0-9]*\)".*/\1/' "$run/connection.json")

for host in "$@"; do
    scp -pq "$run/keys/client.key" "$host:.dpsr_apex.key"
    for number in $(seq "$actors"); do
        act="actor --connect ${HEAD:-$(hostname)}:$port --key ~/.dpsr_apex.key --name $host-$number"
        # With a lifeline an actor leaves when its standard input ends, which is when this script does.
        ssh "$host" "cd '$PWD' && exec .venv/bin/dpsr-apex $act --lifeline" 2>&1 \
            < <(exec tail --pid=$$ -f /dev/null) | sed -u "s/^/$host-$number: /" &
    done
done
wait
