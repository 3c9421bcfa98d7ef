"""Render the report as one self-contained HTML page.

All text from runs and paths is escaped, because a run directory may come from an untrusted source.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from dpsr_apex.report.chapters import Chapter, Section
from dpsr_apex.report.pictures import Picture
from dpsr_apex.report.tables import Table

MARK = '<meta name="generator" content="dpsr-apex report">'  # identifies a page as a report
_CSS = Path(__file__).with_name("page.css")

_READING = (
    "The interquartile mean (IQM) is the mean of the middle half of the scores: it is less sensitive to outliers than "
    "the mean, and uses more of the scores than the median. With fewer than four scores it is the mean.",
    "Intervals are 95% bootstrap intervals: seeds are resampled within each environment, 5,000 times for a single "
    "number and 1,000 times for a curve. With few seeds they are too narrow, and with one seed there is none.",
    "The probability of improvement is the share of pairs of seeds, one of each group, in which the first scores "
    "higher; a tie counts one half. Over several environments it is the mean of theirs. An interval from 1 to 1 means "
    "that every seed of one group scored higher than every seed of the other, not that the next seed will.",
    "Final scores are those of finished runs only. The curves include failed and unfinished runs up to their last "
    "point, and continue with the remaining seeds.",
)


_TEXT_COLUMNS = ("state", "progress", "group", "environment", "reason", "machine")
_LEFT = ' class="text"'
_NOTE = '<td class="note">'


@dataclass(frozen=True)
class RunLine:
    """One row in the list of runs."""

    href: str  # relative to the page
    shown: str
    cells: Sequence[str]  # environment, group, seed, state, note, last evaluation


@dataclass(frozen=True)
class Page:
    """The content of the page."""

    title: str
    summary: Sequence[tuple[str, Sequence[str]]]  # headings (may be "") and sentences
    facts: Mapping[str, str]
    made: str  # date and versions
    chapters: Sequence[Chapter]
    drawn: Mapping[str, str]  # every picture of the chapters as SVG, by name
    differences: Table | None
    provenance: Table | None
    runs: Sequence[RunLine]
    unreadable: Sequence[tuple[str, str]]  # path and reason
    files: Sequence[str]


def render(page: Page) -> str:
    """Return the page as HTML."""
    chapters = [(f"chapter{number}", chapter) for number, chapter in enumerate(page.chapters)]
    links = [*((name, chapter.title) for name, chapter in chapters), ("settings", "Settings")]
    links += [("provenance", "Provenance")] if page.provenance else []
    body = [
        _header(page, [*links, ("runs", "Runs"), ("reading", "How to read this")]),
        *(_chapter(name, chapter, page.drawn) for name, chapter in chapters),
        _settings(page.differences),
        *([_provenance(page.provenance)] if page.provenance else []),
        _runs(page),
        _reading(page.files, page.made),
    ]
    return _document(page.title, "\n".join(body))


def _document(title: str, body: str) -> str:
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"{MARK}\n"
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_CSS.read_text(encoding='utf-8')}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _header(page: Page, links: Sequence[tuple[str, str]]) -> str:
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in page.facts.items())
    summary = "".join(_summary_part(heading, sentences) for heading, sentences in page.summary)
    contents = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in links)
    return (
        f"<header>\n<h1>{escape(page.title)}</h1>\n"
        f'<section class="summary" aria-label="Summary">{summary}</section>\n'
        f'<dl class="facts">{facts}</dl>\n'
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav>\n</header>'
    )


def _summary_part(heading: str, sentences: Sequence[str]) -> str:
    if not heading:
        return "".join(_paragraphs(sentences))
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<p class="heading">{escape(heading)}</p><ul>{items}</ul>'


def _chapter(name: str, chapter: Chapter, drawn: Mapping[str, str]) -> str:
    sections = "\n".join(_section(section, drawn) for section in chapter.sections)
    return f'<section id="{name}">\n<h2>{escape(chapter.title)}</h2>\n{sections}\n</section>'


def _section(section: Section, drawn: Mapping[str, str]) -> str:
    parts = [f"<h3>{escape(section.title)}</h3>", *_paragraphs(section.notes)]
    if section.pictures:
        figures = "".join(_figure(picture, drawn[picture.name]) for picture in section.pictures)
        parts.append(f'<div class="figures">{figures}</div>')
    if section.tables:
        parts.append(f'<div class="tables">{"".join(map(_table, section.tables))}</div>')
    return "\n".join(parts)


def _figure(picture: Picture, svg: str) -> str:
    content = base64.b64encode(svg.encode()).decode()
    width, height = picture.figure.get_size_inches() * 100
    return (
        f'<figure><img src="data:image/svg+xml;base64,{content}" width="{width:.0f}" height="{height:.0f}" '
        f'alt="{escape(picture.alt)}"><figcaption>{escape(picture.caption)}</figcaption></figure>'
    )


def _table(table: Table) -> str:
    rows = [_row(row) for row in table.rows]
    return _scrolling(table.caption, table.columns, rows)


def _row(cells: Sequence[str]) -> str:
    first, *others = map(escape, cells)
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'


def _scrolling(caption: str, columns: Iterable[str], rows: Sequence[str]) -> str:
    heads = "".join(
        f'<th scope="col"{_LEFT if column in _TEXT_COLUMNS else ""}>{_breakable(column)}</th>' for column in columns
    )
    # The visible caption is outside the scrolling box; the table's own caption is for screen readers only.
    return (
        f'<div class="box"><p class="caption" aria-hidden="true">{escape(caption)}</p>'
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f'<caption class="screen-reader">{escape(caption)}</caption><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def _breakable(column: str) -> str:
    """Escape a column heading and allow line breaks in names of settings, such as `replay.recycle_period`."""
    return re.sub("([._])", r"\1<wbr>", escape(column))


def _settings(differences: Table | None) -> str:
    same = "<p>All runs have the same settings except the seed and what is recorded.</p>"
    return f'<section id="settings">\n<h2>Settings</h2>\n{_table(differences) if differences else same}\n</section>'


def _provenance(table: Table) -> str:
    rows = [_row(row).replace("<td>", _NOTE, 1) for row in table.rows]  # the machine
    shown = _scrolling(table.caption, table.columns, rows)
    return f'<section id="provenance">\n<h2>Provenance</h2>\n{shown}\n</section>'


def _runs(page: Page) -> str:
    columns = ("run", "state", "progress", "last evaluation", "seed", "group", "environment")
    parts = ['<section id="runs">', "<h2>Runs</h2>"]
    if page.runs:
        parts.append(_scrolling("All runs and their progress", columns, [_run_row(run) for run in page.runs]))
    if page.unreadable:
        reasons = [_row([path, reason]).replace("<td>", _NOTE) for path, reason in page.unreadable]
        parts.append(_scrolling("Unreadable runs, not included above", ("run", "reason"), reasons))
    return "\n".join([*parts, "</section>"])


def _run_row(run: RunLine) -> str:
    environment, group, seed, state, note, last = map(escape, run.cells)
    return (
        f'<tr><th scope="row"><a href="{escape(quote(run.href))}/">{escape(run.shown)}</a></th>'
        f'<td class="state {state}">{state}</td><td class="note">{note}</td><td>{last}</td><td>{seed}</td>'
        f'<td class="text">{group}</td><td class="text">{environment}</td></tr>'
    )


def _reading(files: Sequence[str], made: str) -> str:
    links = ", ".join(f'<a href="{escape(quote(name))}">{escape(name)}</a>' for name in files)
    parts = ['<section id="reading">', "<h2>How to read this</h2>", *_paragraphs(_READING)]
    parts.append(f"<p>Data files in the folder of this page: {links}; every picture is also there as PNG.</p>")
    return "\n".join([*parts, f'<p class="soft">{escape(made)}</p>', "</section>"])


def _paragraphs(sentences: Iterable[str]) -> list[str]:
    return [f"<p>{escape(sentence)}</p>" for sentence in sentences if sentence]
