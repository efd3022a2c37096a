"""What the attacks find in every defense, and what to know of these numbers."""

from __future__ import annotations

from fedbench.core.contract.board import Column, Note, Table, Text, Value, Words
from fedbench.core.metrics import Group
from fedbench.core.metrics.registry import Direction, Metric
from fedbench.leaderboard.statistics.metrics import raw_metrics
from fedbench.leaderboard.statistics.rows import FREE_RIDER
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import DEFENSE, RANK, entry_value, joined, ranked
from fedbench.leaderboard.tables.tf01 import has_tf01, tf01_notes

_TURNED = Words(" turned")


def attack_tables(section: Section) -> list[Table]:
    """AUC and TF01 by attack with the sign that the other seeds ask for; and as measured, where that differs."""
    return [_signed_table(section), *_tf01_table(section), *(t for m in raw_metrics() for t in _raw_table(section, m))]


def _columns(section: Section, digits: int, direction: Direction = "lower") -> list[Column]:
    """One an attack; those that find nothing in the undefended federation, or were not asked, say so."""
    eligible, unknown = section.comparison.eligible, _unknown(section)
    names: list[Text] = [
        a if a in eligible else (a, Words(" (no undefended score)" if a in unknown else " (finds nothing)"))
        for a in section.attacks
    ]
    return [Column(name=n, direction=direction, digits=digits) for n in names]


def _signed_table(section: Section) -> Table:
    contest, rows = section.comparison, []
    leaders = {a: contest.leader(a) for a in section.attacks}
    for row, front in ranked(section):
        cells = []
        for attack in section.attacks:
            found, entry = contest.signed(row.label, attack), row.entries[attack]
            suffix = _TURNED if found is not None and contest.turned(row.label, attack) else ()
            cells.append(entry_value(section, entry, found, leaders[attack] == row.label, suffix))
        rows.append((*front, *cells))
    caption = Words(
        " against outside non-members, with the sign that the other seeds ask for (turned: low scores mean members; bold: "
        "lower than every other defense's with significance)"
    )
    return Table(title="AUC by attack", caption=caption, columns=(RANK, DEFENSE, *_columns(section, 3)), rows=tuple(rows))


def _tf01_table(section: Section) -> list[Table]:
    """Nothing where no row has enough non-members: the ranking says so."""
    if not has_tf01(section):
        return []
    rows = [
        (*front, *(entry_value(section, row.entries[a], section.comparison.tf01(row.label, a), False) for a in section.attacks))
        for row, front in ranked(section)
    ]
    caption = Words(" of all targets and seeds pooled, same sign; brackets: 95 % interval")
    columns = (RANK, DEFENSE, *_columns(section, 2))
    notes = tf01_notes(section)
    return [Table(title="TF01 (%) by attack", caption=caption, columns=columns, rows=tuple(rows), footnotes=notes)]


def _raw_table(section: Section, metric: Metric) -> list[Table]:
    """As measured, against outside non-members; of the AUC only where some sign was turned."""
    turned = any(s < 0 for r in section.rows for a in section.attacks for s in section.comparison.sign(r.label, a).values())
    if metric.name == "auc" and not turned:
        return []
    rows = []
    for row, front in ranked(section):
        entries = [row.entries[a] for a in section.attacks]
        rows.append((*front, *(entry_value(section, e, e.interval(metric.name, "ofl"), False) for e in entries)))
    title = f"{metric.title} as measured" + (f" ({metric.unit})" if metric.unit else "")
    columns = (RANK, DEFENSE, *_columns(section, metric.digits, metric.direction))
    return [Table(title=title, caption=Words(" against outside non-members"), columns=columns, rows=tuple(rows))]


def remarks(section: Section) -> list[Note]:
    """What the numbers alone do not say."""
    return [*_chance(section), *_seeds(section)]


def _chance(section: Section) -> list[Note]:
    contest, unknown = section.comparison, _unknown(section)
    weak = [a for a in section.attacks if a not in contest.eligible and a not in unknown]
    if contest.base is None:
        return [Note(Words("No undefended run to compare with: every attack counts, whether or not it beats chance anywhere."))]
    said = "Without a score on the undefended run, and so in no mean, worst case or rank: "
    notes = [Note((Words(said), *joined(unknown), Words(".")))] if unknown else []
    if not weak:
        return notes
    if not contest.eligible:
        said = "No attack beats chance on the undefended run, so there is nothing to rank defenses by: "
    else:
        said = "No better than chance on the undefended run, and so in no mean, worst case or rank: "
    return [Note((Words(said), *joined(weak), Words("."))), *notes]


def _unknown(section: Section) -> list[str]:
    """The attacks without a score on the undefended run, where there is one."""
    base = section.comparison.base
    return [a for a in section.attacks if base is not None and section.comparison.signed(base.label, a) is None]


def _seeds(section: Section) -> list[Note]:
    if len(section.seeds) > 1:
        return []
    return [Note(Words(
        "One seed: intervals hold the error from the candidates, not from training; signs and worst cases are chosen on one "
        "half of the candidates and judged on the other; nothing is told apart, since one training says nothing of the next."
    ))]  # fmt: skip


_GROUPS: tuple[tuple[Group, str], ...] = (
    ("ofl", "outside"), ("ifl", "inside (other clients)"), ("mix", "mix"), ("canary", "canary (mislabelled)"),
)  # fmt: skip


def group_table(section: Section) -> Table:
    """Mean AUC as measured over the attacks that count, against each group of non-members, and above the free-riders'."""
    counted = section.comparison.eligible
    groups = [(g, name) for g, name in _GROUPS if any(r.mean("auc", g, counted) is not None for r in section.rows)]
    floor = section.free_rider if any(g == "ifl" for g, _ in groups) else None
    columns = [Column(name=Words(name), direction="lower") for _, name in groups]
    if floor is not None:
        columns.append(Column(name=Words("inside, above free-riders"), direction="lower", signed=True))
    rows = []
    for row, front in ranked(section):
        cells = [Value(mean=row.mean("auc", g, counted)) for g, _ in groups]
        if floor is not None:
            own, theirs = row.mean("auc", "ifl", counted), floor.mean("auc", "ifl", counted)
            cells.append(Value(mean=None if own is None or theirs is None else own - theirs))
        rows.append((front[1], *cells))
    caption = (
        Words(" (mean over attacks as measured; one half is the floor of outside non-members alone: inside ones leak through "
              "their own clients, with or without the target, as "), Words(FREE_RIDER, "code"), Words(" shows)"),
    )  # fmt: skip
    return Table(
        title="AUC by group of non-members", caption=caption, columns=(DEFENSE, *columns), rows=tuple(rows),
        empty=Words("no attack beats chance on the undefended run"),
    )  # fmt: skip


