"""The documentation site builds without a warning, shows the whole Python API, and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpsr_apex
from tests.documents import ROOT

LOADED = re.compile(r"""<(?:link|script|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")
IMPORTED = re.compile(r"""(?:@import\s+|url\()["']?((?:https?:)?//[^"')\s]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site strictly; return its folder."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    settings = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(build, cwd=ROOT, env=settings, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = {page: LOADED.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    styles = {style: IMPORTED.findall(style.read_text(encoding="utf-8")) for style in site.rglob("*.css")}
    assert len(pages) > len(list((ROOT / "docs").glob("*.md")))
    assert {file: found for file, found in (pages | styles).items() if found} == {}


def test_the_reference_has_every_public_name(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'<h2 id="dpsr_apex\.(\w+)"', page))
    assert shown == set(dpsr_apex.__all__)


def test_names_in_tables_can_be_broken_on_narrow_screens(site: Path) -> None:
    page = (site / "configuration.html").read_text(encoding="utf-8")
    assert "<td><code>replay.<wbr>replace_<wbr>candidates</code></td>" in page
    assert all("<wbr>" not in block for block in re.findall(r"<pre.*?</pre>", page, re.DOTALL))


def test_external_resources_would_be_noticed() -> None:
    assert LOADED.findall('<link rel=stylesheet href="https://host.example/font.css">') == [
        "https://host.example/font.css"
    ]
    assert IMPORTED.findall("@font-face{src:url(//host.example/a.woff2)}") == ["//host.example/a.woff2"]
