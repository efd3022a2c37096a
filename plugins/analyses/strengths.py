"""Pairs of rows, and defenses at the strengths that tuning seeds choose."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from pydantic import Field

from fedbench.core import Analysis, Params
from fedbench.core.metrics import pareto_front
from fedbench.core.report import (
    Block,
    Content,
    Figure,
    Note,
    Row,
    RowDifference,
    RowSummary,
    Section,
    Style,
    Table,
    Text,
    Value,
    Words,
    value,
)
from fedbench.plugins.analyses.choice import Strengths
from fedbench.plugins.analyses.common import framed, grid, numbers, stroke, table, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


# ---------------------------------------------------------------- pairs


_DIFFERENCE = (
    numbers("worst case AUC", direction="lower", signed=True),
    words("it leaks"),
    numbers("accuracy", unit="pp", direction="higher", digits=2, scale=100, signed=True),
)


class PairedDifferences(Analysis):
    """Difference of the first defense of each pair and the second, on the same candidates and test
    samples of the same seeds.

    Reads scores and accuracies alone; asks nothing of a run. Verdicts are for all pairs of a
    section together (Holm). A task with another utility than accuracy has no column for it.
    """

    by_default = False
    place = "costs"

    class Params(Params):
        pairs: list[tuple[str, str]] = Field(
            [], max_length=50, description="labels of two defenses: the first minus the second"
        )

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw a row a pair of which both defenses are in the section."""
        differences = section.differences(self.params.pairs)
        if differences:
            yield _pairs_table(differences, section.measures_accuracy)


def _pairs_table(differences: Sequence[RowDifference], measures_accuracy: bool) -> Table:
    columns = _DIFFERENCE if measures_accuracy else _DIFFERENCE[:-1]
    rows: list[tuple[Content, ...]] = []
    for d in differences:
        numbers_of_pair = _difference(d)[: len(columns)]
        rows.append(((d.first, Words(" minus "), d.second), *numbers_of_pair))
    caption = (
        ", the first minus the second, on the same candidates and seeds; verdicts at 95 % for all "
        "pairs of the section together (Holm)"
    )
    return table("Pairs compared", caption, (words("pair"), *columns), rows)


def _difference(d: RowDifference) -> tuple[Content, ...]:
    return value(d.worst), Words(verdict(d)), value(d.accuracy)


def verdict(d: RowDifference) -> str:
    """Say whether the first leaks significantly less or more than the second."""
    if d.worst is None:
        return "n/a"
    if not d.shown:
        return "no difference shown"
    return "less" if d.worst.mean < 0 else "MORE"


# ---------------------------------------------------------------- strengths by tuning seeds


