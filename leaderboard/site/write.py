"""A site in a folder: what is in it is ours, and nothing else is touched."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from fedbench.core import UserError
from fedbench.core.api import load
from fedbench.core.store.files import TEMPORARY_PREFIX, write_atomically
from fedbench.core.store.json_file import parse_json
from fedbench.core.store.stored_suites import ID, read_suite
from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.figures import slug
from fedbench.leaderboard.site.data import board_of, safe
from fedbench.leaderboard.site.pages import pages
from fedbench.leaderboard.site.schema import Board, document_file, read_board
from fedbench.suites import shipped_suites

MARKER, VERSION = "site.json", 1
DOCUMENT = "board.json"
_TAKEN = ("index", "licences", "site")
_OURS = re.compile(r"(static/)?[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)


def make_site(sources: Sequence[Path], folder: Path) -> dict[str, int]:
    """Write the site of several boards, one a source: a results folder, a bundle, or a board's
    document (``*.json``); file -> bytes. A results folder keeps its document in
    ``leaderboard/board.json``.

    Raises ``UserError`` for sources that cannot be used and for a folder that holds anything else;
    then no page is written.
    """
    before = _ours(folder)
    boards: list[Board] = []
    for source in sources:
        board = _board(source)
        boards.append(
            board.model_copy(update={"name": _free(board.name, [b.name for b in boards])})
        )
    made = pages(boards)
    _mark(folder, before | set(made))  # first: the same command takes up what a kill leaves
    for name, content in made.items():
        write_atomically(folder / name, content)
    _mark(folder, set(made))
    for name in before - set(made):  # a board that is no longer in it
        (folder / name).unlink(missing_ok=True)
    return {name: len(content) for name, content in made.items()}


def _mark(folder: Path, files: set[str]) -> None:
    content = json.dumps({"fedbench_site": VERSION, "files": sorted(files)}, indent=1)
    write_atomically(folder / MARKER, content.encode() + b"\n")


def _board(source: Path) -> Board:
    board = document_of(source)
    if source.is_dir():
        write_atomically(source.absolute() / "leaderboard" / DOCUMENT, document_file(board))
    return board


def document_of(source: Path) -> Board:
    """The document of a results folder, of a bundle or of a board's file; nothing is written.
    Raises ``UserError``.
    """
    if source.is_file() and source.suffix == ".json":
        return read_board(source).model_copy(update={"name": _name(source)})
    results = load(source)
    found = source_of(results.folder)
    return board_of(
        found,
        _name(source),
        _command(results.folder, found.plan, {r.record.suite for r in found.records}),
    )


def _command(results: Path, plan: str | None, suites: set[str]) -> str:
    """``fedbench run SUITE --set ...`` of a suite that fedbench ships, as it was given; of another
    one the file that the folder stores; "" of several suites, and of records without a stored
    suite.
    """
    if plan is None or len(suites) != 1 or not ID.fullmatch(plan):
        return ""
    try:
        asked = read_suite(results, plan)
    except UserError:  # the stored suite was deleted or changed
        return ""
    name, path = {path.stem: (name, path) for name, path in shipped_suites().items()}.get(
        asked.suite, ("", None)
    )
    if path is None or path.read_text(encoding="utf-8") != asked.given:
        return f"fedbench run RESULTS/suites/{plan}.yaml"
    return safe(
        shlex.join(
            [
                "fedbench",
                "run",
                name,
                *(part for change in asked.overrides for part in ("--set", change)),
            ]
        )
    )


def _name(source: Path) -> str:
    """Of its page: the folder's or the file's; of ``RESULTS/leaderboard/board.json`` the folder's."""
    path = source.absolute()
    if path.name == DOCUMENT and path.parent.name == "leaderboard":
        path = path.parents[1]
    return slug(path.stem if source.is_file() else path.name).replace("-", "_")


def _free(name: str, taken: Sequence[str]) -> str:
    """The same, or with a number that no other page has."""
    numbered = (name if i == 1 else f"{name}_{i}" for i in range(1, len(taken) + 3))
    return next(n for n in numbered if n not in taken and n not in _TAKEN)


def _ours(folder: Path) -> set[str]:
    """The files of the site that is there. UserError for a folder with anything else in it."""
    if not folder.exists():
        return set()
    if not folder.is_dir():
        raise UserError(f"{folder}: is a file; name a folder with --html")
    if not (folder / MARKER).exists():
        if any(not path.name.startswith(TEMPORARY_PREFIX) for path in folder.iterdir()):
            raise UserError(
                f"{folder}: not empty and no site of fedbench (no {MARKER}); nothing was touched - "
                "name another one"
            )
        return set()
    remedy = "name another folder with --html, or delete this one"
    content = parse_json(folder / MARKER, 1 << 20, remedy)
    listed = content.get("files") if isinstance(content, dict) else None
    if not isinstance(listed, list) or not all(
        isinstance(name, str) and _OURS.fullmatch(name) for name in listed
    ):
        raise UserError(f"{folder / MARKER}: not what fedbench wrote; {remedy}")
    return set(listed)
