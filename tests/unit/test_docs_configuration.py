"""docs/configuration.md is what the dataclasses say."""

from __future__ import annotations

import re

from docs.configuration import PAGE, write_page
from dpsr_apex.config import KINDS


def test_the_page_is_the_one_that_make_docs_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page()


def test_every_setting_is_there_once_with_its_default_what_is_allowed_and_its_meaning() -> None:
    rows = re.findall(r"^\| `(\w+\.\w+)` \| (.+?) \| (.+?) \| .+ \|$", write_page(), re.MULTILINE)
    assert [key for key, _, _ in rows] == list(KINDS)
