#!/usr/bin/env python3
"""Write the documents with numbers of committed boards: ``python docs/make.py`` (``--check``
compares them).

``docs/NAME.md.in`` becomes ``docs/NAME.md``. In a template

* ``{{board | setting | coalition | view | table | row | column}}`` is the number at that place of
  the committed board; ``<!-- from: board | setting | coalition | view | table -->`` on a line of
  its own gives the first parts for what follows, and ``{{row | column}}`` then is enough. A last
  part ``±`` adds the interval, ``text`` takes the place as it is.
* ``{{said: board | pattern}}`` is the first group of a pattern somewhere in the board.
* ``{{verdict: board | claim}}`` is that board's verdict on a claim, by its id.
* ``{{rivals: board | setting | coalition | view | chosen}}`` lists the rivals of a tuned defense by
  what the pairwise tests say.
* ``<!-- claims: paper -->`` on a line of its own is the list of that paper's claims
  (``plugins/papers/claims/paper.yaml``) by the verdicts of the committed boards.
* ``<!-- items -->`` on a line of its own is the table of everything that the papers print
  (``plugins/papers/items.csv``), with the verdicts of its boards and what its suites take.
* ``<!-- holds: A < B -->`` (or ``>``; A and B numbers or braces) on a line of its own is a
  condition that must hold, and is not printed: it checks a sentence about numbers.

Mistakes are reported with file and line; nothing is written then.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from records import Mistake, finish

from fedbench.leaderboard.markdown import escape
from fedbench.plugins.papers.claim_files import shipped_papers
from fedbench.plugins.papers.items import cost, paper_items
from fedbench.plugins.papers.own_tables import own_table

DOCS = Path(__file__).resolve().parent
BOARDS = DOCS.parent / "leaderboard" / "boards"
NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?"

OWN, HERE = "the paper contradicts itself", "cannot decide here"
MIXED = "not alike on all boards"
GROUPS = (
    "supported",
    "contradicted",
    "smaller than claimed",
    MIXED,
    "not decided",
    HERE,
    "not comparable",
    "not tested",
    OWN,
)
"""headings of a paper's claims, in order"""

Table = dict[str, dict[str, str]]
"""row -> column -> text; a table with an attack beside the defense has rows ``defense / attack``,
one that compares has rows ``chosen / rival``, a second column of one name is called ``name (2)``
"""


def rendered(template: str, where: str) -> str:
    """The document of a template; raises :class:`Mistake` with everything that is wrong."""
    lines, problems, base = [], [], ()
    for number, line in enumerate(template.splitlines(), 1):
        try:
            if match := re.fullmatch(r"<!-- from: (.*) -->", line):
                base = parts(match[1])
                continue
            if line == "<!-- items -->":
                lines += items_table()
                continue
            if match := re.fullmatch(r"<!-- claims: (\S+) -->", line):
                lines += claims(match[1])
                continue
            filled = re.sub(r"\{\{(.+?)\}\}", lambda m, base=base: value(m[1], base), line)
            if match := re.fullmatch(r"<!-- holds: (.*) -->", filled):
                check(match[1])
                continue
            lines.append(filled)
        except Mistake as mistake:
            problems.append(f"{where}:{number}: {mistake}")
    if problems:
        raise Mistake("\n".join(problems))
    return "\n".join(lines) + "\n"


def claims(paper: str) -> list[str]:
    """Return the number of verdicts of each kind, then the claims by verdict; last those that the
    paper's own tables do not hold.
    """
    papers = shipped_papers()
    if paper not in papers:
        raise Mistake(f"no claims of {paper}; there are claims of {', '.join(papers)}")
    judged: dict[str, dict[str, list[str]]] = {}
    sole_boards = Counter[str]()
    for claim in papers[paper].claims:
        boards_of: dict[str, list[str]] = {}
        for suite in papers[paper].suites(claim):
            if verdict := verdicts(suite).get(claim.id):
                boards_of.setdefault(verdict, []).append(suite)
        if boards_of:
            judged[claim.id] = boards_of
        for boards in boards_of.values():
            if len(boards) == 1:
                sole_boards[boards[0]] += 1
    ((usual, _),) = sole_boards.most_common(1)
    groups: dict[str, list[str]] = {}
    for claim in papers[paper].claims:
        if claim.id in judged:
            group, line = claim_line(claim.id, judged[claim.id], usual)
            text = escape(claim.text, len(claim.text))
            groups.setdefault(group, []).append(f"* {text} {line}".rstrip())
    summary = f"{len(papers[paper].claims)} claims."
    lines = [f"{summary} Board, unless others are named: {board_link(usual)}."]
    for group in sorted(groups, key=GROUPS.index):
        lines += ["", f"{group.capitalize()} ({len(groups[group])}):", "", *groups[group]]
    return lines


