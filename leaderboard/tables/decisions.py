"""Attacks that say "member" by a threshold of their own: the poisoning papers' accuracy, precision and recall."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedbench.core.metrics import Interval, combined_interval
from fedbench.core.store.record import DecisionScores, Score
from fedbench.leaderboard import text
from fedbench.leaderboard.collect import Cell, Row, Table

Which = Callable[[DecisionScores], float | None]
_COLUMNS: tuple[tuple[str, Which], ...] = (
    ("last accuracy", lambda d: d.last_accuracy),
    ("calibrated accuracy", lambda d: d.calibrated_accuracy),
    ("best_round accuracy", lambda d: d.best_accuracy),
    ("null of best", lambda d: d.null_best_accuracy),
    ("last precision", lambda d: d.last_precision),
    ("last recall", lambda d: d.last_recall),
    ("calibrated precision", lambda d: d.calibrated_precision),
    ("calibrated recall", lambda d: d.calibrated_recall),
    ("best_round precision", lambda d: d.best_precision),
    ("best_round recall", lambda d: d.best_recall),
)


def decisions_of(cell: Cell) -> list[tuple[DecisionScores, Score]]:
    """What the attack said of each seed x target, with the numbers of candidates."""
    return [
        (t.decision, t.groups["mix"])
        for seed, targets in cell.targets.items()
        if (loaded := cell.ok(seed)) is not None
        for t in loaded.record.targets
        if t.target in targets and t.decision is not None and "mix" in t.groups
    ]


def accuracy_se(accuracy: float, recall: float, members: int, nonmembers: int) -> float:
    """Standard error of (TPR + TNR) / 2 from so many members and non-members, each judged once.

    One right and one wrong answer are added to each class: the plain binomial error is 0 where all answers are right or
    wrong (Agresti & Caffo, The American Statistician 2000, for the difference of two proportions, here TPR - FPR).
    """
    variance = 0.0
    for rate, n in ((recall, members), (2 * accuracy - recall, nonmembers)):
        p = (min(max(rate, 0.0), 1.0) * n + 1) / (n + 2)
        variance += p * (1 - p) / (n + 2)
    return float(np.sqrt(variance) / 2)


def attack_accuracy(cell: Cell, best: bool = False) -> Interval | None:
    """Attack accuracy in the last round (or the oracle's best) with its 95 % interval over seeds x targets; fractions."""
    found = [(d.best_accuracy if best else d.last_accuracy, d.best_recall if best else d.last_recall, s)
             for d, s in decisions_of(cell)]  # fmt: skip
    if not found:
        return None
    ses = [accuracy_se(accuracy, recall, s.n_members, s.n_nonmembers) for accuracy, recall, s in found]
    return combined_interval([accuracy for accuracy, _, _ in found], ses)


def null_of_best(cell: Cell) -> float | None:
    """What the oracle finds without any membership, mean over seeds x targets."""
    return _mean([d.null_best_accuracy for d, _ in decisions_of(cell)])


def deciding(table: Table) -> list[str]:
    """The table's attacks that have a threshold of their own."""
    return [a for a in table.attacks if any(decisions_of(r.cells[a]) for r in table.rows)]


def decision_tables(table: Table) -> list[str]:
    """Markdown: attack accuracy of defense x attack, and each by its choice of round; nothing without such attacks."""
    attacks = deciding(table)
    if not attacks:
        return []
    return [
        '**Attack accuracy** of attacks that say "member" themselves: (TPR + TNR) / 2 in the last round, 0.5 is guessing '
        "(**bold**: the lowest of a column; worst: the attack that is right most often)",
        _short(table, attacks),
        "**Accuracy, precision and recall by round** (calibrated: the round chosen on half of the candidates, judged on the "
        "other half; best_round: the labelled oracle, chosen on the answers as the poisoning papers report it, to be read "
        "beside its mean under shuffled membership; precision n/a where nobody is called a member)",
        _long(table, attacks),
    ]


def _short(table: Table, attacks: list[str]) -> str:
    lowest = {a: _lowest(table, a) for a in attacks}
    rows = [[_name(r), *(_cell(table, r.cells[a], lowest[a]) for a in attacks), _worst(r, attacks)] for r in table.rows]
    return text.table(["defense", *map(text.escape, attacks), "worst"], rows)


def _lowest(table: Table, attack: str) -> float | None:
    """The smallest of the complete cells, as printed."""
    found = [attack_accuracy(r.cells[attack]) for r in table.rows if r.cells[attack].complete]
    return min((round(i.mean, 3) for i in found if i is not None), default=None)


def _cell(table: Table, cell: Cell, lowest: float | None) -> str:
    found = attack_accuracy(cell)
    bad = [f"{what} ({n}/{len(table.targets)})" for what, n in sorted(cell.outcomes.items()) if what != "ok" and n]
    if found is None:
        return ", ".join(bad) or text.NOT_APPLICABLE
    shown = text.interval(found, 3)
    if cell.complete and round(found.mean, 3) == lowest:
        shown = f"**{shown}**"
    if found.n != len(table.units):
        shown += f" (n={found.n})"
    return ", ".join([shown, *bad])


def _worst(row: Row, attacks: list[str]) -> str:
    found = {a: i.mean for a in attacks if (i := attack_accuracy(row.cells[a])) is not None}
    if not found:
        return text.NOT_APPLICABLE
    attack = max(sorted(found), key=found.__getitem__)
    return f"{found[attack]:.3f} {text.escape(attack)}"


def _long(table: Table, attacks: list[str]) -> str:
    rows = [
        [_name(row), text.escape(attack), *(text.number(_mean([which(d) for d, _ in found]), 3) for _, which in _COLUMNS)]
        for row in table.rows for attack in attacks if (found := decisions_of(row.cells[attack]))
    ]  # fmt: skip
    return text.table(["defense", "attack", *(name for name, _ in _COLUMNS)], rows, left=2)


def _name(row: Row) -> str:
    return text.escape(row.label) + (" (undefended)" if row.undefended else "")


def _mean(values: list[float | None] | list[float]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None
