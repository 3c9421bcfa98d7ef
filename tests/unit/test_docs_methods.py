"""The tables of methods on the pages are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.methods import PAGES, fill_in
from dpsr_apex.methods import METHODS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_are_those_that_make_docs_writes(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert fill_in(text) == text
    table = text.partition("<!-- methods: table -->")[2].partition("<!-- end of methods -->")[0]
    assert re.findall(r"^\| `(\w+)` \| ", table, re.MULTILINE) == list(METHODS)
