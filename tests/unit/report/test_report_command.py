from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dpsr_apex.record.ending import Ending
from dpsr_apex.record.provenance import Session, read_provenance
from dpsr_apex.record.run_directory import RunDirectory
from dpsr_apex.report import ReportError
from dpsr_apex.report.command import report_runs
from tests.unit.report.made_runs import fail, make_run

HOSTILE = '<script>alert("x")</script>&amp; $x_{'
CSVS = {"curves", "final", "statistics", "throughput", "replay", "recycling", "config_differences"}


class Reader(HTMLParser):
    """Collects the tags and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read_page(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of runs in all states, some with hostile names."""
    runs = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        make_run(runs / f"dpsr{seed}", seed=seed)
        make_run(runs / f"per{seed}", method="per", seed=seed, level=80)
    make_run(runs / "unfinished", method="per", seed=2, until=4_000)
    make_run(runs / "empty", method="uniform", until=0)
    failed = make_run(runs / "failed<b>", method="per", seed=3, until=2_000)
    fail(failed, "solo", HOSTILE)
    make_run(runs / "hostile", f"env.name={HOSTILE}")
    (make_run(runs / "broken<i>") / "config.toml").write_text(f"[replay]\nmethod = '{HOSTILE}'\n")
    assert report_runs([runs], None) == 0
    return runs / "report"


