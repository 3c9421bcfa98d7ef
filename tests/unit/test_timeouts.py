"""The time constants of a run."""

from __future__ import annotations

import pytest

from dpsr_apex import timeouts


def test_every_budget_adds_up() -> None:
    assert timeouts.check_budgets() == []


def test_a_budget_that_is_exceeded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "LEARNER_STATE", timeouts.PROCESS_LEAVE)
    assert [line for line in timeouts.check_budgets() if line.startswith("a replay that is stopped")]