class Tuned(Analysis):
    """Each defense at the strength that the suite's ``tuning_seeds`` choose, reported on its
    ``seeds``; asks nothing of a run.

    Rows of one defense that differ in their parameters (a ``grid``) are its strengths. *Matched*:
    the most private one with a mean accuracy on the tuning seeds at most ``within`` points below
    the undefended run's. *Best*: the one of largest (1 - advantage) x accuracy there, with the
    advantage 2 AUC - 1 of the worst case. A task with another utility than accuracy has no choice.
    """

    by_default = False
    needs_tuning_seeds = True
    place = "costs"

    class Params(Params):
        within: float = Field(
            1.0,
            ge=0,
            le=100,
            description="accuracy that a matched strength may lose, percentage points",
        )
        compared: str | None = Field(
            None, description="the defense with which every other one is compared"
        )

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Draw what was chosen and by what, what it is worth on the reported seeds, and the plane
        of privacy and utility.
        """
        families = section.families()
        tuning = section.tuning
        if not families:
            return
        if not section.measures_accuracy:
            text = "Strengths are chosen by accuracy, which this task does not measure."
            yield Note(Words(text))
            return
        if tuning is None:
            text = "No run of a tuning seed has a record here, so no strength can be chosen."
            yield Note(Words(text))
            return
        within = self.params.within
        compared = self.params.compared
        choices = Strengths.chosen(tuning, within)
        unknown = families.keys() - {choice.family for choice in choices}
        choices += [Strengths.unknown(name) for name in families if name in unknown]
        for kind in KINDS:
            yield chosen_table(section, choices, kind, within)
        if compared is not None:
            yield comparison(section, choices, compared)
        yield strengths_table(tuning, choices)
        figure = tuned_figure(section, choices, within)
        if figure:
            yield figure


Kind = Literal["matched", "best"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Point = tuple[float, float]  # worst case AUC, test accuracy in percent
_NEAR = 5.0  # points of accuracy that the second panel shows at least around the undefended run
_WORST = numbers("worst case AUC", direction="lower")
_DELTA = numbers("delta-accuracy", unit="pp", direction="higher", digits=2, scale=100, signed=True)
_ACCURACY = numbers("accuracy", unit="%", direction="higher", digits=1, scale=100)
_TITLES = {
    "matched": "Tuned defenses at matched accuracy",
    "best": "Tuned defenses at their best",
}
_RULES = {
    "matched": ": of the strengths that lose at most {within:g} pp on average, the one of lowest "
    "worst case AUC",
    "best": ": the strength of largest (1 - advantage) x accuracy, with the advantage 2 AUC - 1 of "
    "the worst case",
}


def chosen_table(
    section: Section, choices: Sequence[Strengths], kind: Kind, within: float
) -> Table:
    """Tabulate every defense at its ``kind`` of choice, by numbers of the reported seeds alone."""
    labels = {c.family: label for c in choices if (label := getattr(c, kind)) is not None}
    rows = list(_chosen_rows(section, labels))
    for choice in choices:
        if choice.family not in labels:
            why = none_chosen(choice, kind, within)
            rows.append((_rank(None), choice.family, why, *[None] * 5))
    columns = (
        words("#"),
        words("defense"),
        words("strength"),
        _WORST,
        numbers("worst TF01", unit="%", direction="lower", digits=2),
        _DELTA,
        _ACCURACY,
        words("on the front"),
    )
    caption = (
        f"{_RULES[kind].format(within=within)}. Chosen on the tuning seeds; all numbers are of the "
        "reported ones, ranks are among these rows, and overlap is no tie"
    )
    return table(_TITLES[kind], caption, columns, rows)


def _chosen_rows(section: Section, labels: dict[str, str]) -> Iterator[tuple[Content, ...]]:
    """Yield the rows of chosen ``labels`` by family, and of the undefended federation."""
    undefended = [row.label for row in section.rows if row.undefended]
    labels = labels | {label: label for label in undefended}
    summaries = {name: section.summary(label) for name, label in labels.items()}
    summarised = [s for s in summaries.values() if s is not None]
    ranks = section.ranks([s.label for s in summarised])
    front = on_front(summarised)
    for name, s in sorted(summaries.items(), key=lambda item: (_order(item[1]), item[0])):
        strength: Text = Words("undefended")
        if name not in undefended:
            strength = _strength(labels[name], s)
        cells = _numbers(s, front, name in undefended)
        yield _rank(ranks.get(labels[name])), name, strength, *cells


def strength_of(label: str) -> str:
    """Return the strength in a label: ``sigma=0.1`` of ``grad-noise[sigma=0.1]``, else it all."""
    inner = label.partition("[")[2].removesuffix("]")
    return inner or label


def none_chosen(choice: Strengths, kind: Kind, within: float) -> Text:
    """Say why there is none, and which strength comes nearest."""
    complete = [s for s in choice.strengths if s.complete and s.worst is not None]
    if kind == "best" or not complete:
        return Words("none has all its scores on the tuning seeds")
    deltas = {s.label: s.delta_accuracy.mean for s in complete if s.delta_accuracy is not None}
    if not deltas:
        return Words("none can be matched: no undefended run on the tuning seeds")
    nearest = max(deltas, key=deltas.__getitem__)
    distance = f"{100 * deltas[nearest]:+.2f} pp: "
    text = f"none within {within:g} pp; nearest on the tuning seeds, at {distance}"
    return (Words(text), strength_of(nearest))


def on_front(rows: Sequence[RowSummary]) -> dict[str, bool]:
    """Map a label to whether no other row is as private and as accurate, and once better."""
    placed = [s for s in rows if s.worst is not None and s.accuracy is not None]
    points = [(Strengths.advantage(s), 1 - Strengths.accuracy(s)) for s in placed]
    front = pareto_front(np.array(points).reshape(-1, 2))
    return {s.label: bool(best) for s, best in zip(placed, front, strict=True)}


def comparison(section: Section, choices: Sequence[Strengths], compared: str) -> Block:
    """Subtract every other defense's choices from those of one."""
    choice = next((c for c in choices if c.family == compared), None)
    if choice is None:
        called = "No tuned defense here is called "
        rest = ", so none is compared with the others."
        return Note((Words(called), compared, Words(rest)))
    footnotes = [Words(_NOT_COMPARED[kind]) for kind in KINDS if getattr(choice, kind) is None]
    pairs = list(_rivals(choices, choice))
    differences = {(d.first, d.second): d for d in section.differences([p for *_, p in pairs])}
    rows = [
        (Words(kind), family, *_difference(differences[pair]))
        for kind, family, pair in pairs
        if pair in differences
    ]
    text = (
        " minus each rival, both as chosen, on the same candidates and reported seeds; verdicts at "
        "95 % for all lines together (Holm)"
    )
    title = "One tuned defense against the others"
    caption = (Words(": "), compared, Words(text))
    columns = (words("chosen"), words("minus"), *_DIFFERENCE)
    return table(title, caption, columns, rows, footnotes)


