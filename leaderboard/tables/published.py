"""The papers' numbers beside ours: what corresponds, how far apart it is, and what was not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedbench.core import UserError
from fedbench.core.contract.board import Block, Bullets, Column, Content, Heading, Note, Quote, Table, Text, Value, Words
from fedbench.leaderboard.statistics.agreement import agreement
from fedbench.leaderboard.statistics.averages import Average
from fedbench.leaderboard.statistics.beside import Pair
from fedbench.leaderboard.statistics.published import QUANTITIES, Match, match
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import ATTACK, DEFENSE, joined

_NAMES = {
    "auc": "AUC", "tf01": "TF01 (%)", "tf01_by_class": "TF01 by client and class (%)", "hypervolume": "hypervolume",
    "attack_accuracy": "best_round attack accuracy",
    "mia_accuracy": "MIA accuracy in the last round", "auc_max": "max auR", "advantage_max": "max Adv",
    "test_acc": "test accuracy", "delta_acc": "accuracy minus the undefended one's",
    "runtime": "runtime over the undefended one's",
}  # fmt: skip
_AVERAGED = ("auc", "tf01")
_SAYS_NOTHING = (
    ": in what order defenses and attacks come there says nothing of the order here, so no rank correlation is given"
)
_DIGITS = {"tf01": 2, "tf01_by_class": 2, "hypervolume": 4, "runtime": 2}
_MORE = {
    "attack_accuracy": ("ours in the last round", "ours, null of best_round"),
    "auc_max": ("null of ours", "above the null"), "advantage_max": ("null of ours", "above the null"),
}  # fmt: skip


def quantity_name(quantity: str) -> str:
    """What a table calls one of ``QUANTITIES``, with its unit."""
    return _NAMES[quantity]


def beside_papers(entries: Sequence[dict[str, Any]], sections: Sequence[Section]) -> list[Block]:
    """All published numbers that a suite names, and which settings of it were not run; an entry that fits no paper is said, and
    costs nobody the board."""
    matches: list[Match] = []
    wrong: list[Text] = []
    run = {s.setting for s in sections}
    for entry in entries:
        try:
            matches += match(entry, sections)
        except UserError as error:
            wrong.append(Quote(str(error), 400))
    blocks: list[Block] = [Heading(2, Words("Beside the paper"))]
    for m in matches:
        blocks += match_blocks(m) if m.setting in run else []
    absent = [f"{m.source} {m.table}, {m.setting}" for m in matches if m.setting not in run]
    wrong += [(Words("not run: "), place) for place in dict.fromkeys(absent)]
    return [*blocks, *([Bullets(tuple(wrong))] if wrong else [])]


def match_blocks(found: Match) -> list[Block]:
    """What differs, a summary of the reproduction, and per quantity a table of ours, the paper's and the difference."""
    where = joined([f"{found.source} {found.table}", found.setting, f"coalition {found.coalition}"])
    tables = [t for q in QUANTITIES if any(p.ours for p in found.of(q)) for t in _tables(q, found)]
    summary = Bullets(tuple(Words(_agreement(q, found.of(q), ranks=not found.unlike)) for q in QUANTITIES if found.of(q)))
    return [Heading(3, where), *_differs(found), summary, *tables]


def _differs(found: Match) -> list[Block]:
    """What the board sees by itself, then what the suite says."""
    seen: list[Block] = []
    if found.unlike:
        seen.append(Note((Words("Not the paper's setting: "), Quote("; ".join(found.unlike), 400), Words(f"{_SAYS_NOTHING}."))))
    return [*seen, *([Note((Words("What differs: "), Quote(found.differs, 1_000)))] if found.differs else [])]


def _agreement(quantity: str, pairs: Sequence[Pair], ranks: bool) -> str:
    """How many cells were not run; over the others the mean absolute difference and, with ``ranks``, the rank correlation."""
    found = agreement(pairs)
    said = f"{_NAMES[quantity].removesuffix(' (%)')}: {found.done} of {found.asked} published cells run"
    if found.rank_correlation is None or found.mean_difference is None:
        return said
    rank = "n/a" if found.rank_correlation != found.rank_correlation else f"{found.rank_correlation:.2f}"
    unit = " percentage points" if quantity in ("tf01", "tf01_by_class") else ""
    shown = f"rank correlation {rank}, " if ranks else ""
    return f"{said}; {shown}mean absolute difference {found.mean_difference:.3f}{unit}"


def _tables(quantity: str, found: Match) -> list[Table]:
    averages = found.averages(quantity) if quantity in _AVERAGED else []
    return [_table(quantity, found.of(quantity)), *([_average_table(quantity, averages)] if averages else [])]


def _average_table(quantity: str, averages: Sequence[Average]) -> Table:
    """Averages over attacks, the paper's from its cells: the printed ones are not always the means of their rows."""
    digits = _DIGITS.get(quantity, 3)
    columns = (
        DEFENSE, Column(name=Words("average over"), align="left"),
        Column(name=Words(f"ours {_NAMES[quantity]}"), digits=digits),
        Column(name=Words("paper, from its cells"), digits=digits),
        Column(name=Words("difference"), digits=digits, signed=True), Column(name=Words("paper, as printed"), digits=2),
    )  # fmt: skip
    rows = tuple(
        (a.defense, Words(f"{a.run or a.attacks} of {a.attacks} attacks"),
         Words("not run") if a.ours is None else Value(mean=a.ours), Value(mean=a.paper),
         "" if a.ours is None else Value(mean=a.difference), Value(mean=a.printed))
        for a in averages
    )  # fmt: skip
    return Table(title="", columns=columns, rows=rows)


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
    if pair.quantity == "tf01_by_class":
        return pair.attack, Words(", "), pair.group.replace(":", ", ")
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
