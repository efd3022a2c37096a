"""The pages of a site: a board's document in, HTML out. Everything of a document is text: Jinja2
escapes it.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections import Counter
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
    DocumentRow,
    Interval,
    RankingColumn,
    Use,
    as_json,
    document_file,
    not_a_board,
)
from fedbench.leaderboard.tables.common import named, number, plain_text, span

if TYPE_CHECKING:
    from jinja2 import Environment

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
    """Return the Content-Security-Policy of a page: nothing but what carries its nonce runs or
    styles, and nothing is fetched.

    The nonce is a digest of everything on the page, so the author of a part of it cannot know it.
    """
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "base-uri 'none'; form-action 'none'"
    )


def pages(boards: Sequence[Board]) -> dict[str, bytes]:
    """Return path in the site -> content of every file. Raises ``UserError`` where a part of the
    ``html`` extra is missing.
    """
    content = {f"{STATIC}/{name}": file for name, file in _static().items()}
    for board in boards:
        try:
            content[f"{board.name}.html"] = _board_page(board)
        except IndexError as error:
            raise not_a_board(f"{board.name}.html", "a position is out of range") from error
        content[f"{board.name}.json"] = document_file(board)
        content[f"{board.name}.csv"] = _csv(board)
    content["index.html"] = _page("index", boards=list(map(_entry, boards)))
    return content


@cache
def environment(purpose: str = "--html") -> Environment:
    """Return the templates. Raises ``UserError``, with what needs them, where jinja2 is missing."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ModuleNotFoundError as error:
        raise UserError(f"{purpose} needs jinja2, which is not installed: {INSTALL}") from error
    return Environment(
        loader=PackageLoader("fedbench.leaderboard.site", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _scripts(kind: str) -> list[str]:
    order = files("fedbench.leaderboard.site") / STATIC / _ORDER
    lines = [line.split() for line in order.read_text(encoding="utf-8").splitlines() if line]
    return [name for pages, name in lines if pages in ("all", kind)]


@cache
def _static() -> dict[str, bytes]:
    """Return our files, and the plotting library's from its installed Python package."""
    folder = files("fedbench.leaderboard.site") / STATIC
    content = {f.name: f.read_bytes() for f in folder.iterdir() if f.name != _ORDER}
    try:
        library = files("bokeh") / "server/static/js"
        for name in _scripts("board"):
            if name.endswith(".min.js"):
                content[name] = (library / name).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise UserError(
            f"--html needs bokeh with its JavaScript, which is not installed: {INSTALL}"
        ) from error
    return content


@cache
def _documents() -> str:
    """Return the address of the documents that the package gives; "" without one."""
    urls = metadata.metadata(DISTRIBUTION).get_all("Project-URL") or []
    return str(dict(url.split(", ", 1) for url in urls).get("Documentation", ""))


def _csv(board: Board) -> bytes:
    """Return the rows as ``fedbench.load(...).rows`` has them. A text that a spreadsheet would
    compute is led by an apostrophe.
    """
    content, out = board.model_dump(mode="json"), io.StringIO()
    rows = [row_of(content, row) for row in content["rows"]]
    writer = csv.DictWriter(out, rows[0] if rows else (), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _inert_cell(value) for name, value in row.items()})
    return out.getvalue().encode()


def _inert_cell(value: Any) -> Any:
    formula = isinstance(value, str) and value[:1] in tuple("=+-@")
    return f"'{value}" if formula else value


def _page(kind: str, secret: str = "", **content: Any) -> bytes:
    """Return a page of that template. ``secret``: what of it is too long to be hashed with the
    rest.
    """
    digest = hashlib.sha256(repr((kind, sorted(content.items()), secret)).encode()).digest()
    nonce = base64.urlsafe_b64encode(digest[:18]).decode()
    page = (
        environment()
        .get_template(f"{kind}.html")
        .render(
            documents=_documents(),
            policy=policy(nonce),
            nonce=nonce,
            styles=STYLES,
            scripts=_scripts(kind),
            **content,
        )
    )
    return page.encode()


def _board_page(board: Board) -> bytes:
    from markupsafe import Markup

    data = as_json(board, {"folds"})
    commits: set[str] = set()
    for machine in board.machines:
        commits |= {value for name, value in machine if name == "git commit"}
    columns = [(key, key, hover) for key, hover in PLACES.items()]
    columns += [(column.key, column.title, column.hover) for column in board.columns]
    return _page(
        "board",
        secret=data,
        data=Markup(inert(data)),
        board=board,
        columns=[*columns, CELLS],
        within=_within(board),
        lower=_utility(board).direction == "lower",
        rows=[_row(board, at, row) for at, row in enumerate(board.rows)],
        notes=board.notes,
        date=_date(board),
        commits=sorted(commits),
    )


def inert(data: str) -> str:
    """Return JSON as it may stand in a ``<script>`` block: nothing in it ends the block, or means
    anything to HTML or JavaScript.
    """
    for letter in "<>&\u2028\u2029":
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    return data


def _date(board: Board) -> str:
    """Return the day of the last run."""
    return max(board.runs.started, default="")[:10]


def _row(board: Board, at: int, row: DocumentRow) -> dict[str, Any]:
    section = board.sections[row.section]
    attacks = [board.uses[use].label for use in section.attacks] + [""]
    rank = span(row.rank).replace("-", "–")  # noqa: RUF001
    marks = "floor", "undefended", "within", "winner"
    return {
        **dict(row),
        "classes": [name for name in marks if getattr(row, name)],
        "papers": _papers(board.uses[row.defense]),
        "numbers": {c.key: shown(row.numbers.get(c.key), c) for c in board.columns},
        "setting": board.settings[section.setting].name,
        "coalition": section.coalition,
        "view": section.view,
        "rank": "floor" if row.rank is None and row.floor else rank,
        "standing": _standing(board, at),
        "by": {"worst": attacks[row.worst_attack], "tf01": attacks[row.tf01_attack]},
        "cells": ", ".join(f"{n} {board.outcomes[outcome]}" for outcome, n in row.outcomes),
    }


def _papers(use: Use) -> list[tuple[str, str]]:
    """Return (citation, address) of the paper of each defense of an installed package: the
    citation's own address, else a search for it.
    """
    papers = []
    for name in use.name.split("+"):
        if paper := _cited().get(name):
            search = SEARCH + quote_plus(f"{paper} {name}")
            papers.append((paper, next(iter(re.findall(r"https://\S+", paper)), search)))
    return papers


@cache
def _cited() -> dict[str, str]:
    components = Registry.discover().components("defense")
    return {defense.name: defense.component.paper for defense in components}


def _standing(board: Board, at: int) -> str:
    """Return which ranked rows of its section a row is tied with, significantly better than, and
    worse than; "" without a rank.
    """
    row = board.rows[at]
    if row.rank is None:
        return ""
    groups: dict[str, list[str]] = {"tied with": [], "better than": [], "worse than": []}
    for i in board.sections[row.section].rows:
        rival = board.rows[i]
        if i == at or rival.rank is None:
            continue
        if i in row.better:
            relation = "better than"
        elif at in rival.better:
            relation = "worse than"
        else:
            relation = "tied with"
        groups[relation].append(rival.label)
    return "; ".join(
        f"{relation} {plain_text(named(labels, MOST_NAMED))}"
        for relation, labels in groups.items()
        if labels
    )


def _entry(board: Board) -> dict[str, Any]:
    """Return a board on the index page."""
    defenses = len({row.label for row in board.rows if not row.undefended and not row.floor})
    attacks: set[str] = set()
    for section in board.sections:
        attacks |= {board.uses[use].label for use in section.attacks}
    summary = (
        f"{defenses} defenses, {len(attacks)} attacks, {len(board.cells.key):,} cells, "
        f"{_date(board)}"
    )
    return {
        "name": board.name,
        "title": board.title,
        "what": summary,
        "winners": _winners(board) if defenses else "",
        "caveat": board.notes[0].partition(":")[0] if board.notes else "",
    }


def _winners(board: Board) -> str:
    """Return which defenses of small cost leak least, in how many rankings."""
    counts = Counter(row.label for row in board.rows if row.winner)
    n_rankings = len(board.sections)
    if not counts:
        return f"No defense leaks significantly less {_within(board)}."
    parts = [f"{label} ({n} of {n_rankings})" for label, n in counts.most_common()]
    labels = plain_text(named(parts, MOST_NAMED))
    return f"Leaks least {_within(board)}: {labels} rankings."


def _utility(board: Board) -> RankingColumn:
    return next(column for column in board.columns if column.key == "accuracy")


def _within(board: Board) -> str:
    """Say the cost of the rows that are marked, as :class:`Answer` has it."""
    title = _utility(board).title
    distance = "one point" if title == "accuracy" else "1 %"
    return f"within {distance} of the undefended {title}"


# -- numbers as the table prints them --------------------------------------------------------------


def shown(interval: Interval, column: RankingColumn) -> dict[str, str] | None:
    """Return mean and interval, "" where that is not known; None without a number."""
    if interval is None:
        return None
    mean, low, high = interval
    ends = ""
    if low is not None and high is not None and low != high:
        ends = f"[{written(low, column)}, {written(high, column)}]"
    return {"mean": f"{written(mean, column)} {column.unit}".rstrip(), "interval": ends}


def written(value: float, column: RankingColumn) -> str:
    """Return the number with a true minus sign, and no sign before a zero."""
    text = number(value * column.scale, column.digits, column.signed)
    return text.replace("-", "\u2212") if float(text) else text.lstrip("+")
