"""Defenses at several strengths: sweeps, pairs of rows, and each defense at the strength that the
tuning seeds choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from fedbench.core import Analysis, Params
from fedbench.core.metrics import pareto_front
from fedbench.core.report import (
    Block,
    Column,
    Content,
    Figure,
    Note,
    RowDifference,
    RowSummary,
    Section,
    Style,
    Sweep,
    Table,
    Text,
    Value,
    Words,
    value,
)
from fedbench.plugins.analyses.choice import Strengths
from fedbench.plugins.analyses.common import framed, numbers, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


# ---------------------------------------------------------------- hypervolume over a sweep (FedMIA,
# Table 2 and Figure 6)


_ACROSS = 3


class StrengthSweep(Analysis):
    """Reads the accuracy and TF01 of the rows that are one defense at several strengths; asks
    nothing of a run.
    """

    place = "costs"

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """Hypervolume of every sweep against every attack, and its curve; nothing where no defense
        was swept.
        """
        found = section.sweeps()
        if found:
            yield _sweep_table(section, found)
        if any(sweep.points for sweep in found):
            yield Figure("sweep", "Strengths of the defenses", partial(_draw_sweep, section))


def _sweep_table(section: Section, found: Sequence[Sweep]) -> Table:
    rows: tuple[tuple[Content, ...], ...] = tuple(
        (
            s.family,
            Value(mean=len(s.labels)),
            *(Value(mean=s.hypervolumes.get(attack)) for attack in section.attacks),
        )
        for s in found
    )
    caption = Words(
        " (TF01 as a fraction against test error, reference (1, 1), undefended point included; "
        "larger = better defense, weaker "
        "attack)"
    )
    areas = (Column(name=a, direction="higher", digits=4) for a in section.attacks)
    columns = (words("defense"), numbers("strengths", digits=0), *areas)
    return Table(
        title="Hypervolume over the sweep of a defense's strength",
        caption=caption,
        columns=columns,
        rows=rows,
    )


def _draw_sweep(section: Section, style: Style) -> Canvas:
    """TF01 against test error over the strengths of each defense, one panel an attack."""
    found = section.sweeps()
    attacks = [a for a in section.attacks if any(a in s.points for s in found)]
    down = -(-len(attacks) // _ACROSS)
    figure = style.new_figure(3.2 * _ACROSS, 2.7 * down + 0.5)
    axes = figure.subplots(down, _ACROSS, squeeze=False).ravel()
    for axis, attack in zip(axes, attacks, strict=False):
        _panel(axis, style, found, attack)
    for axis in axes[len(attacks) :]:
        axis.remove()
    return framed(
        figure, axes[0], style, section, "Strengths of the defenses (down and left: better)"
    )


def _panel(axis: Axes, style: Style, found: Sequence[Sweep], attack: str) -> None:
    for i, sweep in enumerate(s for s in found if attack in s.points):
        points = 100 * sweep.points[attack]
        points = points[np.argsort(points[:, 1])]
        look = {"color": style.colour(i), "ls": style.dashes(i), "marker": style.marker(i)}
        axis.plot(
            points[:, 1], points[:, 0], ms=4, lw=1.2, label=style.literal(sweep.family), **look
        )
    base = 100 * found[0].undefended[attack]
    axis.plot(base[:, 1], base[:, 0], "ks", ms=5, label="none (undefended)")
    axis.set(title=style.literal(attack), xlabel="test error, %", ylabel="TF01, %")
    axis.grid(alpha=0.3)


# ---------------------------------------------------------------- pairs, and strengths that the
# tuning seeds choose


_DIFFERENCE = (
    numbers("worst case AUC", direction="lower", signed=True),
    words("it leaks"),
    numbers("accuracy", unit="pp", direction="higher", digits=2, scale=100, signed=True),
)


class PairedDifferences(Analysis):
    """The first defense of each pair minus the second, on the same candidates and test samples of
    the same seeds.

    Reads scores and accuracies alone; asks nothing of a run. Verdicts are for all pairs of a
    section together (Holm).
    """

    by_default = False
    place = "costs"

    class Params(Params):
        pairs: list[tuple[str, str]] = Field(
            [], max_length=50, description="labels of two defenses: the first minus the second"
        )

    def draw(self, section: Section, label: str) -> Iterator[Block]:
        """A row a pair; a pair of which a defense is not in the section is left out."""
        found = section.differences(self.params.pairs)
        if found:
            yield _pairs_table(found)


def _pairs_table(found: Sequence[RowDifference]) -> Table:
    rows = tuple(((d.first, Words(" minus "), d.second), *_difference(d)) for d in found)
    caption = Words(
        ", the first minus the second, on the same candidates and seeds; verdicts at 95 % for all "
        "pairs of the section together "
        "(Holm)"
    )
    return Table(
        title="Pairs compared", caption=caption, columns=(words("pair"), *_DIFFERENCE), rows=rows
    )


def _difference(d: RowDifference) -> tuple[Content, ...]:
    return value(d.worst), Words(verdict(d)), value(d.accuracy)


def verdict(d: RowDifference) -> str:
    """Whether the first leaks significantly less or more than the second."""
    if d.worst is None:
        return "n/a"
    if not d.shown:
        return "no difference shown"
    return "less" if d.worst.mean < 0 else "MORE"


class Tuned(Analysis):
    """Chooses a strength of each defense on the suite's ``tuning_seeds`` and reports it on its
    ``seeds``; asks nothing of a run.

    Rows of one defense that differ in their parameters (a ``grid``) are its strengths. *Matched*:
    the most private one with a mean accuracy on the tuning seeds at most ``within`` points below
    the undefended run's. *Best*: the one of largest (1 - advantage) x accuracy there, with the
    advantage 2 AUC - 1 of the worst case.
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
        """What was chosen and by what, what it is worth on the reported seeds, and the plane of
        privacy and utility.
        """
        if not section.families():
            return
        if section.tuning is None:
            yield Note(
                Words("No run of a tuning seed has a record here, so no strength can be chosen.")
            )
            return
        within, found = self.params.within, Strengths.chosen(section.tuning, self.params.within)
        found += [
            Strengths.unknown(name)
            for name in section.families()
            if name not in {c.family for c in found}
        ]
        for at in ("matched", "best"):
            yield chosen_table(section, found, at, within)
        if self.params.compared is not None:
            yield comparison(section, found, self.params.compared)
        yield strengths_table(section.tuning, found)
        if figure := tuned_figure(section, found, within):
            yield figure