def test_the_page_is_self_contained(report: Path) -> None:
    page = read_page(report / "index.html")
    sources = [value or "" for _, attributes in page.tags for key, value in attributes.items() if key == "src"]
    assert sources
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    links = [str(attributes["href"]) for tag, attributes in page.tags if tag == "link"]
    assert links == ["data:,"]
    text = (report / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
    assert "@import" not in text
    assert "url(" not in text
    assert {"script", "iframe", "object", "embed"} & {tag for tag, _ in page.tags} == set()


def test_all_link_targets_exist(report: Path) -> None:
    page = read_page(report / "index.html")
    names = {attributes.get("id") for _, attributes in page.tags}
    links = [str(attributes["href"]) for tag, attributes in page.tags if tag == "a"]
    assert {link[1:] for link in links if link.startswith("#")} <= names
    files = [link for link in links if not link.startswith("#")]
    assert files
    assert all((report / link.replace("%3C", "<").replace("%3E", ">")).exists() for link in files)


def test_the_page_is_accessible_to_screen_readers(report: Path) -> None:
    page = read_page(report / "index.html")
    assert ("html", {"lang": "en"}) in page.tags
    pictures = [attributes for tag, attributes in page.tags if tag == "img"]
    assert all(len(attributes["alt"] or "") > 20 for attributes in pictures)
    tables = sum(tag == "table" for tag, _ in page.tags)
    assert tables == sum(tag == "caption" for tag, _ in page.tags)
    heads = [attributes for tag, attributes in page.tags if tag == "th"]
    assert all(attributes.get("scope") in ("row", "col") for attributes in heads)


def test_every_row_of_a_csv_file_has_as_many_fields_as_its_header(report: Path) -> None:
    for path in report.glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        assert rows, path.name
        assert {len(row) for row in rows} == {len(header)}, path.name


def test_text_from_runs_is_escaped(report: Path) -> None:
    page = read_page(report / "index.html")
    assert {"script", "b", "i"} & {tag for tag, _ in page.tags} == set()
    assert HOSTILE in page.text
    assert "failed<b>" in page.text
    assert "broken<i>" in page.text


def test_every_run_is_listed_with_its_state(report: Path) -> None:
    page = read_page(report / "index.html")
    states = [
        str(attributes["class"]).split()[1] for tag, attributes in page.tags if tag == "td" and _is_state(attributes)
    ]
    assert sorted(states) == ["empty", "failed", *["finished"] * 5, "unfinished"]
    assert "at t = 4,000 of 10,000" in page.text
    assert "nothing was logged yet" in page.text


def _is_state(attributes: dict[str, str | None]) -> bool:
    return str(attributes.get("class")).startswith("state ")


def test_the_csv_files_contain_the_data_of_the_page(report: Path) -> None:
    assert {path.stem for path in report.glob("*.csv")} == CSVS
    curves = rows_of(report / "curves.csv")
    evaluations = [row for row in curves if row["group"] == "dpsr" and row["kind"] == "evaluation"]
    assert len([row for row in evaluations if row["environment"] == "CartPole-v1"]) == 20
    final = {row["group"]: row for row in rows_of(report / "final.csv") if row["environment"] == "CartPole-v1"}
    assert final["per"]["n"] == "2"
    last = [float(row["score"]) for row in evaluations if row["t"] == "10000" and row["environment"] == "CartPole-v1"]
    assert float(final["dpsr"]["mean"]) == pytest.approx(sum(last) / 2)
    replay = rows_of(report / "replay.csv")
    assert float(replay[-1]["age_deciles_100"]) >= float(replay[-1]["age_deciles_0"])
    differing = rows_of(report / "config_differences.csv")
    assert list(differing[0]) == ["group", "env.name", "replay.method"]
    assert {row["replay.method"] for row in differing} == {"dpsr", "per", "uniform"}
    pictures = [tag for tag, _ in read_page(report / "index.html").tags if tag == "img"]
    assert len(list(report.glob("*.png"))) == len(pictures)


@pytest.mark.usefixtures("blank_pictures")
def test_the_provenance_of_all_runs_is_summarized_and_listed(tmp_path: Path) -> None:
    for name, command in (("a", f"train {HOSTILE}"), ("b", "train b"), ("c", None)):
        run = RunDirectory(make_run(tmp_path / "runs" / name, seed=ord(name)))
        for t in (0, 500) if command else ():
            session = Session(run, str(command))
            session.begin(t)
            session.end(Ending("stopped", 130, t + 500))
    report_runs([tmp_path / "runs"], tmp_path / "out")
    page = read_page(tmp_path / "out" / "index.html")
    assert "script" not in {tag for tag, _ in page.tags}
    software = read_provenance(RunDirectory(tmp_path / "runs" / "b"))[0].software
    assert page.text.count(software) == 1, "once for both runs"
    assert "not recorded" in page.text
    rows = rows_of(tmp_path / "out" / "provenance.csv")
    assert [(row["run"], row["t"], row["ended_t"]) for row in rows] == [
        (run, *clocks) for run in "ab" for clocks in (("0", "500"), ("500", "1000"))
    ]
    assert rows[0]["command"] == f"train {HOSTILE}"
    assert {row["software"] for row in rows} == {software}


@pytest.mark.usefixtures("blank_pictures")
def test_a_report_is_reproducible(report: Path, tmp_path: Path) -> None:
    report_runs([report.parent], tmp_path / "again")
    for name in CSVS:
        assert (tmp_path / "again" / f"{name}.csv").read_bytes() == (report / f"{name}.csv").read_bytes()


@pytest.mark.usefixtures("blank_pictures")
def test_a_report_removes_files_of_the_previous_report_and_no_others(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "runs" / "a"), make_run(tmp_path / "runs" / "b", method="per", seed=1)
    (tmp_path / "runs" / "experiment.toml").write_text("success = 50\n")
    out = tmp_path / "out"
    out.mkdir()
    for name in ("final.csv", "1_my_gain.png"):
        (out / name).write_text("not part of a report")
    report_runs([second], out)
    assert (out / "1_my_gain.png").is_file()
    (out / "1_my_gain.png").unlink()
    report_runs([tmp_path / "runs"], out)
    for name in ("mine.csv", "mine.png"):
        (out / name).write_text("not part of a report")
    report_runs([first], out)
    report_runs([first], tmp_path / "fresh")
    left = {path.name for path in out.iterdir()}
    assert left == {path.name for path in (tmp_path / "fresh").iterdir()} | {"mine.csv", "mine.png"}


@pytest.mark.usefixtures("blank_pictures")
def test_an_empty_run_gives_a_page_with_a_note(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", until=0)
    report_runs([run], None)
    assert "Nothing was logged yet" in read_page(run / "report" / "index.html").text


@pytest.mark.usefixtures("blank_pictures")
def test_the_summary_mentions_normalised_scores_only_if_there_are_any(tmp_path: Path) -> None:
    for depth in (3, 5):
        for method in ("dpsr", "per"):
            make_run(tmp_path / f"{depth}{method}", "env.name=Corridor", f"env.arguments.depth={depth}", method=method)
    report_runs([tmp_path], None)
    text = read_page(tmp_path / "report" / "index.html").text
    assert "2 environments together" in text
    assert "human-normalised" not in text


def test_rows_of_an_older_version_are_accepted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text('{"t": 500, "return_mean": 3.5}\n{"t": 1000, "return_mean": 4.5}\n{"t": 1500}\n')
    report_runs([run], None)
    assert "Learning curves" in read_page(run / "report" / "index.html").text


def test_invalid_rows_are_skipped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    odd = {"t": 20_000, "x": 10**400, "age_deciles": 5, "return_mean": [1, 2], "recycled": None, "age_mean": "old"}
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as rows:
        rows.write(f"{json.dumps(odd)}\n")
    report_runs([run], None)
    assert "1 run, finished." in read_page(run / "report" / "index.html").text


def test_if_no_run_is_readable_the_error_lists_the_reasons(tmp_path: Path) -> None:
    (make_run(tmp_path / "run") / "config.toml").write_text("[replay]\nmethd = 1\n")
    with pytest.raises(ReportError, match=r"no run can be read: .*run: replay\.methd is not a setting"):
        report_runs([tmp_path], None)


def test_an_unwritable_folder_is_refused_by_name(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", until=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="file: the report cannot be written there"):
        report_runs([run], tmp_path / "file")


def test_a_report_does_not_import_torch() -> None:
    program = (
        "import sys, dpsr_apex.report.command; print('torch' in sys.modules or 'matplotlib.pyplot' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "False"
