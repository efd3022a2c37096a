"""Groups of clients side by side: accuracy, fairness, and attack results in each (IFCA-MIR,
sections 3.2 and 5.2).

The paper defines the three notions of fairness for a binary prediction (Eq. 5-7) and does not say
how it applies them to 10 or 62 classes. Here: each class against the rest, averaged over the
classes that occur. 0 = fair, 1 = as unfair as can be. With more than two groups: the largest value
over all pairs of them. An absolute difference of noisy rates lies above 0 for a fair model too:
compare it with its standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedbench.core import Analysis, Findings, FinishedRun, Judgement, Number
from fedbench.core.report import (
    AuditedRound,
    Block,
    ClientGroup,
    Column,
    Content,
    Figure,
    Row,
    Section,
    Style,
    Table,
    Text,
    Value,
    Words,
    value,
)
from fedbench.plugins.analyses import clients
from fedbench.plugins.analyses.common import framed, in_order, interval_of, numbers, seeds_of, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


# ---------------------------------------------------------------- tables and figure


GAPS = {
    "demographic_parity": "demographic parity",
    "equal_opportunity": "equal opportunity",
    "equalised_odds": "equalised odds",
}
_STROKES = (("-", "solid"), ("--", "dashed"), (":", "dotted"), ("-.", "dash-dotted"))  # one a group


class GroupFairness(Analysis):
    """Accuracy of each group on its own test samples, and three gaps between the groups."""

    def applies(self, setting: Mapping[str, Any]) -> bool:
        """Where the setting has groups of clients."""
        return bool(setting.get("groups"))

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """``accuracy:``, ``clients:`` and ``n_test:<group>``, the ``GAPS``, and ``models`` and
        ``purity`` (:func:`clusters`); None in settings without groups.
        """
        if run.group_of is None:
            return None
        numbers: dict[str, Number] = {}
        for g, name in enumerate(run.group_names):
            numbers |= _of_group(
                name,
                run.predicted == run.test_y,
                run.test_group == g,
                int((run.group_of == g).sum()),
            )
        fair = fairness_report(run.predicted, run.test_y, run.test_group, run.rng("fairness"))
        models, purity = clusters(run.group_of, run.assignment[-1])
        numbers |= {gap: Number(*fair[gap]) for gap in GAPS} | {"purity": Number(purity, 0.0)}
        return Findings(numbers, {"models": models.ravel()}, {"models": "clients"})

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """The groups under every defense, and under every attack; nothing where the setting has no
        groups.
        """
        found = {row.label: seeds_of(section, row, label) for row in section.rows}
        if not section.groups or not any(found.values()):
            return
        yield _side_by_side(section, found)
        if section.deciding:
            yield _attacked(section)
        yield _aucs(section)
        yield Figure("groups", "Groups of clients", partial(_draw, section))


def _of_group(name: str, correct: np.ndarray, mine: np.ndarray, clients: int) -> dict[str, Number]:
    n = int(mine.sum())
    accuracy = float(correct[mine].mean()) if n else None
    error = None if accuracy is None else float(np.sqrt(accuracy * (1 - accuracy) / n))
    return {
        f"accuracy:{name}": Number(accuracy, error),
        f"clients:{name}": Number(clients, unit="clients"),
        f"n_test:{name}": Number(n, unit="samples"),
    }


def clusters(group_of: np.ndarray, assignment: np.ndarray) -> tuple[np.ndarray, float]:
    """(clients [model, group], purity) of the models that fit the G groups best, one each, for
    ``group_of`` and ``assignment`` [K] int.

    The purity is the mean over the groups of the share of their clients that are on the group's
    model: 1 where the clusters are the groups, 1 / G where all clients have one model.
    """
    n = group_of.max() + 1
    counts = np.zeros((n, max(n, assignment.max() + 1)))
    np.add.at(counts, (group_of, assignment), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    groups, models = linear_sum_assignment(shares, maximize=True)
    return counts[:, models].T, shares[groups, models].mean()


def moves(row: Row) -> float | None:
    """Changes of model from one audited round to the next, all rounds and clients together, mean
    over seeds.
    """
    totals = [
        sum(moved)
        for rounds in row.histories
        if (moved := [r.moved for r in rounds if r.moved is not None])
    ]
    return float(np.mean(totals)) if totals else None


def _side_by_side(section: Section, found: dict[str, list[Findings]]) -> Table:
    rows = []
    for row in section.rows:
        mine = found[row.label]
        names = (*(f"accuracy:{group.name}" for group in section.groups), *GAPS)
        cells = (value(interval_of(mine, name)) for name in names)
        rows.append((_name(row), *cells, *_models(section, row, mine), Value(mean=moves(row))))
    columns = (
        words("defense"),
        *(
            Column(name=(Words("accuracy "), g.name), direction="higher", digits=1, scale=100)
            for g in section.groups
        ),
        *(numbers(title, direction="lower") for title in GAPS.values()),
        numbers("clients of each model"),
        numbers("purity"),
        numbers("moves", digits=1),
    )
    caption = Words(
        ": test accuracy (%) of each group, and how far apart they are treated, 0 is fair (an "
        "absolute difference is above 0 "
        "for equals, too: compare it with its interval); clients of each group's model in the last "
        "audited round, by group; "
        "purity: share of a group's clients that are on its model, mean over groups (1: clusters "
        "are the groups, 1 / G: one "
        "model for all G of them); changes of model between audited rounds; means over seeds"
    )
    return Table(title="Groups of clients", caption=caption, columns=columns, rows=tuple(rows))


def _models(section: Section, row: Row, found: Sequence[Findings]) -> tuple[Content, Content]:
    """Clients of each group's model, a number a group (``30 + 2 / 4 + 4``), and the purity, means
    over seeds.
    """
    arrays = [f.arrays["models"] for f in found if "models" in f.arrays]
    if not arrays or moves(row) is None:
        return None, None
    clients = np.mean(arrays, axis=0).reshape(len(section.groups), -1)
    sizes = (" + ".join(f"{n:.3g}" for n in model) for model in clients)
    return Words(" / ".join(sizes)), value(interval_of(found, "purity"))


def _attacked(section: Section) -> Table:
    """Attack accuracy in each group, and the violations where the clients have bounds."""
    groups = section.groups
    columns: list[Column] = [words("defense")]
    rows: list[list[Content]] = [[_name(row)] for row in section.rows]
    for attack in section.deciding:
        bounded = clients.bounded(section, attack)
        columns += [_column(attack, group) for group in groups]
        columns += [clients.column(attack)] if bounded else []
        for row, line in zip(section.rows, rows, strict=True):
            entry = row.entries[attack]
            line += [value(entry.of_group(groups, g).attack_accuracy()) for g in range(len(groups))]
            line += [clients.count(section, entry)] if bounded else []
    caption = Words(
        " in the last round, 0.5 is guessing, and violations: clients with a model that the attack "
        "reads more accurately than "
        "they tolerate (interval over seeds, never narrower than the binomial one of their bounds)"
    )
    return Table(
        title="MIA accuracy by group",
        caption=caption,
        columns=tuple(columns),
        rows=tuple(map(tuple, rows)),
    )


def _aucs(section: Section) -> Table:
    groups = section.groups
    columns = [_column(a, group) for a in section.attacks for group in groups]
    every = [(a, g) for a in section.attacks for g in range(len(groups))]
    rows = [
        (
            _name(r),
            *(value(r.entries[a].of_group(groups, g).interval("auc", "ofl")) for a, g in every),
        )
        for r in section.rows
    ]
    caption = Words(
        " as measured, against outside non-members (the tables above take the groups together)"
    )
    return Table(
        title="AUC by group of clients",
        caption=caption,
        columns=(words("defense"), *columns),
        rows=tuple(rows),
    )


def _column(attack: str, group: ClientGroup) -> Column:
    return Column(name=(attack, Words(": "), group.name), direction="lower")


def _name(row: Row) -> Text:
    return (row.label, Words(" (undefended)")) if row.undefended else row.label


def _draw(section: Section, style: Style) -> Canvas:
    """One panel of bars an attack that decides, then two over the audited rounds."""
    attacks, groups = section.deciding, section.groups
    figure = style.new_figure(3.9 * (len(attacks) + 2), 3.6)
    axes = figure.subplots(1, len(attacks) + 2, squeeze=False).ravel()
    for axis, attack in zip(axes, attacks, strict=False):  # the last two are for the rounds
        _bars(axis, style, section, attack, groups)
    accuracy, moved = axes[len(attacks) :]
    for g, _ in enumerate(groups):
        _over_rounds(
            accuracy,
            style,
            section,
            lambda r, g=g: 100 * r.group_accuracy[g] if r.group_accuracy else np.nan,
            dash=g,
        )
    dashes = ", ".join(
        f"{_STROKES[g % len(_STROKES)][1]}: {style.literal(group.name)}"
        for g, group in enumerate(groups)
    )
    accuracy.set_title(f"test accuracy, % ({dashes})", fontsize=9)
    _over_rounds(moved, style, section, lambda r: np.nan if r.moved is None else r.moved)
    moved.set_title("clients moved since the last audited round", fontsize=9)
    return framed(figure, accuracy, style, section, "Groups of clients, means over seeds", ncols=5)


def _bars(
    axis: Axes, style: Style, section: Section, attack: str, groups: Sequence[ClientGroup]
) -> None:
    width = 0.8 / len(groups)
    for g, group in enumerate(groups):
        found = [r.entries[attack].of_group(groups, g).attack_accuracy() for r in section.rows]
        x = np.arange(len(section.rows)) + (g - (len(groups) - 1) / 2) * width
        axis.bar(
            x,
            [v.mean - 0.5 if v else np.nan for v in found],
            width,
            bottom=0.5,
            color=style.colour(g),
            label=style.literal(group.name),
            yerr=[v.half_width if v else np.nan for v in found],
            error_kw={"elinewidth": 0.9, "capsize": 2},
        )
    axis.axhline(0.5, color="0.4", lw=0.8)
    labels = [style.literal(r.label) for r in section.rows]
    axis.set_xticks(range(len(section.rows)), labels, rotation=20, ha="right", fontsize=8)
    axis.set_title(style.literal(f"MIA accuracy, {attack} (0.5: guessing)"), fontsize=9)
    axis.legend(frameon=False, fontsize=8)


def _over_rounds(
    axis: Axes, style: Style, section: Section, of: Callable[[AuditedRound], float], dash: int = 0
) -> None:
    """Mean over the seeds that audited the same rounds as the row's first; a row without values
    draws nothing.
    """
    for i, row in enumerate(in_order(section)):
        past = row.histories
        rounds = [r.round for r in past[0]] if past else []
        values = np.array(
            [[of(r) for r in rows] for rows in past if [r.round for r in rows] == rounds]
        )
        if rounds and not np.isnan(values).all():
            axis.plot(
                rounds,
                values.mean(axis=0),
                color="black" if row.undefended else style.colour(i),
                ls=_STROKES[dash % len(_STROKES)][0],
                marker=style.marker(i),
                ms=3.5,
                lw=1.2,
                label=None if dash else style.literal(row.label),
            )
    axis.set_xlabel("round")
    axis.grid(True, color="0.92", lw=0.6)


# ---------------------------------------------------------------- three gaps between groups


Gap = tuple[float | None, float | None]
"""value and standard error"""


def fairness_report(
    predicted: np.ndarray, y: np.ndarray, group: np.ndarray, rng: np.random.Generator, n: int = 200
) -> dict[str, Gap]:
    """Three gaps between groups for ``predicted``, ``y`` and ``group`` [samples] int, with their
    standard errors.

    ``demographic_parity``: mean over the predicted classes c of |P(predicted = c | group 1) -
    P(predicted = c | group 0)| (Eq. 5). ``equal_opportunity``: mean over the true classes of the
    difference in TPR, P(predicted = c | y = c, group) (Eq. 6). ``equalised_odds``: half the sum of
    that and of the difference in FPR, P(predicted = c | y != c, group) (Eq. 7). A class that one of
    two groups does not have is left out; None where no two groups have a class in common.

    Errors are of ``n`` bootstrap replicates; samples are resampled within each group, which is a
    multinomial draw of its table of (y, predicted) (Efron and Tibshirani 1993, ch. 6). Raises
    ValueError with fewer than two groups.
    """
    counts, true, said = _counts(predicted, y, group)
    flat = counts.reshape(len(counts), -1)
    again = np.stack([rng.multinomial(c.sum(), c / c.sum(), size=n) for c in flat], axis=1).reshape(
        n, *counts.shape
    )
    points, replicates = (_gaps(table, true, said) for table in (counts, again))
    gaps: dict[str, Gap] = dict.fromkeys(points, (None, None))
    return gaps | {
        name: (float(gap), _spread(replicates[name]))
        for name, gap in points.items()
        if not np.isnan(gap)
    }


def _spread(replicates: np.ndarray) -> float | None:
    """Standard deviation of those replicates that have a value; None with fewer than two."""
    known = replicates[~np.isnan(replicates)]
    return float(known.std(ddof=1)) if len(known) > 1 else None


def _counts(
    predicted: np.ndarray, y: np.ndarray, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts [G, C, C] of (group, true class, predicted class); [C] which classes occur as true and
    [C] as predicted ones.
    """
    names, g = np.unique(group, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"fairness needs samples of at least two groups, got {len(names)}")
    classes, both = np.unique(np.concatenate([y, predicted]), return_inverse=True)
    c, (true, said) = len(classes), np.split(both, 2)
    counts = np.bincount((g * c + true) * c + said, minlength=len(names) * c * c).reshape(
        len(names), c, c
    )
    return counts, counts.sum(axis=(0, 2)) > 0, counts.sum(axis=(0, 1)) > 0


