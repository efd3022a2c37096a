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
from fedbench.core.store.stems import unused
from fedbench.core.store.stored_suites import ID, read_suite
from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.figures import slug
from fedbench.leaderboard.site.data import board_of
from fedbench.leaderboard.site.pages import pages
from fedbench.leaderboard.site.schema import Board, document_file, read_board
from fedbench.leaderboard.site.values import safe
from fedbench.suites import shipped_suites

MARKER, VERSION = "site.json", 1
DOCUMENT = "board.json"
_RESERVED = ("index", "site")
_OURS = re.compile(r"(static/)?[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)


def make_site(sources: Sequence[Path], folder: Path) -> dict[str, int]:
    """Write the site of several boards, one a source: a results folder, a bundle, or a board's
    document (``*.json``); return file -> bytes. A results folder keeps its document in
    ``leaderboard/board.json``.

    Raises ``UserError`` for sources that cannot be used and for a folder that holds anything else;
    then no page is written.
    """
    before = _files_of_site(folder)
    boards: dict[str, Board] = {}
    for source in sources:
        board = document_of(source)
        if source.is_dir():
            write_atomically(source.absolute() / "leaderboard" / DOCUMENT, document_file(board))
        name = unused(board.name, {*boards, *_RESERVED}, "_")
        boards[name] = board.model_copy(update={"name": name})
    content = pages(list(boards.values()))
    _mark(folder, before | set(content))  # first: the same command takes up what a kill leaves
    for name, data in content.items():
        write_atomically(folder / name, data)
    _mark(folder, set(content))
    for name in before - set(content):  # a board that is no longer in it
        (folder / name).unlink(missing_ok=True)
    for stray in folder.rglob(f"{TEMPORARY_PREFIX}*"):  # of a command that was killed
        stray.unlink(missing_ok=True)
    return {name: len(data) for name, data in content.items()}


def _mark(folder: Path, names: set[str]) -> None:
    content = json.dumps({"fedbench_site": VERSION, "files": sorted(names)}, indent=1)
    write_atomically(folder / MARKER, content.encode() + b"\n")


def document_of(source: Path) -> Board:
    """Return the document of a results folder, of a bundle or of a board's file; nothing is
    written. Raises ``UserError``.
    """
    if source.is_file() and source.suffix == ".json":
        return read_board(source).model_copy(update={"name": _name(source)})
    results = load(source)
    board = source_of(results.folder)
    suites = {r.record.suite for r in board.records}
    command = ""
    if board.plan is not None and ID.fullmatch(board.plan) and len(suites) == 1:
        command = _command(results.folder, board.plan)
    return board_of(board, _name(source), command)


def _command(results: Path, plan: str) -> str:
    """Return ``fedbench run SUITE --set ...`` of a suite that fedbench ships, as it was given; of
    another one the file that the folder stores; "" of one that was deleted or changed.
    """
    try:
        stored = read_suite(results, plan)
    except UserError:
        return ""
    for name, path in shipped_suites().items():
        if path.stem == stored.suite and path.read_text(encoding="utf-8") == stored.given:
            command = ["fedbench", "run", name]
            for change in stored.overrides:
                command += ["--set", change]
            return safe(shlex.join(command))
    return f"fedbench run RESULTS/suites/{plan}.yaml"


def _name(source: Path) -> str:
    """Return the name of its page: the folder's or the file's; of
    ``RESULTS/leaderboard/board.json`` the folder's.
    """
    path = source.absolute()
    if path.name == DOCUMENT and path.parent.name == "leaderboard":
        path = path.parents[1]
    return slug(path.stem if source.is_file() else path.name).replace("-", "_")


def _files_of_site(folder: Path) -> set[str]:
    """Return the files of the site that is there. UserError for a folder with anything else in
    it.
    """
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
    if isinstance(listed, list):
        names = {name for name in listed if isinstance(name, str) and _OURS.fullmatch(name)}
        if len(names) == len(listed):
            return names
    raise UserError(f"{folder / MARKER}: not what fedbench wrote; {remedy}")
