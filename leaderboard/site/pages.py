"""The pages of a site: a board's document in, HTML out. Everything of a document is text: Jinja2
escapes it.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

from fedbench.core import UserError
from fedbench.core.api import row_of
from fedbench.core.contract.hooks import DISTRIBUTION
from fedbench.core.registry.components import Registry
from fedbench.leaderboard.site.schema import (
    Board,
    Interval,
    RankingColumn,
    Row,
    Use,
    as_json,
    document_file,
    not_a_board,
)
from fedbench.leaderboard.tables.common import named, number, plain_text, span

if TYPE_CHECKING:
    from jinja2 import Environment

BEFORE = (
    "Made under earlier rules: ranges of ranks that overlap are no ties, though this board calls "
    "them so, and accuracy and "
    "delta-accuracy are of the last round."
)
"""what a committed board says that was made before"""
MOST_NAMED = 12  # rows of one kind in a hint
PLACES = {
    "setting": "Data, model and federation.",
    "coalition": "The clients that defend.",
    "view": "What the adversary sees.",
    "rank": "The ranks that the tests leave open. Ranges that overlap are no tie: point at one to "
    "see which rows are tied.",
    "defense": "Open a row by its name: its cells, parameters and remarks.",
}
CELLS = ("cells", "cells", "Records, by outcome: one attack on one run each.")
"""key, title and meaning of the last column"""
STATIC, STYLES = "static", ("site.css",)
_ORDER = "scripts.txt"  # what each kind of page loads, in its order
SEARCH = "https://scholar.google.com/scholar?q="
INSTALL = "pip install 'fedbench-privacy[html]'"


def policy(nonce: str) -> str:
    """The Content-Security-Policy of a page: nothing but what carries its nonce runs or styles, and
    nothing is fetched.

    The nonce is a digest of everything on the page, so the author of a part of it cannot know it.
    """
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "base-uri 'none'; form-action 'none'"
    )


def pages(boards: Sequence[Board]) -> dict[str, bytes]:
    """Path in the site -> content of every file. Raises ``UserError`` where a part of the ``html``
    extra is missing.
    """
    made = {f"{STATIC}/{name}": content for name, content in _static().items()}
    for board in boards:
        try:
            made[f"{board.name}.html"] = _board_page(board)
        except IndexError as error:
            raise not_a_board(f"{board.name}.html", "a position is out of range") from error
        made |= {f"{board.name}.json": document_file(board), f"{board.name}.csv": _csv(board)}
    made["index.html"] = _page("index", boards=[_entry(board) for board in boards])
    made["licences.html"] = _page(
        "licences",
        parts=[
            _licence(DISTRIBUTION, "These pages, their scripts and their styles."),
            _licence(
                "bokeh",
                "The interactive figures: its JavaScript is in static/, as its Python package has "
                "it.",
            ),
        ],
    )
    return made


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ModuleNotFoundError as error:
        raise UserError(f"--html needs jinja2, which is not installed: {INSTALL}") from error
    loader = PackageLoader("fedbench.leaderboard.site", "templates")
    return Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _scripts(kind: str) -> list[str]:
    lines = (
        (files("fedbench.leaderboard.site") / STATIC / _ORDER)
        .read_text(encoding="utf-8")
        .split("\n")
    )
    return [name for line in lines if line for of, name in [line.split()] if of in ("all", kind)]


@cache
def _static() -> dict[str, bytes]:
    """Ours, and the plotting library's, from its installed Python package."""
    found = {
        f.name: f.read_bytes()
        for f in (files("fedbench.leaderboard.site") / STATIC).iterdir()
        if f.name != _ORDER
    }
    try:
        library = files("bokeh") / "server/static/js"
        return found | {
            name: (library / name).read_bytes()
            for name in _scripts("board")
            if name.endswith(".min.js")
        }
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise UserError(
            f"--html needs bokeh with its JavaScript, which is not installed: {INSTALL}"
        ) from error


def _licence(distribution: str, what: str) -> dict[str, str]:
    """Of a part of the site, with the text of its licence."""
    found = metadata.distribution(distribution)
    about = found.metadata
    licence = next(
        (about[name] for name in ("License-Expression", "License") if name in about), "see below"
    )
    texts = {
        f.read_text()
        for f in found.files or ()
        if f.name.upper().startswith(("LICENSE", "LICENCE", "COPYING"))
    }
    shown = "\n\n".join(sorted(texts))
    return {
        "name": about["Name"],
        "version": found.version,
        "what": what,
        "licence": licence.splitlines()[0],
        "text": shown,
    }


@cache
def _urls(distribution: str) -> dict[str, str]:
    """What an installed package calls its addresses -> address."""
    given = metadata.metadata(distribution).get_all("Project-URL") or []
    return {
        name: url
        for name, _, url in (one.partition(", ") for one in given)
        if url.startswith("https://")
    }


def _csv(board: Board) -> bytes:
    """The rows as ``fedbench.load(...).rows`` has them. A text that a spreadsheet would compute is
    led by an apostrophe.
    """
    content, out = board.model_dump(mode="json"), io.StringIO()
    rows = [row_of(content, row) for row in content["rows"]]
    writer = csv.DictWriter(out, rows[0] if rows else (), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {k: f"'{v}" if isinstance(v, str) and v[:1] in tuple("=+-@") else v for k, v in row.items()}
        for row in rows
    )
    return out.getvalue().encode()


