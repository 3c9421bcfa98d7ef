"""Adapt the pages to the site: hide the markers of generated parts, and add pages from other files.

The pages are written to be read in a repository too, where they link to files outside `docs/` and to a notebook. MkDocs
calls the functions `on_…` while it builds the site.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
ADDED: Final = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
}
NOTEBOOK: Final = "tutorial.ipynb"

_NOT_A_PAGE = re.compile(r"\[([^\]]+)\]\((?:CITATION\.cff|LICENSE)\)")
_FILE_NAME = re.compile(r"\[([\w-]+\.md)\]\(")  # as the text of a link
_MARKER = re.compile(r"^<!-- .*? -->$", re.MULTILINE)
_CODE_IN_TABLE = re.compile(r"(?<=<code>)[^<]+(?=</code>(?:(?!<table|</tr>).)*</td>)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of ADDED, and the notebook as a page."""
    for name, target in ADDED.items():
        files.append(File.generated(config, target, content=_root_page(name)))
    notebook = json.loads((ROOT / "docs" / NOTEBOOK).read_text(encoding="utf-8"))
    files.append(File.generated(config, "tutorial.md", content=notebook_page(notebook)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Return the text of a page with its links into the site, and without markers; the first page is the README."""
    if page.file.src_uri == "README.md":
        markdown = _root_page("README.md")
    links = {f"../{name}": target for name, target in ADDED.items()} | {NOTEBOOK: "tutorial.md"}
    for name, target in links.items():
        markdown = markdown.replace(f"]({name}", f"]({target}")
    return _MARKER.sub("", _FILE_NAME.sub(lambda link: f"[{_title(link[1])}](", markdown))


def _title(name: str) -> str:
    """Return the title of a page, in the folder of the pages or in the root."""
    page = ROOT / (name if name in ADDED else f"docs/{name}")
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with places in the code of its tables where a narrow screen may break names and paths."""
    return _CODE_IN_TABLE.sub(lambda code: re.sub(r"([._/:])(?=\w)", r"\1<wbr>", code[0]), html)


def _root_page(name: str) -> str:
    """Return a page of the root with links as from `docs/`, and without those to files that are no pages."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for other, target in ADDED.items():
        text = text.replace(f"]({other}", f"]({target}")
    return _NOT_A_PAGE.sub(r"\1", text).replace("](docs/", "](")


def notebook_page(notebook: Mapping[str, Any]) -> str:
    """Return a notebook with its stored outputs as Markdown."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _cell(cell))


def _cell(cell: Mapping[str, Any]) -> Iterator[str]:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield text
        return
    yield f"```python\n{text}\n```"
    for output in cell["outputs"]:
        if picture := output.get("data", {}).get("image/png"):
            yield f"![Output](data:image/png;base64,{picture.strip()})"
        elif printed := "".join(output.get("text", "")):
            yield f"```text\n{printed.rstrip()}\n```"
