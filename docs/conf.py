"""The site of the documents: ``.ci/docs``. Its source is the whole repository, so that a link works
here as it does there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HOME = "https://github.com/fedbench/fedbench"
# pages outside docs/, and the boards
_BESIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")

project = "fedbench"
author = "The fedbench authors"
copyright = f"2026, {author}, Apache-2.0"
extensions = ["myst_parser"]
root_doc = "docs/index"
source_suffix = {".md": "markdown"}
include_patterns = ["docs/**.md", "leaderboard/boards/*.md", *_BESIDE]
# Not walked at all.
exclude_patterns = [
    ".*",
    "build",
    "results",
    "data",
    "tests",
    "api",
    "core",
    "plugins",
    "suites",
    "testing",
    "examples",
]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "fedbench"
html_copy_source = False
html_extra_path = ["site"]
nitpicky = True


def setup(app: Any) -> None:
    """Links to what is no page (sources, folders) become their paths."""
    app.connect(
        "source-read",
        lambda app, name, source: source.__setitem__(
            0, with_paths(source[0], (ROOT / name).parent)
        ),
    )


def with_paths(text: str, folder: Path) -> str:
    """The text of a page in ``folder`` with links to files that are no pages as paths in code
    marks; blocks of code stay. The README's links to the repository lead to the pages of the site.
    """

    def plain(found: re.Match[str]) -> str:
        shown, where = found.groups()
        target = (folder / where.partition("#")[0]).resolve()
        if re.match(r"[a-z]+:|#", where) or not target.exists() or _in_the_site(target):
            return found[0]  # what does not exist is for the build to complain of
        path = target.relative_to(ROOT).as_posix()
        return f"`{path}`" if shown.strip("`/") in path else f"{shown} (`{path}`)"

    text = re.sub(
        rf"{HOME}/(?:blob|raw)/main/([^\s#]+)",
        lambda m: m[1] if _in_the_site(ROOT / m[1]) else m[0],
        text,
    )
    parts = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(
        p if p.startswith("```") else re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", plain, p) for p in parts
    )


def _in_the_site(target: Path) -> bool:
    path = target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else ""
    inside = path.startswith(("docs/", "leaderboard/boards/"))
    return path in _BESIDE or (inside and target.suffix in (".md", ".png"))
