"""Privacy against utility: the paired difference, accuracy under attack, the Pareto front."""

from __future__ import annotations

from fedbench.core.contract.board import Column, Content, Table, Text, Value, Words, value
from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.adversaries import accuracy_under_attack
from fedbench.leaderboard.statistics.pareto import TradeOff, trade_off
from fedbench.leaderboard.statistics.section import Section
from fedbench.leaderboard.tables.common import DEFENSE, joined, name_of

_LOSS = {"tf01": "worst TF01 / 100", "auc": "2 x worst AUC - 1"}


def adversary_table(section: Section) -> list[Table]:
    """Test accuracy of the runs that were trained with an active adversary inside; nothing where there are none."""
    shown = accuracy_under_attack(section)
    if not shown:
        return []
    rows = [(name_of(row), *(Value(mean=found.get(row.label)) for found in shown.values())) for row in section.rows]
    return [Table(
        title="Accuracy (%) with the active adversary in the federation", caption=Words(" (the table above: without)"),
        columns=(DEFENSE, *(Column(name=a, direction="higher", digits=1, scale=100) for a in shown)), rows=tuple(rows),
        footnotes=_standing_under(section),
    )]  # fmt: skip


def _standing_under(section: Section) -> tuple[Text, ...]:
    """Which rows have no run without an adversary, so that the metric's table shows one with it."""
    under: list[Text] = [
        (r.label, Words(" ("), r.stands_under, Words(")")) for r in section.rows if r.stands_under is not None
    ]
    if not under:
        return ()
    said = (
        "No passive run has scores for the following rows: their accuracy, delta-accuracy and runtime above are those of the "
        "run under the attack in brackets, and compared with the undefended run under the same attack: "
    )
    return ((Words(said), *joined(under), Words(".")),)


def paired_table(section: Section) -> list[Table]:
    """Mean AUC minus the undefended one; nothing where there is nothing to compare."""
    if section.base is None or len(section.rows) < 2:
        return []
    rows = []
    for row in section.rows:
        if not row.undefended:
            d = section.compared[row.label].difference
            rows.append((name_of(row), value(d), Value(mean=d.n if d else 0), _verdict(d)))
    columns = (
        DEFENSE, Column(name=Words("difference"), direction="lower", signed=True), Column(name=Words("n"), digits=0),
        Column(name=Words("leaks")),
    )  # fmt: skip
    caption = Words(", over the attacks both have, on the same samples")
    return [Table(title="Mean AUC minus undefended", caption=caption, columns=columns, rows=tuple(rows))]


def _verdict(difference: Interval | None) -> Content:
    if difference is None or difference.half_width != difference.half_width:
        return None
    if difference.low <= 0 <= difference.high:
        return Words("no difference shown")
    return Words("less" if difference.high < 0 else "MORE")


def pareto_table(section: Section) -> list[Table]:
    """Front and hypervolume (FedMIA, reference (1, 1)) of the complete rows, the undefended point in every front."""
    found = trade_off(section)
    if found is None:
        return []
    rows = [
        (name_of(row), *(Value(mean=v) for v in found.points[row.label]),
         Words("yes" if found.on_front[row.label] else "no"), Value(mean=found.of_row[row.label]))
        for row in section.rows if row.label in found.points
    ]  # fmt: skip
    columns = (
        DEFENSE, Column(name=Words(f"privacy loss ({_LOSS[found.loss]})"), direction="lower"),
        Column(name=Words("test error"), direction="lower"), Column(name=Words("on the front")),
        Column(name=Words("hypervolume"), direction="higher"),
    )  # fmt: skip
    caption = Words(" (hypervolume: of the row and the undefended point; larger is better)")
    return [Table(
        title="Privacy against utility", caption=caption, columns=columns, rows=tuple(rows), footnotes=(_totals(found),)
    )]  # fmt: skip


def _totals(found: TradeOff) -> Text:
    """Hypervolume of all rows, and of each defense that is listed with several parameters, over all of them."""
    families: list[Text] = [
        (name, Words(f" over its {n} variants: {area:.3f}.")) for name, (n, area) in found.of_family.items()
    ]
    return joined([Words(f"All rows together: hypervolume {found.everything:.3f}."), *families], " ")
