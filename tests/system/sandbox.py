"""A folder in which the scripts of `launch/` are run, with substitutes for the tools that reach other machines.

A substitute rejects unknown options, as the tool itself would, and runs on this machine what the tool runs elsewhere.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "launch"

# Runs one copy of a command per task, logs its own arguments, and forwards SIGTERM.
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


def set_up_sandbox(place: Path) -> Path:
    """Copy the scripts with everything that they need; `make install` does nothing there."""
    shutil.copytree(LAUNCH, place / "launch")
    for name in ("configs", "dpsr_apex"):
        (place / name).symlink_to(ROOT / name)
    (place / ".venv").symlink_to(sys.prefix)
    for name, script in TOOLS.items():
        write_tool(place / "tools" / name, script)
    return place


def write_tool(path: Path, script: str) -> None:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\nset -eu\n{script}\n")
    path.chmod(0o755)


def environment(sandbox: Path, **more: str) -> dict[str, str]:
    """Return the environment of a shell that finds the substitutes first."""
    return os.environ | {"PATH": f"{sandbox / 'tools'}:{os.environ['PATH']}", "HOME": str(sandbox.parent), **more}
