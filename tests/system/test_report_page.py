"""The report's page in a real browser: nothing broken, and legible on a phone.

Chromium opens a page that holds the report in a frame as wide as a phone, looks into it, and writes down what it saw.
"""

from __future__ import annotations

import json
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from dpsr_apex.report.command import report_runs
from tests.system.browsers import CHROMIUM, SWITCHES
from tests.unit.report.made_runs import make_run

PHONE, PAPER, DESKTOP = 390, 687, 1280  # CSS pixels; A4 is 210 mm wide, of which its margins take 28
SETTINGS = {  # so that the table of settings is wide
    "dpsr": ("replay.replacing_exponent=0.3", "replay.recycle_candidates=32", "replay.recycle_period=500"),
    "per": ("learner.learning_rate=0.00025", "replay.sampling_exponent=0.55"),
    "uniform": ("learner.target_period=321",),
}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

# The page reads the report in its frame, which Chromium allows for files with a switch below.
LOOKING = """<!DOCTYPE html>
<html><body style="margin:0"><iframe id="frame" style="border:0;width:%(width)dpx;height:844px"></iframe>
<pre id="seen"></pre>
<script>
const frame = document.getElementById("frame");
const errors = [];
frame.onload = async () => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const pictures = [...page.images];
  await Promise.all(pictures.map(picture => picture.decode().catch(() => errors.push("picture: " + picture.alt))));
  const sizes = [...page.querySelectorAll("p, li, td, th, figcaption, caption, a, dt, dd")]
    .map(element => parseFloat(view.getComputedStyle(element).fontSize));
  const wide = [...page.querySelectorAll("body *")].filter(element => !element.closest("table")
    && element.getBoundingClientRect().right > %(width)d + 0.5).map(element => element.outerHTML.slice(0, 80));
  document.getElementById("seen").textContent = JSON.stringify({
    errors, wide, title: page.title, pictures: pictures.length,
    broken: pictures.filter(picture => !picture.complete || picture.naturalWidth === 0).length,
    width: page.scrollingElement.scrollWidth, smallest: Math.min(...sizes),
    base: parseFloat(view.getComputedStyle(page.body).fontSize),
    scripts: page.scripts.length,
    requests: view.performance.getEntriesByType("resource").filter(entry => !entry.name.startsWith("data:")).length,
    tables: Math.max(...[...page.querySelectorAll("table")].map(table => table.getBoundingClientRect().right)),
    shown: Math.min(...pictures.map(picture => picture.getBoundingClientRect().width)),
  });
};
frame.src = %(page)s;
</script></body></html>
"""


def chromium(profile: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    switches = (
        *(*SWITCHES, "--hide-scrollbars", "--allow-file-access-from-files"),
        *("--enable-logging=stderr", "--log-level=0", f"--user-data-dir={profile}"),
    )
    command = [str(CHROMIUM), *switches, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    for game in ("Breakout", "Freeway"):
        for method in ("dpsr", "per", "uniform"):
            for seed in range(2):
                overrides = (f"env.name={game}", *SETTINGS[method])
                make_run(runs / f"{game}{method}{seed}", *overrides, method=method, seed=seed)
    make_run(runs / "empty", until=0)
    make_run(runs / ("a-long-name-without-any-place-to-break-it-" * 3), "env.name=Freeway", until=4_000)
    (make_run(runs / "broken") / "config.toml").write_text(f"[replay]\n{'x' * 200} = 1\n")
    report_runs([runs], None)
    return runs / "report" / "index.html"


def look(page: Path, folder: Path, width: int) -> tuple[dict[str, Any], str]:
    """Return what a browser sees in a frame of that width, and its messages."""
    around = folder / "looking.html"
    around.write_text(LOOKING % {"width": width, "page": json.dumps(page.as_uri())}, encoding="utf-8")
    size = f"--window-size={width},844"
    done = chromium(folder / "profile", size, "--virtual-time-budget=20000", "--dump-dom", around.as_uri())
    seen = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert seen, done.stdout[-2000:] + done.stderr[-2000:]
    assert seen[1], done.stderr[-2000:]
    return json.loads(unescape(seen[1])), done.stderr


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_browser_shows_the_complete_page(page: Path, tmp_path: Path, width: int) -> None:
    seen, complaints = look(page, tmp_path, width)
    assert "CONSOLE" not in complaints
    assert seen["title"].startswith("dpsr, per and uniform in")
    assert seen["errors"] == []
    assert (seen["pictures"] > 10, seen["broken"]) == (True, 0)
    assert seen["wide"] == []
    assert seen["width"] <= width
    assert seen["base"] >= 16
    assert seen["smallest"] >= 16
    assert seen["shown"] >= 280  # pictures that are drawn for a phone's width are not compressed
    assert (seen["scripts"], seen["requests"]) == (0, 0)


def test_a_page_that_is_too_wide_or_broken_would_be_noticed(page: Path, tmp_path: Path) -> None:
    html = page.read_text(encoding="utf-8")
    spoilt = html.replace("<header>", '<header><div style="width:600px">x</div><img src="nowhere.png" alt="none">')
    spoilt = spoilt.replace("</main>", "<script>console.error('of mine')</script></main>")
    assert spoilt.count("nowhere") == spoilt.count("of mine") == 1
    (tmp_path / "index.html").write_text(spoilt, encoding="utf-8")
    seen, complaints = look(tmp_path / "index.html", tmp_path, PHONE)
    assert re.search("CONSOLE.*of mine", complaints)
    assert seen["errors"] == ["picture: none"]
    assert (seen["broken"], seen["scripts"], seen["width"] > 600) == (1, 1, True)


def test_the_page_can_be_printed(page: Path, tmp_path: Path) -> None:
    """On paper nothing scrolls: anything wider than the paper would be cut off."""
    seen, _ = look(as_printed(page, tmp_path), tmp_path, PAPER)
    assert seen["wide"] == []
    assert seen["tables"] <= PAPER
    assert seen["width"] <= PAPER


def test_a_table_that_is_too_wide_for_paper_would_be_noticed(page: Path, tmp_path: Path) -> None:
    printed = as_printed(page, tmp_path)
    html = printed.read_text(encoding="utf-8")
    printed.write_text(html.replace("<td>", f"<td>{'9' * 150}", 1), encoding="utf-8")
    seen, _ = look(printed, tmp_path, PAPER)
    assert seen["tables"] > PAPER


def as_printed(page: Path, folder: Path) -> Path:
    """Return a copy of the page with the rules for paper on a screen."""
    html = page.read_text(encoding="utf-8")
    assert html.count("@media print {") == 1
    (folder / "printed.html").write_text(html.replace("@media print {", "@media all {"), encoding="utf-8")
    return folder / "printed.html"
