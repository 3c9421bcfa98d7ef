"""A place where recipes of `launch/` are really run, with stand-ins for the tools that reach other machines.

A stand-in refuses what it does not know, as the tool itself would, and does here what it would do elsewhere.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"

# As many copies of a command as there are tasks; what is asked for is written down, and signals are passed on.
SRUN = """
echo "$*" >>"${SRUN_LOG:-/dev/null}"
tasks=1
while [[ $1 == --* ]]; do
    case $1 in
        --ntasks=*) tasks=${1#*=} ;;
        --exact | --nodes=* | --cpus-per-task=* | --gres=* | --nodelist=* | --exclude=*) ;;
        --kill-on-bad-exit=0 | --wait=0 | --cpu-bind=none) ;;
        *) echo "srun: unrecognized option $1" >&2; exit 1 ;;
    esac
    shift
done
test "$tasks" -gt 1 || SLURM_PROCID=0 exec "$@"
running=()
trap 'kill -TERM "${running[@]}" 2>/dev/null || true' TERM
for ((task = 0; task < tasks; task++)); do
    SLURM_PROCID=$task "$@" &
    running+=($!)
done
highest=0
for process in "${running[@]}"; do
    while kill -0 "$process" 2>/dev/null; do wait "$process" || true; done
    code=0
    wait "$process" || code=$?
    highest=$((code > highest ? code : highest))
done
exit $highest
"""
TOOLS = {
    "make": 'test "$*" = "--silent install"',
    "ssh": 'cd "$HOME"; shift; exec bash -c "$*"',
    "scp": 'test "$1" = -pq; cp -p "$2" "$HOME/${3#*:}"',
    "srun": SRUN,
}


def set_up_kitchen(place: Path) -> Path:
    """A copy of the recipes with all that they need, where `make install` has nothing to do."""
    shutil.copytree(LAUNCH, place / "launch")
    for name in ("configs", "dpsr_apex"):
        (place / name).symlink_to(ROOT / name)
    (place / ".venv").symlink_to(sys.prefix)
    for name, script in TOOLS.items():
        write_tool(place / "tools" / name, script)
    return place


def write_tool(path: Path, script: str) -> None:
    """A command of that name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\nset -eu\n{script}\n")
    path.chmod(0o755)


def environment(kitchen: Path, **more: str) -> dict[str, str]:
    """That of a shell in which the stand-ins come first."""
    return os.environ | {"PATH": f"{kitchen / 'tools'}:{os.environ['PATH']}", "HOME": str(kitchen.parent), **more}
