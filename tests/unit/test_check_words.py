from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import check_words
from tools.check_words import CHECKED, PHRASES, files_in, findings_in


def phrases_in(text: str) -> list[str]:
    return [finding.phrase for finding in findings_in(text)]


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("# the run goes on", "goes on"),
        ("def test_the_run_goes_on_after_that() -> None:", "goes_on"),
        ("Goes on", "Goes on"),
        ("a batch is drawn by priority", "drawn by"),
        ("frames are squeezed", "squeezed"),
        ("the oldest makes room", "makes room"),
        ("`left and re-entered`", "left and re-entered"),
    ],
)
def test_phrases_are_found_in_text_and_in_identifiers(text: str, phrase: str) -> None:
    assert phrases_in(text) == [phrase]


@pytest.mark.parametrize(
    "text",
    [
        "candidates_drawn",
        "the figure is drawn",
        "on the same machine",
        "cargoes only",
        "a run of three; its own process",
        '"""Return the same object."""',
    ],
)
def test_similar_words_are_not_findings(text: str) -> None:
    assert phrases_in(text) == []


@pytest.mark.parametrize("text", ["the run goes\non", "    # the run goes\n    # on", "the run goes  \n\ton"])
def test_phrases_are_found_across_line_breaks(text: str) -> None:
    assert phrases_in(text) == ["goes on"]


def test_findings_have_their_line_and_a_suggestion() -> None:
    findings = findings_in('ok\nit is dear\nok\n"""The same, in full."""\nso many\n')
    assert [(finding.line, finding.phrase) for finding in findings] == [
        (2, "dear"),
        (4, '"""The same'),
        (5, "so many"),
    ]
    assert all(finding.suggestion for finding in findings)


def test_suggestions_are_not_findings_themselves() -> None:
    assert findings_in("; ".join(PHRASES.values())) == []


def test_files_are_chosen_by_suffix_and_caches_are_skipped(tmp_path: Path) -> None:
    names = ("a/x.py", "a/x.json", "a/b/x.md", "a/x.toml", "a/.venv-torch/x.py", "a/__pycache__/x.py", "launch/run.sh")
    for name in (*names, "tools/check_words.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    found = {str(file.relative_to(tmp_path)) for file in files_in(["a", "launch", "tools"], tmp_path)}
    assert found == {"a/x.py", "a/b/x.md", "a/x.toml", "launch/run.sh"}
    assert list(files_in(["a/x.py"], tmp_path)) == [tmp_path / "a/x.py"]
    with pytest.raises(FileNotFoundError, match="CHECKED"):
        list(files_in(["missing"], tmp_path))


def test_main_prints_every_finding_and_exits_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.md").write_text("fine\nit goes on\n")
    monkeypatch.setattr(check_words, "ROOT", tmp_path)
    monkeypatch.setattr(check_words, "CHECKED", ["page.md"])
    assert check_words.main() == 1
    assert re.fullmatch(r"page\.md:2: goes on -> .+\n", capsys.readouterr().out)
    (tmp_path / "page.md").write_text("fine\n")
    assert check_words.main() == 0


def test_code_and_pages_are_checked() -> None:
    files = list(files_in(CHECKED))
    assert len(files) > 100
