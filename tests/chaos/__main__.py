"""`python -m tests.chaos`: let a real run survive random faults, and account for every acknowledged transition."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from statistics import median

from dpsr_apex.record.run_directory import RunDirectory
from tests.chaos.chaotic_run import ChaoticRun, RunEnded
from tests.chaos.faults import Chaos
from tests.chaos.history import Account
from tests.chaos.site import prepared
from tests.system.runs import last_saved


def main(words: list[str] | None = None) -> int:
    """Run for the given time; return 0 if the run has survived everything, and nothing acknowledged is lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of faults (default: 10)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="of the faults (default: random)")
    parser.add_argument("--durability", choices=("process", "power"), default="process", help="of the run")
    parser.add_argument("--logs", type=Path, default=Path("build/chaos"), help="folder for the logs of a failed run")
    given = parser.parse_args(words)
    tell(f"Faults for {given.minutes:g} minutes, from seed {given.seed}.")
    with tempfile.TemporaryDirectory() as name:
        outside = Path(name)
        try:
            return run_under_faults(outside, given.minutes, given.seed, given.durability, given.logs)
        except RunEnded as failure:
            tell(f"FAILED: {failure}")
            return 1


def run_under_faults(outside: Path, minutes: float, seed: int, durability: str, logs: Path) -> int:
    """Cause faults for this time; print them and the result; return 0 if the run has kept its promise."""
    folder = outside / "disk"
    folder.mkdir()
    with prepared(folder) as site:
        for reason in site.missing:
            tell(f"Not tested here: {reason}")
        run = ChaoticRun(site, outside, durability)
        chaos = Chaos(run, site, Random(seed), tell)
        try:
            run.await_progress({})
            chaos.continue_until(time.monotonic() + 60.0 * minutes)
            run.stop()
            account = run.judge()
        except RunEnded:
            keep_logs(run.directory, outside, logs)
            raise
        finally:
            run.close()
        show(chaos, account, run)
        if not account.is_good:
            keep_logs(run.directory, outside, logs)
    return 0 if account.is_good else 1


def show(chaos: Chaos, account: Account, run: ChaoticRun) -> None:
    """Print the faults by kind with the recovery times, and what became of the transitions."""
    tell(f"\n{'fault':<28}{'times':>6}{'recovery: median':>18}{'longest':>9}")
    for kind, record in sorted(chaos.records.items()):
        tell(f"{kind:<28}{record.count:>6}{_seconds(record.seconds)}")
    faults = sum(record.count for record in chaos.records.values())
    tell(f"{'all':<28}{faults:>6}{_seconds(chaos.recoveries)}\n")
    rows = account._asdict() | {"recoveries": len(chaos.recoveries), "resumes": run.resumes}
    rows |= {"t": last_saved(run.directory), "updates": run.updates}
    problems = rows.pop("problems")
    for name, number in rows.items():
        tell(f"{name:<14}{number:>12,}")
    for problem in problems:
        tell(f"FAILED: {problem}")
    tell("Nothing acknowledged is lost." if account.is_good else "FAILED")


def _seconds(recoveries: list[float]) -> str:
    """Return the median and the longest."""
    return f"{median(recoveries):>16.1f} s{max(recoveries):>7.1f} s" if recoveries else ""


def tell(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def keep_logs(run: RunDirectory, outside: Path, folder: Path) -> None:
    """Copy what the processes have printed, so that a failure can be explained."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if run.logs.is_dir():
        shutil.copytree(run.logs, folder / "logs")
    for path in (*outside.glob("run.*"), *outside.glob("*.log")):
        shutil.copy(path, folder)
    tell(f"Logs: {folder}")


if __name__ == "__main__":
    sys.exit(main())
