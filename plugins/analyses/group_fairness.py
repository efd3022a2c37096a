"""Groups of clients side by side: accuracy, fairness, and what attacks find in each (IFCA-MIR, sections 3.2 and 5.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedbench.core import (
    Analysis,
    Block,
    ClientGroup,
    Column,
    Content,
    Findings,
    FinishedRun,
    Interval,
    Judgement,
    Number,
    Row,
    Section,
    Table,
    Text,
    Value,
    Words,
    combined_interval,
    value,
)
from fedbench.plugins.analyses import violations
from fedbench.plugins.analyses.fairness import fairness_report
from fedbench.plugins.analyses.group_figures import group_figure

GAPS = {
    "demographic_parity": "demographic parity", "equal_opportunity": "equal opportunity", "equalised_odds": "equalised odds",
}  # fmt: skip
MAX_CLUSTERS = 6  # of which every size is printed
_DEFENSE = Column(name=Words("defense"), align="left")


class GroupFairness(Analysis):
    """Accuracy of each group on its own test samples, and three gaps between the groups."""

    def applies(self, setting: Mapping[str, Any]) -> bool:
        """Where the setting has groups of clients."""
        return bool(setting.get("groups"))

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """``accuracy:``, ``clients:`` and ``n_test:<group>`` and the ``GAPS``; None in settings without groups."""
        if run.group_of is None:
            return None
        numbers: dict[str, Number] = {}
        for g, name in enumerate(run.group_names):
            numbers |= _of_group(name, run.predicted == run.test_y, run.test_group == g, int((run.group_of == g).sum()))
        fair = fairness_report(run.predicted, run.test_y, run.test_group, run.rng("fairness"))
        return Findings(numbers | {gap: Number(getattr(fair, gap), getattr(fair, f"{gap}_se")) for gap in GAPS})

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """The groups under every defense, and under every attack; nothing where the setting has no groups."""
        found = {row.label: found_in(section, row, label) for row in section.rows}
        if not section.groups or not any(found.values()):
            return
        yield _side_by_side(section, found)
        if section.deciding:
            yield _attacked(section)
        yield _aucs(section)
        yield group_figure(section)


def _of_group(name: str, correct: np.ndarray, mine: np.ndarray, clients: int) -> dict[str, Number]:
    n = int(mine.sum())
    accuracy = float(correct[mine].mean()) if n else None
    return {
        f"accuracy:{name}": Number(accuracy, None if accuracy is None else _share_error(accuracy, n)),
        f"clients:{name}": Number(clients, unit="clients"), f"n_test:{name}": Number(n, unit="samples"),
    }  # fmt: skip


def _share_error(share: float, n: float) -> float:
    return float(np.sqrt(share * (1 - share) / n))


def found_in(section: Section, row: Row, label: str) -> list[Findings]:
    """One a seed: that of the run which stands for the row's accuracy."""
    return [f for seed in section.seeds if (f := row.findings(label, seed)) is not None]


def group_accuracy(found: Sequence[Findings], name: str) -> Interval | None:
    """Mean test accuracy of a group over seeds, with its 95 % interval; fractions."""
    pairs = [(_value(f, f"accuracy:{name}"), _value(f, f"n_test:{name}")) for f in found]
    known = [(accuracy, n) for accuracy, n in pairs if accuracy is not None and n]
    return combined_interval([a for a, _ in known], [_share_error(a, n) for a, n in known]) if known else None


def gap(found: Sequence[Findings], kind: str) -> Interval | None:
    """Mean over seeds of one of ``GAPS``, with its 95 % interval."""
    known = [(n.value, n.error) for f in found if (n := f.numbers.get(kind)) and n.value is not None and n.error is not None]
    return combined_interval([v for v, _ in known], [e for _, e in known]) if known else None


def _value(found: Findings, name: str) -> float | None:
    number = found.numbers.get(name)
    return number.value if number else None


