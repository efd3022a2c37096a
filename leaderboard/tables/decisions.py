"""Attacks that say "member" by a threshold of their own: the poisoning papers' accuracy, precision and recall."""

from __future__ import annotations

from fedbench.core.contract.board import Column, Content, Table, Text, Value, Words
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import ATTACK, DEFENSE, entry_value, name_of, with_attack

_DIGITS = 3
_COLUMNS = {
    "last accuracy": "last_accuracy", "calibrated accuracy": "calibrated_accuracy", "best_round accuracy": "best_accuracy",
    "null of best": "null_best_accuracy", "last precision": "last_precision", "last recall": "last_recall",
    "calibrated precision": "calibrated_precision", "calibrated recall": "calibrated_recall",
    "best_round precision": "best_precision", "best_round recall": "best_recall",
}  # fmt: skip


def decision_tables(section: Section) -> list[Table]:
    """Attack accuracy of defense x attack, and each by its choice of round; nothing without such attacks."""
    return [_last_round(section), _by_round(section)] if section.deciding else []


def _last_round(section: Section) -> Table:
    attacks = section.deciding
    rows = [
        (name_of(r), *(_entry(section, r, a) for a in attacks), with_attack(_worst(r, attacks))) for r in section.rows
    ]
    names: list[Text] = [*attacks, Words("worst")]
    columns = [Column(name=name, direction="lower", digits=_DIGITS) for name in names]
    caption = Words(
        ' of attacks that say "member" themselves: (TPR + TNR) / 2 in the last round, 0.5 is guessing (worst: the attack that '
        "is right most often)"
    )
    return Table(title="Attack accuracy", caption=caption, columns=(DEFENSE, *columns), rows=tuple(rows))


def _entry(section: Section, row: Row, attack: str) -> Value:
    entry = row.entries[attack]
    return entry_value(section, entry, entry.attack_accuracy(), False)


def _worst(row: Row, attacks: list[str]) -> tuple[str, float] | None:
    found = {a: i.mean for a in attacks if (i := row.entries[a].attack_accuracy()) is not None}
    return max(sorted(found.items()), key=lambda item: item[1], default=None)


def _by_round(section: Section) -> Table:
    rows: list[tuple[Content, ...]] = [
        (name_of(row), attack, *(Value(mean=row.entries[attack].decision_mean(field)) for field in _COLUMNS.values()))
        for row in section.rows for attack in section.deciding if row.entries[attack].decisions
    ]  # fmt: skip
    return Table(
        title="Accuracy, precision and recall by round",
        caption=Words(
            " (calibrated: the round chosen on half of the candidates, judged on the other half; best_round: the labelled "
            "oracle, chosen on the answers as the poisoning papers report it, to be read beside its mean under shuffled "
            "membership; precision n/a where nobody is called a member)"
        ),
        columns=(DEFENSE, ATTACK, *(Column(name=Words(name), digits=_DIGITS) for name in _COLUMNS)), rows=tuple(rows),
    )  # fmt: skip