def items_table() -> list[str]:
    """Return the number of items by scale, then a row an item: boards or suites, verdicts of the
    claims that name it on its boards, and what its suites at the paper's scale take.
    """
    rows = []
    scales = Counter[str]()
    for item in paper_items():
        full, reduced = (list(filter(is_board, suites)) for suites in (item.full, item.reduced))
        boards = [*full, *reduced]
        counted = Counter(
            verdicts(b).get(c, "").partition(" (")[0] for b in boards for c in item.claims
        )
        scale, names = "without a suite", [item.reason]
        if boards:
            scale, names = "paper's" if full else "reduced", list(map(board_link, boards))
        elif item.reduced or item.full:
            scale, names = "not run", list(item.reduced or item.full)
        scales[scale] += 1
        judged = ", ".join(f"{counted[v]} {v}" for v in GROUPS if counted[v])
        words = cost(suite for suite in item.full if suite not in full)
        hours = {device: number for number, device in re.findall(r"(\S+) (GPU|CPU)", words)}
        name = f"{shipped_papers()[item.paper].paper} {item.item}"
        cells = [name, item.what, scale, ", ".join(names), judged]
        rows.append("|".join(["", *cells, hours.get("GPU", ""), hours.get("CPU", ""), ""]))
    summary = ", ".join(f"{n} {scale}" for scale, n in scales.most_common())
    head = "|item|what|scale|board or suite|verdicts|GPU, hours|CPU, hours|"
    return [f"{len(rows)} items: {summary}.", "", head, "|---" * 7 + "|", *rows]


def is_board(suite: str) -> bool:
    """Tell whether a suite has a committed board."""
    return (BOARDS / f"{suite}.json").is_file()


def claim_line(claim: str, boards_of: dict[str, list[str]], usual: str) -> tuple[str, str]:
    """Return the group of a claim, by its verdict or ``MIXED``, and what stands behind its text:
    boards, but for the ``usual`` one, or the tables that contradict it.
    """
    if claim in contradictions():
        return OWN, contradictions()[claim].removeprefix(OWN).strip()
    texts = {v: ", ".join(map(board_link, boards)) for v, boards in boards_of.items()}
    if len(texts) > 1:
        return MIXED, "; ".join(f"*{verdict}*: {links}" for verdict, links in texts.items())
    ((verdict, boards),) = boards_of.items()
    return verdict, "" if boards == [usual] else texts[verdict]


def board_link(board: str) -> str:
    """Return a link to a committed board."""
    return f"[{board}](../leaderboard/boards/{board}.md)"


@cache
def verdicts(board: str) -> dict[str, str]:
    """Return claim id -> verdict of a committed board; empty where there is no such board."""
    if not is_board(board):
        return {}
    verdict_of: dict[str, str] = {}
    for place, table in tables_of(board):
        if place[:1] == ["Claims of the papers"]:
            for row in table["rows"]:
                short_name = re.sub(r" (by these intervals|at this scale)$", "", row[3])
                verdict_of[row[0]] = short_name
    for name in verdict_of:
        if name in contradictions():
            verdict_of[name] = contradictions()[name]
    return verdict_of


@cache
def contradictions() -> dict[str, str]:
    """Claim's id -> verdict with the tables, of the claims that their paper's own tables do not
    hold.
    """
    tables_of_claims = [
        (c.id, own_table(paper, c)) for paper in shipped_papers().values() for c in paper.claims
    ]
    return {name: f"{OWN} ({tables.tables})" for name, tables in tables_of_claims if tables.fails}


def parts(text: str) -> tuple[str, ...]:
    """The parts of a reference to a place of a board."""
    return tuple(part.strip() for part in text.split("|"))


def value(text: str, base: tuple[str, ...]) -> str:
    """The text for a pair of braces."""
    if text.startswith("said:"):
        board, pattern = (p.strip() for p in text.removeprefix("said:").split("|", 1))
        match = re.search(pattern, board_text(board))
        if match is None:
            raise Mistake(f"nothing in {board}.json is like {pattern}")
        return match[1]
    if text.startswith("verdict:"):
        board, claim = parts(text.removeprefix("verdict:"))
        if claim not in verdicts(board):
            raise Mistake(
                f"{board}.json has no verdict on '{claim}'; it has them on "
                f"{', '.join(verdicts(board)) or 'no claim'}"
            )
        return verdicts(board)[claim]
    if text.startswith("rivals:"):
        return rivals(*parts(text.removeprefix("rivals:")))
    wanted = parts(text)
    form = wanted[-1:] if wanted[-1] in ("±", "text") else ()
    wanted = wanted[: len(wanted) - len(form)]
    full = (*base[: 7 - len(wanted)], *wanted)
    if len(full) != 7:
        raise Mistake(
            f"{text}: {len(full)} parts of board | setting | coalition | view | table | row | "
            "column"
        )
    board, *section, table, row, column = full
    rows = tables(board).get((*section, table))
    if rows is None:
        raise Mistake(f"{board}.json has no table '{table}' under {' / '.join(section)}")
    if row not in rows:
        raise Mistake(f"{board}.json, {table} has no row '{row}'; it has {', '.join(rows)}")
    if column not in rows[row]:
        raise Mistake(
            f"{board}.json, {table} has no column '{column}'; it has {', '.join(rows[row])}"
        )
    return number(rows[row][column], form)