def cluster_sizes(row: Row) -> list[float]:
    """Clients of each model in the last audited round, largest first, mean over seeds: models have no name over seeds."""
    sizes = [sorted(rounds[-1].clusters, reverse=True) for rounds in row.histories if rounds and rounds[-1].clusters]
    if not sizes or len({len(s) for s in sizes}) > 1:
        return []
    return [float(s) for s in np.mean(sizes, axis=0)]


def moves(row: Row) -> float | None:
    """Changes of model from one audited round to the next, all rounds and clients together, mean over seeds."""
    totals = [sum(r.moved or 0 for r in rounds) for rounds in row.histories if any(r.moved is not None for r in rounds)]
    return float(np.mean(totals)) if totals else None


def _side_by_side(section: Section, found: dict[str, list[Findings]]) -> Table:
    rows = []
    for row in section.rows:
        mine = found[row.label]
        accuracies = [value(group_accuracy(mine, group.name)) for group in section.groups]
        gaps = [value(gap(mine, kind)) for kind in GAPS]
        rows.append((_name(row), *accuracies, *gaps, _sizes(cluster_sizes(row)), Value(mean=moves(row))))
    columns = (
        _DEFENSE,
        *(Column(name=(Words("accuracy "), g.name), direction="higher", digits=1, scale=100) for g in section.groups),
        *(Column(name=Words(title), direction="lower") for title in GAPS.values()),
        Column(name=Words("clients of each model")), Column(name=Words("moves"), digits=1),
    )  # fmt: skip
    caption = Words(
        ": test accuracy (%) of each group, and how far apart they are treated, 0 is fair (an absolute difference is above 0 "
        "for equals, too: compare it with its interval); clients of each global model in the last audited round, largest "
        "first, and changes of model between audited rounds, means over seeds"
    )
    return Table(title="Groups of clients", caption=caption, columns=columns, rows=tuple(rows))


def _sizes(sizes: Sequence[float]) -> Content:
    if not sizes:
        return None
    if len(sizes) > MAX_CLUSTERS:
        return Words(f"{len(sizes)} models of {sizes[0]:g} to {sizes[-1]:g}")
    return Words(" / ".join(f"{s:.1f}".removesuffix(".0") for s in sizes))


def _attacked(section: Section) -> Table:
    """Attack accuracy in each group, and the violations beside it where the clients have bounds."""
    groups = section.groups
    columns: list[Column] = [_DEFENSE]
    rows: list[list[Content]] = [[_name(row)] for row in section.rows]
    for attack in section.deciding:
        bounded = violations.bounded(section, attack)
        columns += [_column(attack, group) for group in groups]
        columns += [violations.column(attack)] if bounded else []
        for row, line in zip(section.rows, rows, strict=True):
            entry = row.entries[attack]
            line += [value(entry.of_group(groups, g).attack_accuracy()) for g in range(len(groups))]
            line += [violations.count(section, entry)] if bounded else []
    caption = Words(
        " in the last round, 0.5 is guessing, and violations: clients whose model the attack reads more accurately than they "
        "tolerate (interval over seeds, never narrower than the binomial one of their bounds)"
    )
    return Table(title="MIA accuracy by group", caption=caption, columns=tuple(columns), rows=tuple(map(tuple, rows)))


def _aucs(section: Section) -> Table:
    groups = section.groups
    columns = [_column(a, group) for a in section.attacks for group in groups]
    every = [(a, g) for a in section.attacks for g in range(len(groups))]
    rows = [(_name(r), *(value(r.entries[a].of_group(groups, g).interval("auc", "ofl")) for a, g in every)) for r in section.rows]
    caption = Words(" as measured, against outside non-members (the tables above take the groups together)")
    return Table(title="AUC by group of clients", caption=caption, columns=(_DEFENSE, *columns), rows=tuple(rows))


def _column(attack: str, group: ClientGroup) -> Column:
    return Column(name=(attack, Words(": "), group.name), direction="lower")


def _name(row: Row) -> Text:
    return (row.label, Words(" (undefended)")) if row.undefended else row.label
