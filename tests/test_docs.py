"""What the documents and the code say about each other's files is true: paths, links and sections exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WRITTEN_BY_A_RUN = {"board.md"}
MADE_UP = {Path(__file__).name, "test_documents.py"}  # whose documents exist in no repository
PLACEHOLDER = re.compile(r"[<>{}$]|\.\.\.")

DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted(
    path
    for folder in ("core", "plugins", "leaderboard", "suites", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".yaml", ".md", ".toml") and path.name not in MADE_UP
)


def slug(heading: str) -> str:
    """The anchor that a Markdown heading gets: lower case, punctuation dropped, blanks to hyphens."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def headings(text: str) -> set[str]:
    """The anchors of a Markdown text."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return {slug(h) for h in re.findall(r"^#+ +(.*)$", prose, re.MULTILINE)}


@cache
def anchors(path: Path) -> set[str]:
    """Those of a file."""
    return headings(path.read_text(encoding="utf-8"))


@cache
def markdown_names() -> set[str]:
    """Names of all Markdown files of the repository."""
    return {p.name for p in [*DOCUMENTS, *SOURCES] if p.suffix == ".md"}


def target_problem(target: Path, anchor: str) -> str:
    """What is wrong with a file and, if one is named, its section; or nothing."""
    if not target.exists() or (anchor and target.is_dir()):
        return "no such file"
    if anchor and anchor not in anchors(target):
        return f"no section '{anchor}' in {target.name}"
    return ""


def bad_mentions(text: str) -> Iterator[str]:
    """Of documents by name: a path under docs/ must exist, any other ``.md`` must at least be called like one of ours."""
    for name, anchor in re.findall(r"(?<![\w/.-])(docs/[\w./-]*\w)(?:#([\w-]+))?", text):
        if problem := target_problem(ROOT / name, anchor):
            yield f"{name}: {problem}"
    for name in re.findall(r"[\w-]+\.md\b", text):
        if name not in markdown_names() | WRITTEN_BY_A_RUN:
            yield f"{name}: a document outside the repository"


def bad_links(text: str, folder: Path) -> Iterator[str]:
    """Relative links of a Markdown text in ``folder`` that lead nowhere."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        if name:
            problem = target_problem((folder / name).resolve(), anchor)
        else:
            problem = "" if anchor in headings(text) else f"no section '{anchor}' here"
        if problem:
            yield f"{link}: {problem}"


def bad_paths(text: str) -> Iterator[str]:
    """Files and folders of the repository named in code marks that are not there; ``*`` stands for anything."""
    for name in re.findall(r"`((?:core|plugins|leaderboard|suites|tests|\.ci)/[^`\s]*)`", text):
        if not PLACEHOLDER.search(name) and not any(ROOT.glob(name.rstrip("/"))):
            yield f"{name}: no such file"
    for name in re.findall(r"`(\w+\.py)`", text):
        if not any(path.name == name for path in SOURCES):
            yield f"{name}: no file of that name"


@pytest.mark.parametrize("path", [*DOCUMENTS, *SOURCES], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_file_cites_a_document_that_is_not_there(path):
    assert list(bad_mentions(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_and_paths_of_a_document_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    assert [*bad_links(text, path.parent), *bad_paths(text)] == []


def test_every_method_page_is_in_the_index():
    index = ROOT / "docs" / "methods" / "README.md"
    pages = {p.name for p in index.parent.glob("*.md")} - {index.name}
    assert pages == set(re.findall(r"^\| \[[^\]]+\]\((\S+)\)", index.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("see nowhere.md, 4.1", "nowhere.md: a document outside the repository"),
        ("(docs/methods/absent.png)", "docs/methods/absent.png: no such file"),
        ("docs/methods/quirks.md#f99", "docs/methods/quirks.md: no section 'f99' in quirks.md"),
    ],
)
def test_the_mentions_check_can_fail(text, problem):
    assert list(bad_mentions(text)) == [problem]


def test_the_links_and_paths_checks_can_fail():
    bad = "[a](absent.md) [b](README.md#no-such) [c](#nor-this) `core/absent/` `plugins/x_*.py` `absent_file.py`"
    assert len(list(bad_links(bad, ROOT))) == 3
    assert len(list(bad_paths(bad))) == 3


def test_the_checks_let_good_text_pass():
    good = "# A title, here\n[a](README.md#layout) [b](#a-title-here) [c](https://example.org/x) `[d](absent.md)` `core/metrics/`"
    assert not [*bad_links(good, ROOT), *bad_paths(good)]
    assert not list(bad_mentions("docs/methods/quirks.md#f1, board.md, and `plugins/attacks/<name>.py` of docs/adversaries.md"))
    assert not list(bad_paths("`plugins/attacks/<name>.py` `suites/papers/fedmia_*.yaml`"))
