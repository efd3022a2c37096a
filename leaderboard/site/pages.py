"""The pages of a site: a board's document in, HTML out. Everything of a document is text: Jinja2 escapes it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import metadata
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fedbench.core import UserError
from fedbench.core.contract.board import Column
from fedbench.leaderboard.site.schema import Board, Interval, PublishedPair, Row, as_json, not_a_board
from fedbench.leaderboard.tables import ranking
from fedbench.leaderboard.tables.common import number, numbers, plain_text, span

if TYPE_CHECKING:
    from jinja2 import Environment

INTERVALS = ("worst", "mean", "tf01", "delta", "accuracy", "runtime", "contribution")
AS = ranking.COLUMNS | {"runtime": replace(ranking.COLUMNS["runtime"], unit="×")}  # noqa: RUF001
COLUMNS = {
    **{name: name for name in ("setting", "coalition", "view", "rank", "defense")},
    **{key: plain_text(AS[key].name) for key in INTERVALS}, "cells": "cells",
}  # fmt: skip
STATIC, STYLES = "static", ("site.css",)
_ORDER = "scripts.txt"  # what each kind of page loads, in its order
INSTALL = "pip install 'fedbench[html]'"


def policy(nonce: str) -> str:
    """The Content-Security-Policy of a page: nothing but what carries its nonce runs or styles, and nothing is
    fetched.

    The nonce is a digest of everything on the page, so the author of a part of it cannot know it.
    """
    return f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'"


def pages(boards: Sequence[Board]) -> dict[str, bytes]:
    """Path in the site -> content of every file. Raises ``UserError`` where a part of the ``html`` extra is
    missing."""
    made = {f"{STATIC}/{name}": content for name, content in _static().items()}
    for board in boards:
        try:
            made[f"{board.name}.html"] = _board_page(board)
        except IndexError as error:
            raise not_a_board(f"{board.name}.html", "a position is out of range") from error
    made["index.html"] = _page("index", boards=[_entry(board) for board in boards])
    made["licences.html"] = _page("licences", parts=[
        _licence("fedbench", "These pages, their scripts and their styles."),
        _licence("bokeh", "The interactive figures: its JavaScript is in static/, as its Python package has it."),
    ])  # fmt: skip
    return made


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ModuleNotFoundError as error:
        raise UserError(f"--html needs jinja2, which is not installed: {INSTALL}") from error
    loader = PackageLoader("fedbench.leaderboard.site", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _scripts(kind: str) -> list[str]:
    lines = (files("fedbench.leaderboard.site") / STATIC / _ORDER).read_text(encoding="utf-8").split("\n")
    return [name for line in lines if line for of, name in [line.split()] if of in ("all", kind)]


@cache
def _static() -> dict[str, bytes]:
    """Ours, and the plotting library's, from its installed Python package."""
    found = {f.name: f.read_bytes() for f in (files("fedbench.leaderboard.site") / STATIC).iterdir() if f.name != _ORDER}
    try:
        library = files("bokeh") / "server/static/js"
        return found | {name: (library / name).read_bytes() for name in _scripts("board") if name.endswith(".min.js")}
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise UserError(f"--html needs bokeh with its JavaScript, which is not installed: {INSTALL}") from error


def _licence(distribution: str, what: str) -> dict[str, str]:
    """Of a part of the site, with the text of its licence."""
    found = metadata.distribution(distribution)
    about = found.metadata
    licence = next((about[name] for name in ("License-Expression", "License") if name in about), "see below")
    texts = {f.read_text() for f in found.files or () if f.name.upper().startswith(("LICENSE", "LICENCE", "COPYING"))}
    shown = "\n\n".join(sorted(texts))
    return {"name": about["Name"], "version": found.version, "what": what, "licence": licence.splitlines()[0], "text": shown}


def _page(kind: str, secret: str = "", **content: Any) -> bytes:
    """A page of that template. ``secret``: what of it is too long to be hashed with the rest."""
    digest = hashlib.sha256(repr((kind, sorted(content.items()), secret)).encode()).digest()
    nonce = base64.urlsafe_b64encode(digest[:18]).decode()
    page = (
        _environment()
        .get_template(f"{kind}.html")
        .render(policy=policy(nonce), nonce=nonce, styles=STYLES, scripts=_scripts(kind), **content)
    )
    return page.encode()