@cache
def document(board: str) -> dict[str, Any]:
    """Return the document of a committed board."""
    path = BOARDS / f"{board}.json"
    if not path.is_file():
        names = ", ".join(p.stem for p in sorted(BOARDS.glob("*.json")))
        raise Mistake(f"there is no committed board {path.name}; there are {names}")
    return json.loads(path.read_text(encoding="utf-8"))


def rivals(board: str, setting: str, coalition: str, view: str, chosen: str) -> str:
    """The rivals of a tuned defense that it leaks more than, is tied with, and leaks less than,
    with the differences.
    """
    section = (setting, coalition, view, "One tuned defense against the others")
    if section not in tables(board):
        raise Mistake(f"{board}.json compares no tuned defense under {' / '.join(section[:3])}")
    groups: dict[str, list[str]] = {"MORE": [], "no difference shown": [], "less": []}
    for row, cells in tables(board)[section].items():
        if row.startswith(f"{chosen} / "):
            difference = number(cells["worst case AUC"], ("±",))
            groups[cells["it leaks"]].append(f"{cells['minus']} ({difference})")
    words = ("leaks more than", "is tied with", "leaks less than")
    sentences = [
        f"{w} {', '.join(names)}" for w, names in zip(words, groups.values(), strict=True) if names
    ]
    return "; ".join(sentences)


def number(text: str, form: tuple[str, ...]) -> str:
    """The first number of a place, without a zero before the point; with its interval where asked
    for.
    """
    text = text.replace("**", "")
    if form == ("text",):
        return text
    match = re.match(NUMBER, text)
    if match is None:
        raise Mistake(f"'{text}' holds no number")
    if not form:
        return short(match[0])
    spread = re.match(rf"{NUMBER} (± {NUMBER}|\[{NUMBER}, {NUMBER}\])", text)
    if spread is None:
        raise Mistake(f"'{text}' has no interval")
    return " ".join(short(word) for word in spread[0].split(" "))


def short(word: str) -> str:
    """.5 for 0.500 is how these documents write shares; other numbers stay."""
    return re.sub(r"(?<![\d.])0(?=\.\d{3}$)", "", word)


def check(claim: str) -> None:
    """Raise :class:`Mistake` unless the comparison of two numbers holds."""
    match = re.fullmatch(r"\s*(\S+)\s*([<>])\s*(\S+)\s*", claim)
    if match is None:
        raise Mistake(f"'{claim}' is no comparison of two numbers")
    a, b = (float(match[i].replace(",", "")) for i in (1, 3))
    if not (a < b if match[2] == "<" else a > b):
        raise Mistake(f"no longer true: {claim.strip()}")


def tables_of(board: str) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield (the headings above it, table) of every table of a committed board."""
    for fold in document(board)["folds"]:
        for block in fold["blocks"]:
            if isinstance(block, dict):
                yield fold["place"], block


@cache
def board_text(board: str) -> str:
    """Return the sentences and table rows of a committed board, a line each."""
    lines = [section["sentence"] for section in document(board)["sections"]]
    for fold in document(board)["folds"]:
        lines += [block for block in fold["blocks"] if isinstance(block, str)]
    for _, table in tables_of(board):
        lines += [" | ".join(row) for row in table["rows"]]
    return "\n".join(lines)


@cache
def tables(board: str) -> dict[tuple[str, str, str, str], Table]:
    """Return (setting, coalition, view, title) -> table, of every table with a title."""
    by_place: dict[tuple[str, str, str, str], Table] = {}
    for place, table in tables_of(board):
        heading, section = [*place, "", ""][:2]
        setting = heading.removeprefix("Setting ").rpartition(": ")[2]
        coalition, view = "", ""
        if match := re.fullmatch(r"Coalition (.*), (\w+) view", section):
            coalition, view = match.groups()
        by_place.setdefault((setting, coalition, view, table["title"]), grid(table))
    return by_place


def grid(table: dict[str, Any]) -> Table:
    """Return the rows of a table by name, each by column."""
    header = [re.sub(r" \((%|pp|x|finds nothing)\)$", "", name) for name in table["columns"]]
    header = [name if name not in header[:i] else f"{name} (2)" for i, name in enumerate(header)]
    named = header.index("defense") if "defense" in header else 0
    rows: Table = {}
    for row in table["rows"]:
        cells = dict(zip(header, row, strict=True))
        name = row[named].removesuffix(" (undefended)")
        second = cells.get("minus")
        if not second and named == 0 and "defense" in cells:
            second = cells.get("attack")
        rows[f"{name} / {second}" if second else name] = cells
    return rows


def main() -> int:
    """0, or 1 where something is wrong or, with ``--check``, out of date."""
    problems, contents = [], {}
    for template in sorted(DOCS.rglob("*.md.in")):
        try:
            where = template.relative_to(DOCS.parent).as_posix()
            contents[template.with_suffix("")] = rendered(
                template.read_text(encoding="utf-8"), where
            )
        except Mistake as mistake:
            problems.append(str(mistake))
    return finish(contents, problems, "its template and the boards say: run python docs/make.py")


if __name__ == "__main__":
    raise SystemExit(main())