At = Literal["matched", "best"]
Point = tuple[float, float]
"""(worst case AUC, test accuracy in percent)"""
# points of accuracy around the undefended run that the second panel shows, unless `within` asks for
# more
_NEAR = 5.0
_WORST = numbers("worst case AUC", direction="lower")
_DELTA = numbers("delta-accuracy", unit="pp", direction="higher", digits=2, scale=100, signed=True)
_ACCURACY = numbers("accuracy", unit="%", direction="higher", digits=1, scale=100)


def chosen_table(section: Section, found: Sequence[Strengths], at: At, within: float) -> Table:
    """Every defense at what was chosen ``at`` matched accuracy, or as the best: numbers of the
    reported seeds alone.
    """
    taken = {c.family: label for c in found if (label := getattr(c, at)) is not None}
    taken |= (plain := {r.label: r.label for r in section.rows if r.undefended})
    summaries = {name: section.summary(label) for name, label in taken.items()}
    known = [s for s in summaries.values() if s is not None]
    ranks, front = section.ranks([s.label for s in known]), on_front(known)
    lines = [
        (
            _rank(ranks.get(taken[name])),
            name,
            Words("undefended") if name in plain else _said(taken[name], s),
            *_numbers(s, front, name in plain),
        )
        for name, s in sorted(summaries.items(), key=lambda item: (_order(item[1]), item[0]))
    ]
    lines += [
        (_rank(None), c.family, none_chosen(c, at, within), *_numbers(None, front))
        for c in found
        if not getattr(c, at)
    ]
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
    title, rule = {
        "matched": (
            "Tuned defenses at matched accuracy",
            f": of the strengths that lose at most {within:g} pp on average, the one of lowest "
            "worst case AUC",
        ),
        "best": (
            "Tuned defenses at their best",
            ": the strength of largest (1 - advantage) x accuracy, with the advantage 2 AUC - 1 of "
            "the worst case",
        ),
    }[at]
    said = "Chosen on the tuning seeds; all numbers are of the reported ones, ranks are among these rows, and overlap is no tie"
    caption = Words(f"{rule}. {said}")
    return Table(title=title, caption=caption, columns=columns, rows=tuple(lines))


def strength_of(label: str) -> str:
    """The strength in a label: ``sigma=0.1`` of ``grad-noise[sigma=0.1]``, else the label itself."""
    inner = label.partition("[")[2].removesuffix("]")
    return inner or label


