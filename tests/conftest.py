"""Helpers of system tests whose assertions pytest explains, whoever imports them first."""

import pytest

pytest.register_assert_rewrite("tests.system.runs")
