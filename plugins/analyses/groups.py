"""Groups of clients side by side: accuracy, fairness, and attack results in each.

The paper (IFCA-MIR, sections 3.2 and 5.2) defines the three notions of fairness for a binary
prediction (Eq. 5-7) and does not say how it applies them to 10 or 62 classes. Here: each class
against the rest, averaged over the classes that occur. 0 = fair, 1 = as unfair as can be. With more
than two groups: the largest value over all pairs of them. An absolute difference of noisy rates
lies above 0 for a fair model too: compare it with its standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy import ndarray
from pydantic import Field
from scipy.optimize import linear_sum_assignment

from fedbench.core import Analysis, Findings, FinishedRun, Judgement, Number, Params, UserError
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
from fedbench.plugins.analyses.common import (
    by_row,
    colour,
    framed,
    grid,
    in_order,
    interval_of,
    numbers,
    table,
    words,
)

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
    """Accuracy of each group on its own test samples, three gaps between the groups, and how far
    the clusters of a clustered federation are the groups.
    """

    class Params(Params):
        purity: Literal["any", "required"] = Field(
            "any",
            description="required: settings without groups, of which no cluster's purity can be "
            "told, are refused; any: left out",
        )

    def applies(self, setting: Mapping[str, Any]) -> bool:
        """Tell whether the setting has groups of clients."""
        if not setting.get("groups") and self.params.purity == "required":
            raise UserError(
                "the purity of clusters is asked for, and this setting has no groups of clients "
                "to compare them with: give it groups, or leave purity: required out"
            )
        return bool(setting.get("groups"))

    def analyse(self, run: FinishedRun, judgement: Judgement | None) -> Findings | None:
        """Return ``accuracy:``, ``clients:`` and ``n_test:<group>``, the ``GAPS``, and ``models``
        and ``purity`` (:func:`clusters`); None in settings without groups.
        """
        if run.group_of is None:
            return None
        numbers: dict[str, Number] = {}
        for g, name in enumerate(run.group_names):
            correct = (run.predicted == run.test_y)[run.test_group == g]
            numbers[f"accuracy:{name}"] = _accuracy(correct)
            numbers[f"clients:{name}"] = Number(int((run.group_of == g).sum()), unit="clients")
            numbers[f"n_test:{name}"] = Number(len(correct), unit="samples")
        fair = fairness_report(run.predicted, run.test_y, run.test_group, run.rng("fairness"))
        numbers |= {gap: Number(*fair[gap]) for gap in GAPS}
        models, purity = clusters(run.group_of, run.assignment[-1])
        numbers["purity"] = Number(purity, 0.0)
        return Findings(numbers, {"models": models.ravel()}, {"models": "clients"})

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw the groups under every defense, and under every attack."""
        findings = by_row(section, label)
        if not section.groups or not findings:
            return
        yield _side_by_side(section, findings)
        if section.deciding:
            yield _attacked(section)
        yield _aucs(section)
        yield Figure("groups", "Groups of clients", partial(_draw, section))


def _accuracy(correct: ndarray) -> Number:
    """Mean of ``correct`` [n] with its binomial error."""
    if not len(correct):
        return Number(None)
    accuracy = float(correct.mean())
    return Number(accuracy, float(np.sqrt(accuracy * (1 - accuracy) / len(correct))))


