"""Privacy against utility: the paired difference, accuracy under attack, the Pareto front."""

from __future__ import annotations

from fedbench.core.contract.board import Column, Content, Table, Text, Value, Words, value
from fedbench.leaderboard.statistics.adversaries import accuracy_under_attack
from fedbench.leaderboard.statistics.pareto import TradeOff, trade_off
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.statistics.verdict import Difference
from fedbench.leaderboard.tables.common import DEFENSE, joined, name_of
from fedbench.leaderboard.tables.tf01 import tf01_notes

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
    """Worst case minus the undefended one's and minus the free-riders'; nothing where there is nothing to compare."""
    contest, floor = section.comparison, section.free_rider
    references = [r for r in (section.base, floor) if r is not None and contest.worst(r.label) is not None]
    if section.base is None or section.base not in references or len(section.rows) < 2:
        return []
    against = {r.label: contest.against(r.label) for r in references}
    rows = []
    for row in section.rows:
        if not row.undefended:
            found = [against[r.label].get(row.label) for r in references]
            cells = [None if d is None else value(d.found) for d in found]
            rows.append((name_of(row), cells[0], _verdict(found[0]), *cells[1:]))
    names = ["minus undefended", "leaks", *(["minus free-riders"] if floor in references else [])]
    columns = [Column(name=Words(n), direction="lower", signed=True) for n in names]
    caption = Words(", on the same candidates; verdicts at 95 % for all rows together (Holm)")
    return [Table(title="Worst case compared", caption=caption, columns=(DEFENSE, *columns), rows=tuple(rows))]


def _verdict(difference: Difference | None) -> Content:
    if difference is None:
        return None
    if not difference.shown:
        return Words("no difference shown")
    return Words("less" if difference.found.mean < 0 else "MORE")


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
    notes = (_totals(found), *(tf01_notes(section) if found.loss == "tf01" else ()))
    return [Table(title="Privacy against utility", caption=caption, columns=columns, rows=tuple(rows), footnotes=notes)]


def _totals(found: TradeOff) -> Text:
    """Hypervolume of all rows, and of each defense that is listed with several parameters, over all of them."""
    families: list[Text] = [
        (name, Words(f" over its {n} variants: {area:.3f}.")) for name, (n, area) in found.of_family.items()
    ]
    return joined([Words(f"All rows together: hypervolume {found.everything:.3f}."), *families], " ")
