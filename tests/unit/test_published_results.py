"""The figures on the page of results are those of the files that were published with it."""

from __future__ import annotations

import re

from docs.publish import PAGE, PUBLISHED, fill_in


def test_the_page_shows_the_published_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"<!-- results: \w+ (\w+) -->", text))
    assert named == {path.name for path in PUBLISHED.iterdir()}
    assert fill_in(text) == text