def _gaps(counts: np.ndarray, true: np.ndarray, said: np.ndarray) -> dict[str, np.ndarray]:
    """The three gaps [...] of counts [..., G, C, C]; nan where there are no rates to compare."""
    of_true, of_said, hits = (
        counts.sum(axis=-1),
        counts.sum(axis=-2),
        np.einsum("...cc->...c", counts),
    )
    others = of_true.sum(axis=-1, keepdims=True) - of_true
    with np.errstate(invalid="ignore"):  # 0 / 0 is nan
        tpr, fpr = _mean_gaps(hits / of_true, true), _mean_gaps((of_said - hits) / others, true)
    parity = _mean_gaps(of_said / of_said.sum(axis=-1, keepdims=True), said)
    found = {
        "demographic_parity": parity,
        "equal_opportunity": tpr,
        "equalised_odds": (tpr + fpr) / 2,
    }
    return {name: np.fmax.reduce(pairs, axis=-1) for name, pairs in found.items()}


def _mean_gaps(rates: np.ndarray, occurs: np.ndarray) -> np.ndarray:
    """[..., pairs of groups]: mean over the classes that occur of the absolute difference of rates
    [..., G, C].
    """
    gaps = [
        np.abs(rates[..., a, :] - rates[..., b, :])[..., occurs]
        for a, b in combinations(range(rates.shape[-2]), 2)
    ]
    gap = np.stack(gaps, axis=-2)
    known = ~np.isnan(gap)
    with np.errstate(invalid="ignore"):
        return np.where(known, gap, 0).sum(axis=-1) / known.sum(axis=-1)