def _board_page(board: Board) -> bytes:
    from markupsafe import Markup

    data = as_json(board)
    described = {
        "board": board, "columns": COLUMNS.items(), "rows": [_row(board, row) for row in board.rows], "choices": _choices(board),
        "answers": [(_where(board, s.setting, s.coalition, s.view), s.sentences) for s in board.sections if s.sentences],
        "published": [{**vars(entry), "pairs": [_pair(p) for p in entry.pairs]} for entry in board.published],
    }  # fmt: skip
    return _page("board", secret=data, data=Markup(inert(data)), **described)


def inert(data: str) -> str:
    """JSON as it may stand in a ``<script>`` block: nothing in it ends the block, or means anything to HTML or
    JavaScript."""
    for letter in "<>&\u2028\u2029":
        data = data.replace(letter, f"\\u{ord(letter):04x}")
    return data


def _where(board: Board, setting: int, coalition: str, view: str) -> str:
    return f"{board.settings[setting].name}, coalition {coalition}, {view} view"


def _choices(board: Board) -> dict[str, list[str]]:
    """What each filter offers, each value once."""
    sections, rows = board.sections, board.rows
    attacks = [board.uses[use] for s in sections for use in s.attacks]
    packages = [p for row in rows for p in row.packages] + [use.package for use in attacks]
    found = {
        "setting": [board.settings[s.setting].name for s in sections], "coalition": [s.coalition for s in sections],
        "view": [s.view for s in sections], "attack": [use.label for use in attacks], "defense": [row.label for row in rows],
        "package": sorted(packages),
    }  # fmt: skip
    return {key: list(dict.fromkeys(names)) for key, names in found.items()}


def _row(board: Board, row: Row) -> dict[str, Any]:
    section = board.sections[row.section]
    names = [board.uses[use].label for use in section.attacks]
    return {
        **{name: getattr(row, name) for name in ("section", "label", "floor", "undefended", "trust", "claims", "remarks")},
        **{key: shown(getattr(row, key), AS[key]) for key in INTERVALS},
        "setting": board.settings[section.setting].name, "coalition": section.coalition, "view": section.view,
        "rank": _rank(row), "worst_by": names[row.worst_attack] if row.worst_attack >= 0 else "",
        "tf01_by": names[row.tf01_attack] if row.tf01_attack >= 0 else "",
        "cells": ", ".join(f"{n} {board.outcomes[outcome]}" for outcome, n in row.outcomes),
    }  # fmt: skip


def _rank(row: Row) -> str:
    return "floor" if row.rank is None and row.floor else span(row.rank).replace("-", "–")  # noqa: RUF001


def _pair(pair: PublishedPair) -> dict[str, Any]:
    how = numbers("", digits=2 if "%" in pair.quantity else 3)
    spread = "" if pair.spread is None else f" ± {written(pair.spread, how)}"
    difference = "" if pair.difference is None else written(pair.difference, replace(how, signed=True))
    return {
        **vars(pair), "ours": shown(pair.ours, how), "paper": written(pair.paper, how) + spread, "difference": difference,
    }  # fmt: skip


def _entry(board: Board) -> dict[str, Any]:
    """A board on the index page."""
    settings = ", ".join(dict.fromkeys(setting.name for setting in board.settings))
    defenses = len({row.label for row in board.rows if not row.undefended and not row.floor})
    attacks = len({board.uses[use].label for s in board.sections for use in s.attacks})
    what = f"{settings or 'no setting'}: {defenses} defenses, {attacks} attacks, {len(board.cells.key):,} cells"
    first = next((s for s in board.sections if s.sentences), None)
    where = _where(board, first.setting, first.coalition, first.view) if first else ""
    found = first.sentences if first else []
    return {"name": board.name, "title": board.title, "what": what, "where": where, "sentences": found}


# -- numbers as the table prints them -----------------------------------------------------------------------------------------


def shown(found: Interval, how: Column) -> dict[str, str] | None:
    """Mean and interval, "" where that is not known; None without a number."""
    if found is None:
        return None
    mean, low, high = found
    ends = "" if low is None or high is None else f"[{written(low, how)}, {written(high, how)}]"
    return {"mean": written(mean, how) + (how.unit and f" {how.unit}"), "interval": ends}


def written(value: float, how: Column) -> str:
    """With a true minus sign, and no sign before a zero."""
    text = number(value * how.scale, how.digits, how.signed)
    return text.replace("-", "\u2212") if float(text) else text.lstrip("+")
