"""Generate docs/metrics.md from the tables of metrics in `dpsr_apex/record/metric_table.py`: `make docs`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpsr_apex.record.metric_table import EVALUATION_METRICS, METRICS, Metric

PAGE = Path(__file__).with_name("metrics.md")

HEAD = """# Metrics

Every key in a row of `RUN_DIR/metrics.jsonl`, generated from `dpsr_apex/record/metric_table.py` by `make docs`. A row
is one line of JSON, written every `run.log_period` transitions and at the end. TensorBoard and the
[trackers](tracking.md) show the scalars by group, such as `learner/loss`: the group is the title below in lower case,
and `eval` for an evaluation. A number that is unknown or not finite is null. Keys that end in `_per_second` or
`_seconds` depend on the wall clock; all others are identical whenever a single-process run is repeated.

Counters are totals since the start of the run, across resumes. Single-process runs have neither the section
*Processes* nor `learner_waiting`.
"""

EVALUATIONS = """## Evaluations

The keys in a row of `RUN_DIR/evaluations.jsonl`, which has one row per evaluation.
"""


def write_page() -> str:
    """Return the whole page."""
    sections = [f"## {title}\n\n{_table(metrics)}" for title, metrics in METRICS.items()]
    return "\n".join([HEAD, *sections, EVALUATIONS, _table(EVALUATION_METRICS)])


def _table(metrics: Sequence[Metric]) -> str:
    rows = [f"| `{metric.name}` | {metric.unit or '–'} | {metric.meaning} |" for metric in metrics]
    return "\n".join(["| key | unit | meaning |", "| --- | --- | --- |", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
