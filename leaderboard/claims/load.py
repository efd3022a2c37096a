"""From the files of claims to checked claims."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedbench.core import UserError
from fedbench.core.spec import messages
from fedbench.core.spec.document import Document, Problem, read
from fedbench.core.words.nearest import did_you_mean
from fedbench.leaderboard.claims.schema import Paper


@cache
def shipped_papers() -> dict[str, Paper]:
    """Name of the file -> its claims, of those that come with fedbench, by name."""
    return load_papers(Path(str(files("fedbench.leaderboard.claims"))))


def load_papers(folder: Path) -> dict[str, Paper]:
    """The same of any folder. Raises ``UserError`` with every mistake of a file, a line each, and for an id of two
    claims."""
    found, owner = {}, dict[str, Path]()
    for path in sorted(folder.glob("*.yaml")):
        found[path.stem] = load_paper(path)
        for claim in found[path.stem].claims:
            if owner.setdefault(claim.id, path) != path:
                raise UserError(f"{path}: the id '{claim.id}' is one of {owner[claim.id].name}, too: rename one of them")
    return found


def load_paper(path: Path) -> Paper:
    """One file; ``UserError`` with file, line and column of everything that is wrong with it."""
    document = read(path)
    try:
        paper = Paper.model_validate(document.data)
    except ValidationError as error:
        raise document.error(messages.problems(error, Paper, document.data)) from None
    if problems := list(_problems(paper, document)):
        raise document.error(problems)
    return paper


def _problems(paper: Paper, document: Document) -> Iterator[Problem]:
    """What fits its type and not the rest of the file."""
    first: dict[str, Any] = {}
    for i, claim in enumerate(paper.claims):
        if first.setdefault(claim.id, i) != i:
            yield Problem(("claims", i, "id"), f"the id '{claim.id}' is taken by claims[{first[claim.id]}]")
        for j, name in enumerate(claim.where):
            if name not in paper.sections:
                yield Problem(("claims", i, "where", j), f"no section '{name}'{did_you_mean(name, paper.sections)}")
    for name, place in paper.sections.items():
        if place.suite not in paper.differs:
            yield Problem(("sections", name, "suite"), f"nothing under differs says what suite {place.suite} differs in")