def clusters(group_of: ndarray, assignment: ndarray) -> tuple[ndarray, float]:
    """Match models with the G groups, one each: clients [model, group], and the purity.

    ``group_of`` and ``assignment``: [K] int. The purity is the mean over the groups of the share of
    their clients that are on the group's model: 1 where the clusters are the groups, 1 / G where
    all clients have one model.
    """
    n = group_of.max() + 1
    counts = np.zeros((n, max(n, assignment.max() + 1)))
    np.add.at(counts, (group_of, assignment), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    groups, models = linear_sum_assignment(shares, maximize=True)
    return counts[:, models].T, shares[groups, models].mean()


def moves(row: Row) -> float | None:
    """Count changes of model between audited rounds, of all clients; mean over seeds."""
    totals = []
    for history in row.histories:
        moved = [audited.moved for audited in history if audited.moved is not None]
        if moved:
            totals.append(sum(moved))
    return float(np.mean(totals)) if totals else None


def _side_by_side(section: Section, findings: dict[str, list[Findings]]) -> Table:
    accuracies = [f"accuracy:{group.name}" for group in section.groups]
    bounded = [attack for attack in section.deciding if clients.bounded(section, attack)]
    rows = []
    for row in section.rows:
        by_seed = findings.get(row.label, [])
        cells = [value(interval_of(by_seed, name)) for name in (*accuracies, *GAPS)]
        models = _models(section, row, by_seed)
        counts = [clients.count(section, row.entries[attack]) for attack in bounded]
        rows.append((_name(row), *cells, *models, Value(mean=moves(row)), *counts))
    columns = [words("defense")]
    for group in section.groups:
        name = Words("accuracy "), group.name
        columns.append(Column(name=name, direction="higher", digits=1, scale=100))
    columns += [numbers(title, direction="lower") for title in GAPS.values()]
    columns += [
        numbers("clients of each model"),
        numbers("purity"),
        numbers("moves", digits=1),
        *map(clients.column, bounded),
    ]
    caption = (
        ": test accuracy (%) of each group, and how far apart they are treated, 0 is fair (an "
        "absolute difference is above 0 for equals, too: compare it with its interval); clients of "
        "each group's model in the last audited round, by group; purity: share of a group's "
        "clients that are on its model, mean over groups (1: clusters are the groups, 1 / G: one "
        "model for all G of them); changes of model between audited rounds; violations as below; "
        "means over seeds"
    )
    return table("Groups of clients", caption, columns, rows)


def _models(section: Section, row: Row, findings: Sequence[Findings]) -> tuple[Content, Content]:
    """Clients of each group's model, a number a group (``30 + 2 / 4 + 4``), and the purity."""
    arrays = [f.arrays["models"] for f in findings if "models" in f.arrays]
    if not arrays or moves(row) is None:
        return None, None
    sizes = []
    for model in np.mean(arrays, axis=0).reshape(len(section.groups), -1):
        sizes.append(" + ".join(f"{clients:.3g}" for clients in model))
    return Words(" / ".join(sizes)), value(interval_of(findings, "purity"))


def _attacked(section: Section) -> Table:
    """Attack accuracy in each group, and the violations where the clients have bounds."""
    groups = section.groups
    columns: list[Column] = [words("defense")]
    rows: list[list[Content]] = [[_name(row)] for row in section.rows]
    for attack in section.deciding:
        bounded = clients.bounded(section, attack)
        columns += [_column(attack, group) for group in groups]
        if bounded:
            columns.append(clients.column(attack))
        for row, cells in zip(section.rows, rows, strict=True):
            entry = row.entries[attack]
            for g in range(len(groups)):
                cells.append(value(entry.of_group(groups, g).attack_accuracy()))
            if bounded:
                cells.append(clients.count(section, entry))
    caption = (
        " in the last round, 0.5 is guessing, and violations: clients with a model that the attack "
        "reads more accurately than they tolerate, in brackets by group (interval over seeds, "
        "never narrower than the binomial one of their bounds)"
    )
    return table("MIA accuracy by group", caption, columns, rows)


def _aucs(section: Section) -> Table:
    groups = section.groups
    pairs = list(product(section.attacks, range(len(section.groups))))
    rows = []
    for row in section.rows:
        entries = [row.entries[attack].of_group(groups, g) for attack, g in pairs]
        rows.append((_name(row), *[value(entry.interval("auc", "ofl")) for entry in entries]))
    columns = [words("defense"), *[_column(attack, groups[g]) for attack, g in pairs]]
    caption = (
        " as measured, against outside non-members (the tables above take the groups together)"
    )
    return table("AUC by group of clients", caption, columns, rows)


def _column(attack: str, group: ClientGroup) -> Column:
    return Column(name=(attack, Words(": "), group.name), direction="lower")


def _name(row: Row) -> Text:
    return (row.label, Words(" (undefended)")) if row.undefended else row.label


def _draw(section: Section, style: Style) -> Canvas:
    """Draw a panel of bars an attack that decides, then two over the audited rounds."""
    attacks = section.deciding
    groups = section.groups
    figure = style.new_figure(3.9 * (len(attacks) + 2), 3.6)
    axes = figure.subplots(1, len(attacks) + 2, squeeze=False).ravel()
    for axis, attack in zip(axes, attacks, strict=False):  # the last two are for the rounds
        _bars(axis, style, section, attack)
    accuracy, moved = axes[len(attacks) :]
    dashes = []
    for g, group in enumerate(groups):
        _over_rounds(accuracy, style, section, partial(_percent, group=g), dash=g)
        dashes.append(f"{_STROKES[g % len(_STROKES)][1]}: {style.literal(group.name)}")
    accuracy.set_title(f"test accuracy, % ({', '.join(dashes)})", fontsize=9)
    _over_rounds(moved, style, section, lambda r: np.nan if r.moved is None else r.moved)
    moved.set_title("clients moved since the last audited round", fontsize=9)
    return framed(figure, accuracy, style, section, "Groups of clients, means over seeds", ncols=5)


def _percent(audited: AuditedRound, group: int) -> float:
    """Test accuracy of a group in percent."""
    return 100 * audited.group_accuracy[group] if audited.group_accuracy else np.nan


def _bars(axis: Axes, style: Style, section: Section, attack: str) -> None:
    groups = section.groups
    rows = section.rows
    width = 0.8 / len(groups)
    for g, group in enumerate(groups):
        accuracies = [row.entries[attack].of_group(groups, g).attack_accuracy() for row in rows]
        heights = [interval.mean - 0.5 if interval else np.nan for interval in accuracies]
        errors = [interval.half_width if interval else np.nan for interval in accuracies]
        axis.bar(
            np.arange(len(rows)) + (g - (len(groups) - 1) / 2) * width,
            heights,
            width,
            bottom=0.5,
            color=style.colour(g),
            label=style.literal(group.name),
            yerr=errors,
            error_kw={"elinewidth": 0.9, "capsize": 2},
        )
    axis.axhline(0.5, color="0.4", lw=0.8)
    labels = [style.literal(row.label) for row in rows]
    axis.set_xticks(range(len(rows)), labels, rotation=20, ha="right", fontsize=8)
    axis.set_title(style.literal(f"MIA accuracy, {attack} (0.5: guessing)"), fontsize=9)
    axis.legend(frameon=False, fontsize=8)


def _over_rounds(
    axis: Axes, style: Style, section: Section, of: Callable[[AuditedRound], float], dash: int = 0
) -> None:
    """Plot means over the seeds that audited the same rounds as the row's first."""
    for i, row in enumerate(in_order(section)):
        courses = []
        rounds = [audited.round for audited in next(iter(row.histories), ())]
        for history in row.histories:
            if [audited.round for audited in history] == rounds:
                courses.append([of(audited) for audited in history])
        if rounds and not np.isnan(courses).all():
            axis.plot(
                rounds,
                np.mean(courses, axis=0),
                color=colour(style, row, i),
                ls=_STROKES[dash % len(_STROKES)][0],
                marker=style.marker(i),
                ms=3.5,
                lw=1.2,
                label=None if dash else style.literal(row.label),
            )
    axis.set_xlabel("round")
    grid(axis)


# ---------------------------------------------------------------- three gaps between groups


Gap = tuple[float | None, float | None]  # value and standard error


def fairness_report(
    predicted: ndarray, y: ndarray, group: ndarray, rng: np.random.Generator, n: int = 200
) -> dict[str, Gap]:
    """Return three gaps between groups with their standard errors.

    ``predicted``, ``y`` and ``group``: [samples] int.

    ``demographic_parity``: mean over the predicted classes c of |P(predicted = c | group 1) -
    P(predicted = c | group 0)| (Eq. 5). ``equal_opportunity``: mean over the true classes of the
    difference in TPR, P(predicted = c | y = c, group) (Eq. 6). ``equalised_odds``: half the sum of
    that and of the difference in FPR, P(predicted = c | y != c, group) (Eq. 7). A class that one of
    two groups does not have is left out; None where no two groups have a class in common.

    Errors are of ``n`` bootstrap replicates; samples are resampled within each group, which is a
    multinomial draw of its table of (y, predicted) (Efron and Tibshirani 1993, ch. 6). Raises
    ValueError with fewer than two groups.
    """
    counts = _counts(predicted, y, group)
    tables = [rng.multinomial(c.sum(), c.ravel() / c.sum(), size=n) for c in counts]
    replicates = _gaps(np.stack(tables, axis=1).reshape(n, *counts.shape), counts)
    gaps: dict[str, Gap] = {}
    for name, gap in _gaps(counts, counts).items():
        gaps[name] = None, None
        if not np.isnan(gap):
            gaps[name] = float(gap), _spread(replicates[name])
    return gaps


def _spread(replicates: ndarray) -> float | None:
    """Standard deviation of those replicates that have a value; None with fewer than two."""
    finite = replicates[~np.isnan(replicates)]
    return float(finite.std(ddof=1)) if len(finite) > 1 else None


def _counts(predicted: ndarray, y: ndarray, group: ndarray) -> ndarray:
    """Count samples [G, C, C] of each (group, true class, predicted class)."""
    names, g = np.unique(group, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"fairness needs samples of at least two groups, got {len(names)}")
    classes, numbered = np.unique(np.concatenate([y, predicted]), return_inverse=True)
    true, prediction = np.split(numbered, 2)
    counts = np.zeros((len(names), len(classes), len(classes)), int)
    np.add.at(counts, (g, true, prediction), 1)
    return counts


def _gaps(tables: ndarray, counts: ndarray) -> dict[str, ndarray]:
    """Return the three gaps [...] of ``tables`` [..., G, C, C], over the classes of ``counts``.

    NaN where there are no rates to compare.
    """
    true = counts.sum(axis=(0, 2)) > 0
    predicted = counts.sum(axis=(0, 1)) > 0
    of_true = tables.sum(axis=-1)
    of_predicted = tables.sum(axis=-2)
    hits = np.einsum("...cc->...c", tables)
    total = of_true.sum(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # 0 / 0 is nan
        tpr = _mean_gaps(hits / of_true, true)
        fpr = _mean_gaps((of_predicted - hits) / (total - of_true), true)
    parity = _mean_gaps(of_predicted / total, predicted)
    return {
        "demographic_parity": _largest(parity),
        "equal_opportunity": _largest(tpr),
        "equalised_odds": _largest((tpr + fpr) / 2),
    }


def _largest(gaps: ndarray) -> ndarray:
    """Largest gap [...] of [..., pairs of groups]."""
    return np.fmax.reduce(gaps, axis=-1)


def _mean_gaps(rates: ndarray, occurs: ndarray) -> ndarray:
    """Mean [..., pairs of groups] over the classes that occur of the absolute difference of rates
    [..., G, C].
    """
    first, second = np.triu_indices(rates.shape[-2], 1)  # all pairs
    gap = np.compress(occurs, np.abs(rates[..., first, :] - rates[..., second, :]), axis=-1)
    finite = ~np.isnan(gap)
    with np.errstate(invalid="ignore"):
        return np.where(finite, gap, 0).sum(axis=-1) / finite.sum(axis=-1)
