"""Fixtures of the tests of reports."""

from __future__ import annotations

from typing import Any

import pytest

from dpsr_apex.report.pictures import Picture

BLANK = b'<svg xmlns="http://www.w3.org/2000/svg"></svg>'


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save every picture without drawing it, which takes most of a report's time."""

    def save(_picture: Picture, _format: str, **_options: Any) -> bytes:
        return BLANK

    monkeypatch.setattr(Picture, "_save", save)