def _page(kind: str, secret: str = "", **content: Any) -> bytes:
    """A page of that template. ``secret``: what of it is too long to be hashed with the rest."""
    digest = hashlib.sha256(repr((kind, sorted(content.items()), secret)).encode()).digest()
    nonce = base64.urlsafe_b64encode(digest[:18]).decode()
    content |= {
        "policy": policy(nonce),
        "nonce": nonce,
        "styles": STYLES,
        "scripts": _scripts(kind),
    }
    page = (
        _environment()
        .get_template(f"{kind}.html")
        .render(documents=_urls(DISTRIBUTION).get("Documentation"), **content)
    )
    return page.encode()


def _board_page(board: Board) -> bytes:
    from markupsafe import Markup

    data = as_json(board, {"folds"})
    commits = {
        value for machine in board.machines for name, value in machine if name == "git commit"
    }
    described = {
        "board": board,
        "columns": [
            *((key, key, hover) for key, hover in PLACES.items()),
            *((column.key, column.title, column.hover) for column in board.columns),
            CELLS,
        ],
        "rows": [_row(board, at, row) for at, row in enumerate(board.rows)],
        "notes": [
            *([BEFORE] if any(row.rank and row.better is None for row in board.rows) else []),
            *board.notes,
        ],
        "date": _date(board),
        "commits": sorted(commits),
    }
    return _page("board", secret=data, data=Markup(inert(data)), **described)


def inert(data: str) -> str:
    """JSON as it may stand in a ``<script>`` block: nothing in it ends the block, or means anything
    to HTML or JavaScript.
    """
    for letter in "<>&\u2028\u2029":
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    return data


def _date(board: Board) -> str:
    """Of the last run."""
    return max(board.runs.started, default="")[:10]


def _row(board: Board, at: int, row: Row) -> dict[str, Any]:
    section = board.sections[row.section]
    names = [board.uses[use].label for use in section.attacks]
    return {
        **{
            name: getattr(row, name)
            for name in ("section", "label", "trust", "claims", "remarks", "winner")
        },
        "classes": [
            name for name in ("floor", "undefended", "within", "winner") if getattr(row, name)
        ],
        "papers": _papers(board.uses[row.defense]),
        "packages": [(name, _home(name)) for name in row.packages],
        "numbers": {c.key: shown(row.numbers.get(c.key), c) for c in board.columns},
        "setting": board.settings[section.setting].name,
        "coalition": section.coalition,
        "view": section.view,
        "rank": _rank(row),
        "standing": _standing(board, at),
        "by": {
            "worst": names[row.worst_attack] if row.worst_attack >= 0 else "",
            "tf01": names[row.tf01_attack] if row.tf01_attack >= 0 else "",
        },
        "cells": ", ".join(f"{n} {board.outcomes[outcome]}" for outcome, n in row.outcomes),
    }


def _papers(use: Use) -> list[tuple[str, str]]:
    """(citation, address) of the paper of each defense of an installed package: the citation's own,
    else a search for it.
    """
    cited = [(paper, name) for name in use.name.split("+") if (paper := _cited().get(name))]
    return [
        (paper, (re.findall(r"https://\S+", paper) or [SEARCH + quote_plus(f"{paper} {name}")])[0])
        for paper, name in cited
    ]


@cache
def _cited() -> dict[str, str]:
    return {
        found.name: found.component.paper for found in Registry.discover().components("defense")
    }


def _home(package: str) -> str:
    """The address that an installed package gives as its home or its source; "" of others."""
    try:
        urls = _urls(package.partition(" ")[0])
    except (metadata.PackageNotFoundError, ValueError):
        return ""
    return next((urls[name] for name in ("Homepage", "Source", "Repository") if name in urls), "")


def _rank(row: Row) -> str:
    return "floor" if row.rank is None and row.floor else span(row.rank).replace("-", "–")  # noqa: RUF001


def _standing(board: Board, at: int) -> str:
    """Which ranked rows of its section a row is tied with, significantly better than, and worse
    than; "" without a rank, and of documents that do not say so.
    """
    row = board.rows[at]
    if row.rank is None or row.better is None:
        return ""
    groups: dict[str, list[str]] = {"tied with": [], "better than": [], "worse than": []}
    for i in board.sections[row.section].rows:
        other = board.rows[i]
        if i == at or other.rank is None:
            continue
        how = (
            "better than"
            if i in row.better
            else "worse than"
            if at in (other.better or ())
            else "tied with"
        )
        groups[how].append(other.label)
    return "; ".join(
        f"{how} {plain_text(named(labels, MOST_NAMED))}" for how, labels in groups.items() if labels
    )


def _entry(board: Board) -> dict[str, Any]:
    """A board on the index page."""
    defenses = len({row.label for row in board.rows if not row.undefended and not row.floor})
    attacks = len({board.uses[use].label for s in board.sections for use in s.attacks})
    what = f"{defenses} defenses, {attacks} attacks, {len(board.cells.key):,} cells, {_date(board)}"
    return {"name": board.name, "title": board.title, "what": what}


# -- numbers as the table prints them --------------------------------------------------------------


def shown(found: Interval, how: RankingColumn) -> dict[str, str] | None:
    """Mean and interval, "" where that is not known; None without a number."""
    if found is None:
        return None
    mean, low, high = found
    ends = (
        ""
        if low is None or high is None or low == high
        else f"[{written(low, how)}, {written(high, how)}]"
    )
    return {"mean": written(mean, how) + (how.unit and f" {how.unit}"), "interval": ends}


def written(value: float, how: RankingColumn) -> str:
    """With a true minus sign, and no sign before a zero."""
    text = number(value * how.scale, how.digits, how.signed)
    return text.replace("-", "\u2212") if float(text) else text.lstrip("+")