def _rivals(
    choices: Sequence[Strengths], choice: Strengths
) -> Iterator[tuple[Kind, str, tuple[str, str]]]:
    """Yield (kind, family, labels) of a choice and of each other one."""
    for kind in KINDS:
        label = getattr(choice, kind)
        for rival in choices:
            rival_label = getattr(rival, kind)
            if rival is not choice and label and rival_label:
                yield kind, rival.family, (label, rival_label)


_NOT_COMPARED = {
    "matched": "It has no strength within reach, so nothing is compared at matched accuracy.",
    "best": "It has no strength with all scores, so nothing is compared at its best.",
}


def strengths_table(tuning: Section, choices: Sequence[Strengths]) -> Table:
    """Tabulate every strength on the tuning seeds, which the choice was made by."""
    rows: list[tuple[Content, ...]] = []
    for choice in choices:
        for s in choice.strengths:
            area = None
            chosen = "not all its scores"
            if s.complete and s.worst is not None and s.accuracy is not None:
                area = Strengths.area(s)
                chosen = ", ".join(kind for kind in KINDS if getattr(choice, kind) == s.label)
            cells = value(s.worst), value(s.delta_accuracy), Value(mean=area)
            rows.append((s.label, *cells, Words(chosen)))
    columns = (
        words("defense"),
        _WORST,
        _DELTA,
        numbers("(1 - advantage) x accuracy", direction="higher"),
        words("chosen"),
    )
    seeds = ", ".join(map(str, tuning.seeds))
    caption = f" ({seeds}), by which strengths are chosen; no other table has these numbers"
    return table("Strengths on the tuning seeds", caption, columns, rows)


def _numbers(s: RowSummary | None, front: dict[str, bool], undefended: bool) -> tuple[Content, ...]:
    if s is None:
        return (None,) * 5
    on_it = None
    if s.label in front:
        on_it = Words("yes" if front[s.label] else "no")
    return (
        value(s.worst, (Words(" "), s.attack)) if s.worst else None,
        value(s.tf01, (Words(" "), s.tf01_attack)) if s.tf01 else None,
        Words("0") if undefended else value(s.delta_accuracy),
        value(s.accuracy),
        on_it,
    )


def _order(s: RowSummary | None) -> float:
    return s.worst.mean if s is not None and s.worst is not None else 2.0


def _strength(label: str, s: RowSummary | None) -> Text:
    if s is not None and s.complete:
        return strength_of(label)
    missing = "no record" if s is None else "not all its scores"
    return (strength_of(label), Words(f" ({missing} on the reported seeds)"))


def _rank(rank: tuple[int, int] | None) -> Words:
    if rank is None:
        return Words("–")  # noqa: RUF001
    low, high = rank
    return Words(str(low) if low == high else f"{low}-{high}")


Lines = dict[str, dict[str, Point]]  # family -> label -> point


