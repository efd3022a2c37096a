"""AUC and TF01 by attack, the decisions of attacks, and what analyses and defenses report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product

import numpy as np

from fedbench.core.contract.analysis import Number
from fedbench.core.contract.board import (
    Column,
    Content,
    Note,
    Quote,
    Table,
    Text,
    Value,
    Words,
    value,
)
from fedbench.core.contract.defense import REMARKS, FactValue
from fedbench.core.metrics import Group, Interval
from fedbench.leaderboard.statistics.intervals import bounded, interval_of
from fedbench.leaderboard.statistics.rows import FREE_RIDER, AttackEntry, DefenseRow
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.tables.common import (
    ATTACK,
    DEFENSE,
    NAMED,
    RANK,
    Declared,
    entry_value,
    has_tf01,
    joined,
    name_of,
    named,
    no_attack,
    numbers,
    rank_of,
    row_table,
    sentence,
    table_of,
    tf01_notes,
    words,
)

MOST_VALUES = 4
"""values of a fact"""
MOST_NAMED = 3
"""defenses that report the same fact"""
_AUC = numbers("", direction="lower")


# -- a row a defense, a column an attack -----------------------------------------------------------


def attack_tables(section: BoardSection) -> list[Table]:
    """Return AUC and TF01 by attack with the sign that the other seeds ask for, and the AUC as
    measured where that differs.
    """
    leaks = section.comparison.leaks
    tables = [auc_table(section, section.rows)]
    if has_tf01(section, section.rows):
        title = "TF01 (%) by attack"
        caption = " of all targets and seeds pooled, same sign; brackets: 95 % interval"
        columns = _by_attack(section, partial(_rate, section), replace(_AUC, digits=2))
        notes = tf01_notes(section)
        tables.append(row_table(title, caption, section.rows, columns, footnotes=notes))
    pairs = product(section.rows, section.attacks)
    if any(-1 in leaks.of(row.label, attack).signs.values() for row, attack in pairs):
        caption = " against outside non-members"
        columns = _by_attack(section, partial(_measured, section), _AUC)
        tables.append(row_table("AUC as measured", caption, section.rows, columns))
    return tables


def _rate(section: BoardSection, attack: str, row: DefenseRow) -> Value:
    tf01 = section.comparison.leaks.of(row.label, attack).tf01
    return entry_value(section, row.entries[attack], tf01)


def _measured(section: BoardSection, attack: str, row: DefenseRow) -> Value:
    entry = row.entries[attack]
    return entry_value(section, entry, bounded(entry.interval("auc", "ofl")))


def auc_table(section: BoardSection, rows: Sequence[DefenseRow]) -> Table:
    """Return AUC of these rows by attack, with the sign that the other seeds ask for."""
    comparison = section.comparison

    def signed(attack: str, row: DefenseRow) -> Value:
        leak = comparison.leaks.of(row.label, attack)
        best = comparison.pairwise.leader(attack) == row.label
        number = entry_value(section, row.entries[attack], bounded(leak.auc), best)
        if leak.auc is None or not leak.turned:
            return number
        return replace(number, suffix=Words(" turned"))

    caption = (
        " against outside non-members, with the sign that the other seeds ask for (turned: low "
        "scores mean members; bold: lower than every other defense's with significance)"
    )
    return row_table("AUC by attack", caption, rows, _by_attack(section, signed, _AUC))


def _by_attack(
    section: BoardSection, number: Callable[[str, DefenseRow], Value], how: Column
) -> list[Declared]:
    """Return rank, defense and a column an attack; attacks that do not count are marked."""
    columns: list[Declared] = [(RANK, partial(rank_of, section.comparison)), NAMED]
    unknown = _unknown(section)
    eligible = section.comparison.worst_cases.eligible
    for attack in section.attacks:
        mark = ""
        if attack in section.left_out:
            mark = " (not in every row)"
        elif attack in section.adaptive:
            mark = " (knows the defense)"
        elif attack in unknown:
            mark = " (no undefended score)"
        elif attack not in eligible:
            mark = " (finds nothing)"
        name = sentence(f"{{}}{mark}", attack)
        columns.append((replace(how, name=name), partial(number, attack)))
    return columns


def _unknown(section: BoardSection) -> list[str]:
    """Return the attacks that count without a score on the undefended run, where there is one."""
    base, comparison = section.base, section.comparison
    if base is None:
        return []
    return [a for a in comparison.attacks if comparison.leaks.of(base.label, a).auc is None]


def remarks(section: BoardSection) -> list[Note]:
    """Say which attacks count, and what a single seed cannot show."""
    unknown = _unknown(section)
    comparison = section.comparison
    eligible = comparison.worst_cases.eligible
    weak = [a for a in comparison.attacks if a not in eligible and a not in unknown]
    notes: list[Text] = []
    if section.base is None:
        why = "No undefended run to compare with: every attack counts, whether or not it beats "
        notes.append(Words(f"{why}chance anywhere."))
    elif weak and not comparison.worst_cases.untested:
        why = f"{no_attack(section)} beats chance on the undefended run, so there is nothing to "
        why += "rank by: {}."
        if eligible:
            why = "No better than chance on the undefended run, and so in no mean, worst case or "
            why += "rank: {}."
        notes.append(sentence(why, joined(weak)))
    if unknown:
        why = "Without a score on the undefended run, and so in no mean, worst case or rank: {}."
        notes.append(sentence(why, joined(unknown)))
    if len(section.seeds) == 1:
        why = (
            "One seed: no intervals, and no difference is significant, since one training does not "
            "show the variance of training. Signs and worst cases are chosen on one half of the "
            "candidates and judged on the other."
        )
        notes.append(Words(why))
    return [Note(text) for text in notes]


_GROUPS: dict[Group, str] = {
    "ofl": "outside",
    "ifl": "inside (other clients)",
    "mix": "mix",
    "canary": "canary (mislabelled)",
}


def group_table(section: BoardSection) -> Table:
    """Return the mean AUC as measured over the attacks that count, against each group of
    non-members.
    """
    eligible = section.comparison.worst_cases.eligible

    def mean(group: Group, row: DefenseRow) -> Value:
        return Value(mean=row.mean("auc", group, eligible))

    columns = [NAMED]
    for group, name in _GROUPS.items():
        if any(mean(group, row).mean is not None for row in section.rows):
            columns.append((numbers(name, direction="lower"), partial(mean, group)))
    caption = sentence(
        " (mean over attacks as measured; chance level is 0.5 for outside non-members alone: "
        "inside ones leak through their own "
        f"clients, with or without the target, as `{FREE_RIDER}` shows)"
    )
    empty = Words(f"{no_attack(section).lower()} beats chance on the undefended run")
    title = "AUC by group of non-members"
    return row_table(title, caption, section.rows, columns, empty=empty)


def decision_tables(section: BoardSection) -> list[Table]:
    """Return the accuracy of attacks that decide by a threshold of their own; nothing without such
    attacks.
    """

    def accuracy(attack: str, row: DefenseRow) -> Value:
        entry = row.entries[attack]
        return entry_value(section, entry, bounded(entry.attack_accuracy()))

    if not section.deciding:
        return []
    columns = [NAMED]
    for attack in section.deciding:
        columns.append((Column(name=attack, direction="lower"), partial(accuracy, attack)))
    caption = (
        ' of attacks that say "member" themselves: (TPR + TNR) / 2 in the last round, 0.5 is '
        "guessing"
    )
    return [row_table("Attack accuracy", caption, section.rows, columns)]


# -- findings of analyses --------------------------------------------------------------------------

Seeds = list[dict[str, Number]]
"""name -> number, of every seed with findings"""


def analyses_with_findings(section: BoardSection) -> list[str]:
    """Return labels of the analyses that found something in some cell, by name."""
    return sorted(set(chain.from_iterable(r.record.analyses for r in section.records)))


def findings_table(section: BoardSection, label: str) -> list[Table]:
    """Return means over seeds of what the analysis found, with 95 % intervals where it gave errors:
    a row a defense or, where its findings differ by attack, a row a defense and attack. Nothing
    where it found nothing.
    """
    lines = _finding_lines(section, label)
    if not lines:
        return []
    columns = [DEFENSE, ATTACK]
    rows: list[list[Content]] = [[name_of(row), attack] for row, attack, _ in lines]
    if not any(attack for _, attack, _ in lines):
        columns, rows = [DEFENSE], [[name_of(row)] for row, *_ in lines]
    units: dict[str, str] = {}
    for numbers_of_seed in chain.from_iterable(seeds for *_, seeds in lines):
        for name, number in numbers_of_seed.items():
            units.setdefault(name, number.unit)
    for name, unit in units.items():
        means = [_over_seeds(seeds, name) for *_, seeds in lines]
        columns.append(Column(name=name, unit=unit, digits=_digits(means)))
        for cells, mean in zip(rows, means, strict=True):
            cells.append(value(mean))
    caption = sentence(" {}, means over seeds", label)
    return [table_of("Findings of the analysis", caption, columns, map(tuple, rows))]


def _finding_lines(section: BoardSection, label: str) -> list[tuple[DefenseRow, str, Seeds]]:
    """Return (row, attack, findings); the attack is empty where all have the same findings."""
    lines: list[tuple[DefenseRow, str, Seeds]] = []
    for row in section.rows:
        by_attack = {a: _findings(entry, label) for a, entry in row.entries.items()}
        by_attack = {a: seeds for a, seeds in by_attack.items() if any(seeds)}
        first = next(iter(by_attack.values()), [])
        if first and all(seeds == first for seeds in by_attack.values()):
            lines.append((row, "", first))
        else:
            lines += [(row, attack, seeds) for attack, seeds in by_attack.items()]
    return lines


def _findings(entry: AttackEntry, label: str) -> Seeds:
    findings = [entry.findings(label, seed) for seed in entry.targets]
    return [dict(f.numbers) for f in findings if f is not None]


def _over_seeds(seeds: Seeds, name: str) -> Interval | None:
    present = [n[name] for n in seeds if name in n and n[name].value is not None]
    values = [number.value for number in present if number.value is not None]
    return interval_of(values, [number.error for number in present])


def _digits(means: Sequence[Interval | None]) -> int:
    """Return three of fractions, fewer of large numbers."""
    largest = max((abs(mean.mean) for mean in means if mean is not None), default=0)
    if largest < 10:
        return 3
    return 1 if largest < 1000 else 0


# -- facts of defenses -----------------------------------------------------------------------------


def fact_table(section: BoardSection) -> list[Table]:
    """Return a row a fact, and one row for all defenses that report the same: mean over seeds of a
    number, with its range where seeds differ; nothing where no defense reports any.
    """
    facts: dict[str, dict[Text, list[str]]] = {}
    for row in section.rows:
        for name, values in row.facts.items():
            if name != REMARKS:
                facts.setdefault(name, {}).setdefault(_fact(values), []).append(row.label)
    if not facts:
        return []
    rows: list[tuple[Content, ...]] = []
    for name, labels_of in facts.items():
        rows += [(named(labels, MOST_NAMED), name, text) for text, labels in labels_of.items()]
    columns = DEFENSE, words("fact"), words("value")
    return [table_of("Facts that the defenses report", ", means over seeds", columns, rows)]


def _fact(values: Sequence[FactValue]) -> Text:
    """Return the mean over seeds of numbers; of other values the first distinct ones."""
    numeric = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numeric) < len(values):
        texts = dict.fromkeys(", ".join(map(str, v)) if isinstance(v, list) else v for v in values)
        return joined([Quote(str(text), 100) for text in list(texts)[:MOST_VALUES]], " / ")
    low, high = min(numeric), max(numeric)
    text = _short(float(np.mean(numeric)))
    if low < high:
        text += f" ({_short(low)} to {_short(high)})"
    return Words(text)


def _short(number: float) -> str:
    """Return three significant digits; large and whole numbers in full."""
    if abs(number) < 1000 and number % 1:
        return f"{number:.3g}"
    return f"{number:,.0f}"
