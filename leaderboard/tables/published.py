"""The papers' numbers beside ours: what corresponds, how far apart it is, and what was not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedbench.core import UserError
from fedbench.core.contract.board import Block, Bullets, Column, Content, Heading, Quote, Table, Text, Value, Words
from fedbench.leaderboard.statistics.agreement import agreement
from fedbench.leaderboard.statistics.published import QUANTITIES, Match, Pair, match
from fedbench.leaderboard.statistics.section import Section
from fedbench.leaderboard.tables.common import ATTACK, DEFENSE, joined

_NAMES = {
    "auc": "AUC", "tf01": "TF01 (%)", "hypervolume": "hypervolume", "attack_accuracy": "best_round attack accuracy",
    "mia_accuracy": "MIA accuracy in the last round", "auc_max": "max auR", "advantage_max": "max Adv",
    "test_acc": "test accuracy", "runtime": "runtime over the undefended one's",
}  # fmt: skip
_DIGITS = {"tf01": 2, "hypervolume": 4, "runtime": 2}
_MORE = {
    "attack_accuracy": ("ours in the last round", "ours, null of best_round"),
    "auc_max": ("null of ours", "above the null"), "advantage_max": ("null of ours", "above the null"),
}  # fmt: skip


def beside_papers(entries: Sequence[dict[str, Any]], sections: Sequence[Section]) -> list[Block]:
    """All published numbers that a suite names; an entry that fits no paper is said, and costs nobody the board."""
    matches: list[Match] = []
    wrong: list[Text] = []
    for entry in entries:
        try:
            matches += match(entry, sections)
        except UserError as error:
            wrong.append(Quote(str(error), 400))
    blocks: list[Block] = [Heading(2, Words("Beside the paper"))]
    for m in matches:
        blocks += match_blocks(m)
    return [*blocks, *([Bullets(tuple(wrong))] if wrong else [])]


def match_blocks(found: Match) -> list[Block]:
    """A summary of the reproduction, and per quantity a table of ours, the paper's and the difference."""
    where = joined([f"{found.source} {found.table}", found.setting, f"coalition {found.coalition}"])
    tables = [_table(q, found.of(q)) for q in QUANTITIES if any(p.ours for p in found.of(q))]
    summary = Bullets(tuple(Words(_agreement(q, found.of(q))) for q in QUANTITIES if found.of(q)))
    return [Heading(3, where), summary, *tables]


def _agreement(quantity: str, pairs: Sequence[Pair]) -> str:
    """Rank correlation and mean absolute difference over the cells that were run; how many were not."""
    found = agreement(pairs)
    said = f"{_NAMES[quantity].removesuffix(' (%)')}: {found.done} of {found.asked} published cells run"
    if found.rank_correlation is None or found.mean_difference is None:
        return said
    rank = "n/a" if found.rank_correlation != found.rank_correlation else f"{found.rank_correlation:.2f}"
    unit = " percentage points" if quantity == "tf01" else ""
    return f"{said}; rank correlation {rank}, mean absolute difference {found.mean_difference:.3f}{unit}"


def _table(quantity: str, pairs: Sequence[Pair]) -> Table:
    digits = _DIGITS.get(quantity, 3)
    more = _MORE.get(quantity, ())
    columns = (
        DEFENSE, ATTACK, Column(name=Words(f"ours {_NAMES[quantity]}"), digits=digits),
        Column(name=Words("paper"), digits=digits), Column(name=Words("difference"), digits=digits, signed=True),
        *(Column(name=Words(name), digits=digits) for name in more),
    )  # fmt: skip
    rows = tuple((p.defense, _attack(p), *_numbers(p), *_more(p, more)) for p in pairs)
    return Table(title="", columns=columns, rows=rows)


def _attack(pair: Pair) -> Text:
    return (pair.attack, Words(", group "), pair.group) if pair.group else pair.attack


def _numbers(p: Pair) -> tuple[Content, ...]:
    paper = Value(mean=p.paper, half_width=p.paper_std, suffix=_clients(p))
    if p.ours is None:
        return Words("not run"), paper, ""
    return Value(mean=p.ours.value, half_width=p.ours.half_width), paper, Value(mean=p.difference)


def _clients(p: Pair) -> Text:
    """The paper's clients, where its number is their mean."""
    return () if p.paper_range is None else Words(f" ({p.paper_range[0]:g} to {p.paper_range[1]:g})")


def _more(p: Pair, names: Sequence[str]) -> tuple[Content, ...]:
    if p.ours is None or not names:
        return ("",) * len(names)
    if p.quantity == "attack_accuracy":
        return Value(mean=p.ours.last), Value(mean=p.ours.null)
    above = None if p.ours.null is None else p.ours.value - p.ours.null
    return Value(mean=p.ours.null), Value(mean=above)
