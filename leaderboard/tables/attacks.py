"""What the attacks find in every defense: one table for each of the registry's metrics, and what to know of them."""

from __future__ import annotations

from fedbench.core.contract.board import Column, Content, Note, Table, Text, Value, Words, value
from fedbench.core.metrics import Group
from fedbench.core.metrics.registry import Metric
from fedbench.leaderboard.statistics.compare import Comparison
from fedbench.leaderboard.statistics.metrics import RANKING, best, shown_metrics
from fedbench.leaderboard.statistics.row import Row
from fedbench.leaderboard.statistics.section import Section
from fedbench.leaderboard.tables.common import DEFENSE, RANK, entry_value, joined, ranked, with_attack

_GROUPS: dict[Group, str] = {"ofl": "ofl (outside)", "ifl": "ifl (other clients)", "canary": "canary (mislabelled)"}
_COSTS = (
    Column(name=Words("delta-accuracy"), unit="pp", direction="higher", digits=2, scale=100, signed=True),
    Column(name=Words("accuracy"), unit="%", direction="higher", digits=1, scale=100),
    Column(name=Words("runtime"), direction="lower", digits=2),
)


def metric_tables(section: Section) -> list[Table]:
    """One a metric of a board: a row a defense, a column an attack, mean and worst case over attacks.

    The table of the metric that ranks the rows also says what each defense costs.
    """
    return [_metric_table(section, m) for m in shown_metrics()]


def _metric_table(section: Section, metric: Metric) -> Table:
    ranking = metric.name == RANKING
    lowest = {a: _best(section, a, metric) for a in section.attacks}
    rows = []
    for row, front in ranked(section):
        entries = [_entry(section, row, a, metric, lowest[a]) for a in section.attacks]
        c = section.compared[row.label]
        mean = value(c.mean_auc) if ranking else Value(mean=row.mean(metric.name))
        costs = _costs(row, c) if ranking else ()
        rows.append((*front, *entries, mean, with_attack(row.worst(metric.name)), *costs))
    numbers = [Column(name=n, direction=metric.direction, digits=metric.digits) for n in _names(section)]
    return Table(
        title=metric.title + (f" ({metric.unit})" if metric.unit else ""),
        columns=(RANK, DEFENSE, *numbers, *(_COSTS if ranking else ())), rows=tuple(rows),
    )  # fmt: skip


def _names(section: Section) -> list[Text]:
    return [*section.attacks, Words("mean"), Words("worst case")]


def _best(section: Section, attack: str, metric: Metric) -> float | None:
    """Best mean of a column over complete entries, as printed: equal print, equal rank."""
    entries = [r.entries[attack] for r in section.rows if r.entries[attack].complete]
    return best([round(i.mean, metric.digits) for e in entries if (i := e.interval(metric.name)) is not None], metric.name)


def _entry(section: Section, row: Row, attack: str, metric: Metric, lowest: float | None) -> Value:
    entry = row.entries[attack]
    found = entry.interval(metric.name)
    is_best = found is not None and entry.complete and round(found.mean, metric.digits) == lowest
    return entry_value(section, entry, found, is_best)


def _costs(row: Row, compared: Comparison) -> tuple[Content, ...]:
    """Delta-accuracy, accuracy and runtime."""
    if row.undefended:
        return Words("0"), value(row.accuracy), Words("1")
    runtime = None if compared.runtime is None else Value(mean=compared.runtime, suffix=Words("x"))
    return value(compared.delta_accuracy), value(row.accuracy), runtime


def remarks(section: Section) -> list[Note]:
    """What the numbers alone do not say."""
    notes = []
    if all(len(r.entries[a].units("mix")) < 5 for r in section.rows for a in section.attacks):
        notes.append(
            Note(Words("Fewer than 5 seeds x targets: intervals hold the error from the candidates, not from training."))
        )
    below: list[Text] = [
        (r.label, Words(" / "), a)
        for r in section.rows for a, e in r.entries.items() if (i := e.interval("auc")) and i.high < 0.5
    ]  # fmt: skip
    if below:
        said = "AUC below 0.5 by more than its interval (inverted, the scores would leak): "
        notes.append(Note((Words(said), *joined(below), Words("."))))
    return notes


def group_table(section: Section) -> Table:
    """AUC against each group of non-members: mean over attacks and the strongest attack."""
    groups = [g for g in _GROUPS if any(r.means("auc", g) for r in section.rows)]
    columns = [Column(name=Words(f"{_GROUPS[g]} {w}"), direction="lower") for g in groups for w in ("mean", "worst")]
    rows = [
        (front[1], *(c for g in groups for c in (Value(mean=row.mean("auc", g)), with_attack(row.worst("auc", g)))))
        for row, front in ranked(section)
    ]
    return Table(
        title="AUC by group of non-members", caption=Words(" (worst: the strongest attack on that group)"),
        columns=(DEFENSE, *columns), rows=tuple(rows),
    )  # fmt: skip