def none_chosen(choice: Strengths, at: At, within: float) -> Text:
    """Why there is none, and which strength comes nearest."""
    known = [s for s in choice.strengths if s.complete and s.worst is not None]
    deltas = {s.label: s.delta_accuracy.mean for s in known if s.delta_accuracy is not None}
    if at == "best" or not known:
        return Words("none has all its scores on the tuning seeds")
    if not deltas:
        return Words("none can be matched: no undefended run on the tuning seeds")
    near = max(deltas, key=lambda label: deltas[label])
    said = (
        f"none within {within:g} pp; nearest on the tuning seeds, at {100 * deltas[near]:+.2f} pp: "
    )
    return (Words(said), strength_of(near))


def on_front(rows: Sequence[RowSummary]) -> dict[str, bool]:
    """Label -> whether no other row of these is as private and as accurate, and once better."""
    known = [s for s in rows if s.worst is not None and s.accuracy is not None]
    best = pareto_front(
        np.array([(Strengths.advantage(s), 1 - Strengths.accuracy(s)) for s in known]).reshape(
            -1, 2
        )
    )
    return {s.label: bool(b) for s, b in zip(known, best, strict=True)}


def comparison(section: Section, found: Sequence[Strengths], compared: str) -> Block:
    """The choices of one defense minus those of every other one, at matched accuracy and at their
    best.
    """
    own = next((c for c in found if c.family == compared), None)
    if own is None:
        return Note(
            (
                Words("No tuned defense here is called "),
                compared,
                Words(", so none is compared with the others."),
            )
        )
    asked: list[tuple[At, str, str, str]] = []
    for at in ("matched", "best"):
        mine = getattr(own, at)
        asked += [
            (at, c.family, mine, theirs)
            for c in found
            if c is not own and mine and (theirs := getattr(c, at))
        ]
    differences = {
        (d.first, d.second): d for d in section.differences([(a, b) for *_, a, b in asked])
    }
    rows = tuple(
        (Words(at), name, *_difference(d))
        for at, name, a, b in asked
        if (d := differences.get((a, b))) is not None
    )
    columns = (words("chosen"), words("minus"), *_DIFFERENCE)
    caption = (
        Words(": "),
        compared,
        Words(
            " minus each rival, both as chosen, on the same candidates and reported seeds; "
            "verdicts at 95 % for all lines "
            "together (Holm)"
        ),
    )
    said = tuple(
        Words(
            f"It has no strength {'within reach' if at == 'matched' else 'with all scores'}, so "
            "nothing is compared "
            f"{'at matched accuracy' if at == 'matched' else 'at its best'}."
        )
        for at in ("matched", "best")
        if getattr(own, at) is None
    )
    return Table(
        title="One tuned defense against the others",
        caption=caption,
        columns=columns,
        rows=rows,
        footnotes=said,
    )


def strengths_table(tuning: Section, found: Sequence[Strengths]) -> Table:
    """Every strength on the tuning seeds, which the choice was made by."""
    rows: list[tuple[Content, ...]] = []
    for choice in found:
        for s in choice.strengths:
            taken = [at for at in ("matched", "best") if getattr(choice, at) == s.label]
            known = s.complete and s.worst is not None and s.accuracy is not None
            said = ", ".join(taken) if known else "not all its scores"
            area = Value(mean=Strengths.area(s) if known else None)
            rows.append((s.label, value(s.worst), value(s.delta_accuracy), area, Words(said)))
    columns = (
        words("defense"),
        _WORST,
        _DELTA,
        numbers("(1 - advantage) x accuracy", direction="higher"),
        words("chosen"),
    )
    caption = Words(
        f" ({', '.join(map(str, tuning.seeds))}), by which strengths are chosen; no other table "
        "has these numbers"
    )
    return Table(
        title="Strengths on the tuning seeds", caption=caption, columns=columns, rows=tuple(rows)
    )


def _numbers(
    s: RowSummary | None, front: dict[str, bool], undefended: bool = False
) -> tuple[Content, ...]:
    if s is None:
        return (None,) * 5
    return (
        value(s.worst, (Words(" "), s.attack)) if s.worst else None,
        value(s.tf01, (Words(" "), s.tf01_attack)) if s.tf01 else None,
        Words("0") if undefended else value(s.delta_accuracy),
        value(s.accuracy),
        None if s.label not in front else Words("yes" if front[s.label] else "no"),
    )


def _order(s: RowSummary | None) -> float:
    return s.worst.mean if s is not None and s.worst is not None else 2.0


def _said(label: str, s: RowSummary | None) -> Text:
    missing = "no record" if s is None else "" if s.complete else "not all its scores"
    return (
        (strength_of(label), Words(f" ({missing} on the reported seeds)"))
        if missing
        else strength_of(label)
    )


