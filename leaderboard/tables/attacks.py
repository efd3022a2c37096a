"""What each attack finds in every defense, by several metrics, and what the analyses and defenses
report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from fedbench.core.contract.analysis import Number
from fedbench.core.contract.board import Column, Content, Note, Table, Text, Value, Words, value
from fedbench.core.contract.defense import REMARKS, FactValue
from fedbench.core.metrics import METRICS, Group, Interval, Metric
from fedbench.leaderboard.statistics.intervals import bounded, interval_of
from fedbench.leaderboard.statistics.rows import FREE_RIDER, Entry, Row
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import (
    ATTACK,
    DEFENSE,
    RANK,
    entry_value,
    has_tf01,
    joined,
    name_of,
    numbers,
    rank_of,
    sentence,
    table_of,
    tf01_notes,
    with_attack,
    words,
)
from fedbench.leaderboard.tables.ranking import named, short

RAW = tuple(m for m in METRICS if m.board and m.name != "tf01")
"""metrics with a table of one value a target; TF01 is over targets and seeds: a single target
rarely has the non-members for it
"""
MOST_VALUES = 4  # of a list in a fact
MOST_NAMED = 3  # defenses that report the same fact
MOST_MEANS = 16  # elements of a list of numbers, such as the draws of a bandit's arms


# -- a row a defense, a column an attack -----------------------------------------------------------


def attack_tables(section: Section) -> list[Table]:
    """AUC and TF01 by attack with the sign that the other seeds ask for; and as measured, where
    that differs.
    """
    comparison = section.comparison

    def rate(row: Row, attack: str) -> Value:
        return entry_value(
            section, row.entries[attack], comparison.cells.of(row.label, attack).tf01
        )

    lower = numbers("", direction="lower")
    tables = [auc_table(section, section.rows)]
    if has_tf01(section):
        caption = " of all targets and seeds pooled, same sign; brackets: 95 % interval"
        tables.append(
            _by_attack(
                section,
                "TF01 (%) by attack",
                caption,
                rate,
                replace(lower, digits=2),
                footnotes=tf01_notes(section),
            )
        )
    turned = any(
        s < 0
        for r in section.rows
        for a in section.attacks
        for s in comparison.cells.of(r.label, a).signs.values()
    )
    for metric in (m for m in RAW if m.name != "auc" or turned):

        def measured(row: Row, attack: str, m: Metric = metric) -> Value:
            return entry_value(
                section,
                row.entries[attack],
                bounded(row.entries[attack].interval(m.name, "ofl"), m.low, m.high),
            )

        title = f"{metric.title} as measured" + (f" ({metric.unit})" if metric.unit else "")
        how = numbers("", digits=metric.digits, direction=metric.direction)
        tables.append(_by_attack(section, title, " against outside non-members", measured, how))
    return tables


def auc_table(section: Section, rows: Sequence[Row]) -> Table:
    """AUC of these rows by attack, with the sign that the other seeds ask for."""
    comparison = section.comparison

    def signed(row: Row, attack: str) -> Value:
        auc = comparison.cells.of(row.label, attack).auc
        turned = auc is not None and comparison.cells.of(row.label, attack).turned
        suffix = Words(" turned") if turned else ()
        best = comparison.pairwise.leader(attack) == row.label
        return entry_value(section, row.entries[attack], bounded(auc), best, suffix)

    caption = (
        " against outside non-members, with the sign that the other seeds ask for (turned: low "
        "scores mean members; bold: lower than every other defense's with significance)"
    )
    lower = numbers("", direction="lower")
    return _by_attack(section, "AUC by attack", caption, signed, lower, rows=rows)


def _by_attack(
    section: Section,
    title: str,
    caption: str,
    cell: Callable[[Row, str], Value],
    how: Column,
    footnotes: tuple[Text, ...] = (),
    rows: Sequence[Row] = (),
) -> Table:
    """One column an attack, as ``how`` says; those that find nothing in the undefended federation,
    or have no score there, are marked.
    """
    marks = {
        a: " (finds nothing)"
        for a in section.comparison.attacks
        if a not in section.comparison.worst_cases.eligible
    }
    marks |= {a: " (no undefended score)" for a in _unknown(section)} | {
        a: " (not in every row)" for a in section.left_out
    }
    columns = [RANK, DEFENSE]
    for attack in section.attacks:
        mark = marks.get(attack, "")
        columns.append(replace(how, name=sentence(f"{{}}{mark}", attack)))
    cells = (
        (rank_of(section.comparison, row), name_of(row), *(cell(row, a) for a in section.attacks))
        for row in rows or section.rows
    )
    return table_of(title, caption, columns, cells, footnotes=footnotes)


def _unknown(section: Section) -> list[str]:
    """The attacks that count without a score on the undefended run, where there is one."""
    base = section.base
    return [
        a
        for a in section.comparison.attacks
        if base is not None and section.comparison.cells.of(base.label, a).auc is None
    ]


def remarks(section: Section) -> list[Note]:
    """Which attacks count, and what a single seed cannot show."""
    eligible, unknown, notes = (
        section.comparison.worst_cases.eligible,
        _unknown(section),
        list[Text](),
    )
    weak = [a for a in section.comparison.attacks if a not in eligible and a not in unknown]
    if section.base is None:
        notes.append(
            Words(
                "No undefended run to compare with: every attack counts, whether or not it beats "
                "chance anywhere."
            )
        )
    elif weak and eligible:
        why = (
            "No better than chance on the undefended run, and so in no mean, worst case or "
            "rank: {}."
        )
        notes.append(sentence(why, joined(weak)))
    elif weak:
        why = (
            "No attack beats chance on the undefended run, so there is nothing to rank "
            "defenses by: {}."
        )
        notes.append(sentence(why, joined(weak)))
    if unknown:
        why = "Without a score on the undefended run, and so in no mean, worst case or rank: {}."
        notes.append(sentence(why, joined(unknown)))
    if len(section.seeds) == 1:
        notes.append(
            Words(
                "One seed: no intervals, and no difference is significant, since one training does "
                "not show the variance of "
                "training. Signs and worst cases are chosen on one half of the candidates and "
                "judged on the other."
            )
        )
    return list(map(Note, notes))


_GROUPS: dict[Group, str] = {
    "ofl": "outside",
    "ifl": "inside (other clients)",
    "mix": "mix",
    "canary": "canary (mislabelled)",
}


def group_table(section: Section) -> Table:
    """Mean AUC as measured over the attacks that count, against each group of non-members, and
    above the free-riders'.
    """

    def mean(row: Row, group: Group) -> float | None:
        return row.mean("auc", group, section.comparison.worst_cases.eligible)

    def above(row: Row) -> Value:
        own, theirs = (
            mean(row, "ifl"),
            mean(section.free_rider, "ifl") if section.free_rider else None,
        )
        return Value(mean=None if own is None or theirs is None else own - theirs)

    groups = [g for g in _GROUPS if any(mean(row, g) is not None for row in section.rows)]
    floor = section.free_rider is not None and "ifl" in groups
    columns = [DEFENSE, *(numbers(_GROUPS[group], direction="lower") for group in groups)]
    columns += (
        [numbers("inside, above free-riders", direction="lower", signed=True)] if floor else []
    )
    rows = (
        (name_of(r), *(Value(mean=mean(r, g)) for g in groups), *([above(r)] if floor else []))
        for r in section.rows
    )
    caption = sentence(
        " (mean over attacks as measured; chance level is 0.5 for outside non-members alone: "
        "inside ones leak through their own "
        f"clients, with or without the target, as `{FREE_RIDER}` shows)"
    )
    empty = Words("no attack beats chance on the undefended run")
    return table_of("AUC by group of non-members", caption, columns, rows, empty=empty)


# -- by the choice of the round --------------------------------------------------------------------


def decision_tables(section: Section) -> list[Table]:
    """Accuracy of attacks that decide by a threshold of their own; nothing without such attacks."""
    attacks = section.deciding
    if not attacks:
        return []

    rows: list[tuple[Content, ...]] = []
    for row in section.rows:
        found = {a: bounded(row.entries[a].attack_accuracy()) for a in attacks}
        worst = max(
            ((a, i.mean) for a, i in sorted(found.items()) if i),
            key=lambda item: item[1],
            default=None,
        )
        rows.append(
            (
                name_of(row),
                *(entry_value(section, row.entries[a], i) for a, i in found.items()),
                with_attack(worst),
            )
        )
    columns = (
        DEFENSE,
        *(Column(name=a, direction="lower") for a in attacks),
        numbers("worst", direction="lower"),
    )
    caption = (
        ' of attacks that say "member" themselves: (TPR + TNR) / 2 in the last round, 0.5 is '
        "guessing (worst: the attack with "
        "the highest accuracy)"
    )
    return [table_of("Attack accuracy", caption, columns, rows)]


# -- findings of analyses --------------------------------------------------------------------------


def analyses_with_findings(section: Section) -> list[str]:
    """Labels of the analyses that found something in some cell, by name."""
    return sorted({label for loaded in section.records for label in loaded.record.analyses})


def findings_table(section: Section, label: str) -> list[Table]:
    """Means over seeds of what the analysis found, with 95 % intervals where it gave errors: a row
    a defense or, where its findings differ by attack, a row a defense and attack. Nothing where it
    found nothing.
    """
    units: dict[str, str] = {}
    lines: list[tuple[Row, str | None, dict[str, Interval | None]]] = []
    for row in section.rows:
        by_attack = {a: found for a, e in row.entries.items() if (found := _findings(e, label))}
        for one in (n for found in by_attack.values() for n in found):
            units |= {name: n.unit for name, n in one.items() if name not in units}
        by_attack = {a: found for a, found in by_attack.items() if any(found)}
        same = [found for found in by_attack.values() if found == next(iter(by_attack.values()))]
        if by_attack and len(same) == len(by_attack):
            lines.append((row, None, _over_seeds(same[0])))
        else:
            lines += [(row, a, _over_seeds(found)) for a, found in by_attack.items()]
    if not lines:
        return []
    several = any(attack is not None for _, attack, _ in lines)
    columns = [
        Column(name=n, unit=unit, digits=_digits(found.get(n) for *_, found in lines))
        for n, unit in units.items()
    ]
    rows = (
        (name_of(row), *([attack or ""] if several else []), *(value(found.get(n)) for n in units))
        for row, attack, found in lines
    )
    caption = sentence(" {}, means over seeds", label)
    return [
        table_of(
            "Findings of the analysis",
            caption,
            (DEFENSE, *([ATTACK] if several else []), *columns),
            rows,
        )
    ]


def _findings(entry: Entry, label: str) -> list[dict[str, Number]]:
    """Of every seed that has any."""
    return [
        dict(f.numbers) for seed in entry.targets if (f := entry.findings(label, seed)) is not None
    ]


def _over_seeds(found: Sequence[dict[str, Number]]) -> dict[str, Interval | None]:
    means = {}
    for name in dict.fromkeys(name for one in found for name in one):
        known = [
            (n[name].value, n[name].error) for n in found if name in n and n[name].value is not None
        ]
        means[name] = interval_of([v for v, _ in known if v is not None], [e for _, e in known])
    return means


def _digits(found: Iterable[Interval | None]) -> int:
    """Three after the point of fractions, fewer of large numbers."""
    largest = max((abs(i.mean) for i in found if i is not None), default=0)
    return 3 if largest < 10 else 1 if largest < 1000 else 0


# -- facts of defenses -----------------------------------------------------------------------------


def fact_table(section: Section, shown: Sequence[str] = ()) -> list[Table]:
    """A row a fact, and one row for all defenses that report the same: mean over seeds of a number,
    with its range where seeds differ; nothing where no defense reports any. ``shown``: ends of the
    names of facts that other tables have.
    """
    found: dict[str, dict[Text, list[str]]] = {}
    for row in section.rows:
        for name, values in row.facts.items():
            if name != REMARKS and not (shown and name.endswith(tuple(shown))):
                found.setdefault(name, {}).setdefault(_fact(values), []).append(row.label)
    if not found:
        return []
    columns = (DEFENSE, words("fact"), words("value"))
    rows = (
        (named(labels, MOST_NAMED), name, text)
        for name, values in found.items()
        for text, labels in values.items()
    )
    return [table_of("Facts that the defenses report", ", means over seeds", columns, rows)]


def _fact(values: Sequence[FactValue]) -> Text:
    """One value a seed."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == len(values):
        low, high, mean = min(numbers), max(numbers), float(np.mean(numbers))
        return Words(short(mean) + (f" ({short(low)} to {short(high)})" if low < high else ""))
    lists = [
        v
        for v in values
        if isinstance(v, list) and v and all(isinstance(x, int | float) for x in v)
    ]
    if (
        len(lists) == len(values)
        and len({len(v) for v in lists}) == 1
        and len(lists[0]) <= MOST_MEANS
    ):
        return Words("; ".join(map(short, np.mean(np.array(lists, dtype=np.float64), axis=0))))
    return joined(list(dict.fromkeys(map(_text, values)))[:MOST_VALUES], " / ")


def _text(fact: FactValue) -> Text:
    """Few values of a list in full, of many numbers how many and their range, of many words the
    first.
    """
    if isinstance(fact, bool):
        return Words("yes" if fact else "no")
    if not isinstance(fact, list):
        return str(fact)
    numbers = [v for v in fact if not isinstance(v, str)]
    if len(fact) > MOST_VALUES and len(numbers) == len(fact):
        low, high = min(numbers), max(numbers)
        return Words(
            f"{len(fact)} values, "
            + (f"{low:.4g} to {high:.4g}" if low < high else f"all {low:.4g}")
        )
    shown = [str(v) if isinstance(v, str) else Words(f"{v:.4g}") for v in fact[:MOST_VALUES]]
    more = [Words(f"… ({len(fact)})")] if len(fact) > MOST_VALUES else []
    return joined([*shown, *more]) or Words("none")
