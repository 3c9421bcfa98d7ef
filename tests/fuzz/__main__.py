"""`python -m tests.fuzz`: coverage-guided fuzzing, then damaged messages; both print what they did.

Needs atheris on the path for the first part (`make fuzz`). An input that fails is kept in build/fuzz/.
"""

from __future__ import annotations

import argparse
import logging
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from dpsr_apex.machine import resident_memory

FOLDER = Path("build/fuzz")
LONGEST_INPUT = 262_144  # bytes
MOST_MEMORY = 2_048  # MiB of the fuzzing process
SLOWEST = 60  # seconds for one input


def main() -> int:
    """Run both parts; return 0 if nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz the codec and the services.")
    parser.add_argument("--minutes", type=float, default=10.0, help="of coverage-guided fuzzing (default: 10)")
    parser.add_argument("--mutations", type=int, default=1_000_000, help="damaged messages (default: 1,000,000)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    guided = given.minutes <= 0 or fuzz(given.minutes)
    return 0 if guided and (given.mutations <= 0 or damage(given.mutations, given.seed)) else 1


def fuzz(minutes: float) -> bool:
    """Fuzz for this time; print executions, coverage, failures and memory; return whether nothing failed."""
    corpus = FOLDER / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={minutes * 60:.0f}", f"-max_len={LONGEST_INPUT}", f"-timeout={SLOWEST}"]
    report = [f"-rss_limit_mb={MOST_MEMORY}", f"-artifact_prefix={FOLDER}/", "-print_final_stats=1"]
    command = [sys.executable, "-m", "tests.fuzz.guided", *limits, *report, str(corpus)]
    coverage: list[int] = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.match(r"#\d+\s.* cov: (\d+)", line):
                coverage.append(int(found[1]))
            elif not line.startswith(("#", "INFO")):
                sys.stderr.write(line)
    failed = sorted(path.name for path in FOLDER.glob("*-*") if path.is_file())
    first, last = (coverage[0], coverage[-1]) if coverage else (0, 0)
    sys.stdout.write(f"coverage {first} -> {last}, exit code {process.returncode}, failures: {failed or 'none'}\n")
    sys.stdout.flush()
    return process.returncode == 0


def damage(count: int, seed: int) -> bool:
    """Let heads handle this number of damaged messages; print what they were, and the memory."""
    from tests.fuzz.test_fuzz_mutations import attack

    logging.disable(logging.CRITICAL)
    attack(10_000, seed)
    before, began = resident_memory() or 0, time.process_time()
    valid = attack(count, seed + 1)
    seconds, after = time.process_time() - began, resident_memory() or 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sys.stdout.write(
        f"{count:,} damaged messages in {seconds:.0f} s of CPU time, {valid:,} of them still valid; no failure; "
        f"memory {before >> 20} -> {after >> 20} MiB, peak {peak >> 10} MiB\n"
    )
    return True


if __name__ == "__main__":
    sys.exit(main())