def _rank(found: tuple[int, int] | None) -> Words:
    if found is None:
        return Words("–")  # noqa: RUF001
    low, high = found
    return Words(str(low) if low == high else f"{low}-{high}")


def tuned_figure(section: Section, found: Sequence[Strengths], within: float) -> Figure | None:
    """Two panels, all strengths and those near the undefended run's accuracy; None where nothing
    can be placed.
    """
    lines = {name: points_of(section, labels) for name, labels in section.families().items()}
    if not any(lines.values()):
        return None
    return Figure(
        "tuned",
        "Tuned defenses: privacy against utility",
        partial(_draw, section, lines, found, within),
    )


def points_of(section: Section, labels: Sequence[str]) -> dict[str, Point]:
    """Label -> point, of the rows that have one, from the most private on: the order of the line."""
    found = {label: p for label in labels if (p := _point(section.summary(label))) is not None}
    return dict(sorted(found.items(), key=lambda item: (*item[1], item[0])))


def _point(s: RowSummary | None) -> Point | None:
    return (
        None
        if s is None or s.worst is None or s.accuracy is None
        else (s.worst.mean, 100 * s.accuracy.mean)
    )


def _draw(
    section: Section,
    lines: dict[str, dict[str, Point]],
    found: Sequence[Strengths],
    within: float,
    style: Style,
) -> Canvas:
    figure = style.new_figure(11, 5.2)
    whole, near = figure.subplots(1, 2)
    plain = {
        r.label: p
        for r in section.rows
        if (r.undefended or r.floor) and (p := _point(section.summary(r.label)))
    }
    base = next((plain[r.label] for r in section.rows if r.undefended and r.label in plain), None)
    undefended = {r.label for r in section.rows if r.undefended}
    for axis in (whole, near):
        _strengths(axis, style, lines)
        _marks(axis, lines, found)
        for i, (label, point) in enumerate(plain.items()):
            look = (
                {"color": "black", "marker": "s"}
                if label in undefended
                else {"color": "0.45", "marker": "xd+"[i % 3]}
            )
            name = style.literal(label) + (" (undefended)" if label in undefended else " (floor)")
            axis.plot(*point, ls="", ms=7, zorder=5, label=name, **look)
        axis.set_xlabel("worst-case AUC, outside non-members (left: more private)")
        axis.axvline(0.5, color="0.6", lw=0.8, ls=":")
        axis.grid(True, color="0.92", lw=0.6)
    whole.set(title="all strengths", ylabel="test accuracy, % (up: more useful)")
    near.set(title="near the undefended run")
    if base is not None:
        _band(
            (whole, near), base[1], within, [p[1] for own in lines.values() for p in own.values()]
        )
    return framed(figure, whole, style, section, "Tuned defenses on the reported seeds")


def _strengths(axis: Axes, style: Style, lines: dict[str, dict[str, Point]]) -> None:
    for i, (family, points) in enumerate(lines.items()):
        if points:
            x, y = np.array(list(points.values())).T
            axis.plot(
                x,
                y,
                color=style.colour(i),
                ls=style.dashes(i),
                marker=style.marker(i),
                ms=4,
                lw=1.1,
                zorder=3,
                label=style.literal(family),
            )


def _marks(axis: Axes, lines: dict[str, dict[str, Point]], found: Sequence[Strengths]) -> None:
    """A ring around what was chosen at matched accuracy, a square around the best: one may wear
    both.
    """
    marks = (
        ("chosen at matched accuracy", "o", 11, {c.matched for c in found}),
        ("chosen as the best", "s", 14, {c.best for c in found}),
    )
    for label, marker, size, taken in marks:
        at = np.array(
            [p for own in lines.values() for name, p in own.items() if name in taken]
        ).reshape(-1, 2)
        axis.plot(
            at[:, 0],
            at[:, 1],
            ls="",
            marker=marker,
            ms=size,
            mfc="none",
            mec="black",
            mew=0.9,
            zorder=4,
            label=label,
        )


def _band(axes: tuple[Axes, Axes], base: float, within: float, accuracies: Sequence[float]) -> None:
    """Shade where accuracy is matched, and show the second panel from a few points below the
    undefended run on.
    """
    top = max([base, *accuracies]) + 1
    for axis in axes:
        axis.axhspan(
            base - within,
            top,
            color="0.93",
            zorder=0,
            label=f"at most {within:g} pp below undefended",
        )
    axes[0].set_ylim(top=top)
    axes[1].set_ylim(base - max(_NEAR, 2 * within), top)