def tuned_figure(section: Section, choices: Sequence[Strengths], within: float) -> Figure | None:
    """Draw all strengths and those near the undefended run's accuracy; None without a point."""
    lines = {name: points_of(section, labels) for name, labels in section.families().items()}
    if not any(lines.values()):
        return None
    drawing = partial(_draw, section, lines, choices, within)
    return Figure("tuned", "Tuned defenses: privacy against utility", drawing)


def points_of(section: Section, labels: Iterable[str]) -> dict[str, Point]:
    """Map labels to the points that they have, from the most private on: the order of the line."""
    points = {}
    for label in labels:
        s = section.summary(label)
        if s is not None and s.worst is not None and s.accuracy is not None:
            points[label] = s.worst.mean, 100 * s.accuracy.mean
    return dict(sorted(points.items(), key=lambda item: (*item[1], item[0])))


def _draw(
    section: Section, lines: Lines, choices: Sequence[Strengths], within: float, style: Style
) -> Canvas:
    figure = style.new_figure(11, 5.2)
    axes = figure.subplots(1, 2)
    plain = [row for row in section.rows if row.undefended or row.floor]
    points = points_of(section, [row.label for row in plain])
    for axis in axes:
        _strengths(axis, style, lines)
        _marks(axis, lines, choices)
        drawn = [row for row in plain if row.label in points]
        for i, row in enumerate(drawn):
            _plain(axis, style, row, points[row.label], i)
        axis.set_xlabel("worst-case AUC, outside non-members (left: more private)")
        axis.axvline(0.5, color="0.6", lw=0.8, ls=":")
        grid(axis)
    axes[0].set(title="all strengths", ylabel="test accuracy, % (up: more useful)")
    axes[1].set(title="near the undefended run")
    base = [points[row.label] for row in plain if row.undefended and row.label in points]
    if base:
        _band(axes, base[0][1], within, _points(lines)[:, 1].max())
    return framed(figure, axes[0], style, section, "Tuned defenses on the reported seeds")


def _points(lines: Lines, labels: Collection[str | None] | None = None) -> np.ndarray:
    """Points [n, 2] of all lines, or of some labels."""
    points = []
    for line in lines.values():
        points += [point for label, point in line.items() if labels is None or label in labels]
    return np.array(points).reshape(-1, 2)


def _plain(axis: Axes, style: Style, row: Row, point: Point, i: int) -> None:
    """Mark the undefended run or a floor."""
    look: dict[str, Any] = {
        "color": "0.45",
        "marker": "xd+"[i % 3],
        "label": f"{style.literal(row.label)} (floor)",
    }
    if row.undefended:
        label = f"{style.literal(row.label)} (undefended)"
        look = {"color": "black", "marker": "s", "label": label}
    axis.plot(*point, ls="", ms=7, zorder=5, **look)


def _strengths(axis: Axes, style: Style, lines: Lines) -> None:
    for i, (family, points) in enumerate(lines.items()):
        if points:
            x, y = np.array(list(points.values())).T
            look = stroke(style, i) | {"marker": style.marker(i), "ms": 4, "lw": 1.1, "zorder": 3}
            axis.plot(x, y, label=style.literal(family), **look)


def _marks(axis: Axes, lines: Lines, choices: Sequence[Strengths]) -> None:
    """Draw a ring around what was chosen at matched accuracy, a square around the best."""
    marks = (
        ("chosen at matched accuracy", "o", 11, {choice.matched for choice in choices}),
        ("chosen as the best", "s", 14, {choice.best for choice in choices}),
    )
    look: dict[str, Any] = {"ls": "", "mfc": "none", "mec": "black", "mew": 0.9, "zorder": 4}
    for label, marker, size, chosen in marks:
        x, y = _points(lines, chosen).T
        axis.plot(x, y, marker=marker, ms=size, label=label, **look)


def _band(axes: Sequence[Axes], base: float, within: float, highest: float) -> None:
    """Shade where accuracy is matched, and show the second panel from a few points below the
    undefended run on.
    """
    top = max(base, highest) + 1
    label = f"at most {within:g} pp below undefended"
    for axis in axes:
        axis.axhspan(base - within, top, color="0.93", zorder=0, label=label)
    axes[0].set_ylim(top=top)
    axes[1].set_ylim(base - max(_NEAR, 2 * within), top)
