"""docs/metrics.md is what the tables of metrics say."""

from __future__ import annotations

import re

from docs.metrics import PAGE, write_page
from dpsr_apex.config import SETTINGS
from dpsr_apex.record.metric_table import EVALUATION_METRICS, METRICS, metric_names


def test_the_page_is_the_one_that_make_docs_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page()


def test_every_metric_is_there_once_with_its_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", write_page(), re.MULTILINE)
    assert rows == [metric.name for section in (*METRICS.values(), EVALUATION_METRICS) for metric in section]
    assert len(rows) == len(metric_names()) + len(EVALUATION_METRICS)
    assert all(metric.meaning for section in METRICS.values() for metric in section)


def test_every_setting_that_is_named_exists() -> None:
    named = re.findall(r"`(\w+\.\w+)`", "".join(metric.meaning for part in METRICS.values() for metric in part))
    assert named
    assert set(named) <= set(SETTINGS)
