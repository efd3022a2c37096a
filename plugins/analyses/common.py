"""Helpers of analyses: a client's members and outsiders, findings over seeds, columns, frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from fedbench.core import Findings, FinishedRun, Judgement
from fedbench.core.metrics import auc, combined_interval, t_interval
from fedbench.core.report import (
    Column,
    Content,
    Entry,
    Interval,
    Row,
    Section,
    Style,
    Table,
    Text,
    Value,
    Words,
    value,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


# ---------------------------------------------------------------- samples


def clients_of(run: FinishedRun) -> list[int]:
    """Honest clients that have both members and outsiders among the audited samples."""
    honest = [k for k in range(run.clients) if k not in run.malicious]
    return [k for k in honest if members_of(run, k).any() and outsiders_of(run, k).any()]


def members_of(run: FinishedRun, client: int) -> ndarray:
    """Mask [N] of the audited samples that the client trained on."""
    return run.pool == client


def insiders_of(run: FinishedRun, client: int) -> ndarray:
    """Mask [N] of the audited samples that other clients trained on."""
    return (run.pool >= 0) & (run.pool != client)


def outsiders_of(run: FinishedRun, client: int) -> ndarray:
    """Mask [N] of samples without training: the client's own test part, or else the hold-out."""
    if (run.outsider_of >= 0).any():
        return (run.outsider_of == client) & (run.pool == -1)
    return run.pool == -1


def advantage(members: ndarray, outsiders: ndarray) -> float:
    """Return max |TPR - FPR| over all thresholds on one number; 0 where a side is empty."""
    if not len(members) or not len(outsiders):
        return 0.0
    thresholds = np.concatenate([members, outsiders])
    below = np.searchsorted(np.sort(members), thresholds, side="right") / len(members)
    below -= np.searchsorted(np.sort(outsiders), thresholds, side="right") / len(outsiders)
    return float(np.abs(below).max())


def separation(members: ndarray, outsiders: ndarray) -> float:
    """Return the AUC of scores of members against those of outsiders."""
    scores = np.concatenate([members, outsiders])
    return float(auc(scores, np.arange(len(scores)) < len(members)))


def finite_mean(values: Iterable[float]) -> float | None:
    """Mean of the values that are finite; None without any."""
    finite = [v for v in values if np.isfinite(v)]
    return float(np.mean(finite)) if finite else None


def left_out(judgement: Judgement | None, attacks: tuple[str, ...]) -> bool:
    """Tell whether an analysis that is asked for some ``attacks`` alone has no findings here."""
    return bool(attacks) and (judgement is None or judgement.attack not in attacks)


# ---------------------------------------------------------------- findings over seeds


def seeds_of(
    section: Section, source: Row | Entry, label: str, name: str | None = None
) -> list[Findings]:
    """Findings of every seed that has some, or that has an array ``name``."""
    by_seed = [source.findings(label, seed) for seed in section.seeds]
    return [f for f in by_seed if f is not None and (name is None or name in f.arrays)]


def arrays_of(
    section: Section, source: Row | Entry, label: str, name: str
) -> list[Mapping[str, ndarray]]:
    """Arrays of every seed that has one of this ``name``."""
    return [findings.arrays for findings in seeds_of(section, source, label, name)]


def by_row(section: Section, label: str, name: str | None = None) -> dict[str, list[Findings]]:
    """Map a row's label to the findings of its seeds or, where an analysis looks at some attacks
    alone, of the first one with any; rows without any are left out.
    """
    every_row = {}
    for row in section.rows:
        sources: list[Row | Entry] = [row, *row.entries.values()]
        findings = (seeds_of(section, source, label, name) for source in sources)
        every_row[row.label] = next(filter(None, findings), [])
    return {row: findings for row, findings in every_row.items() if findings}


def over_seeds(values: Iterable[float | None]) -> Value:
    """Mean with its 95 % interval; a single value as it is. None does not count."""
    numbers = [float(v) for v in values if v is not None]
    if len(numbers) > 1:
        return value(t_interval(numbers))
    return Value(mean=numbers[0] if numbers else None)


def interval_of(findings: Iterable[Findings], name: str) -> Interval | None:
    """Mean over seeds of a number with its error, and the 95 % interval, never narrower than those
    errors make it.
    """
    values = []
    errors = []
    for number in (f.numbers[name] for f in findings if name in f.numbers):
        if number.value is not None and number.error is not None:
            values.append(number.value)
            errors.append(number.error)
    return combined_interval(values, errors) if values else None


# ---------------------------------------------------------------- tables and figures


def words(name: str) -> Column:
    """Column of words."""
    return Column(name=Words(name), align="left")


def numbers(name: str, **how: Any) -> Column:
    """Column of numbers; ``how``: arguments of :class:`Column`."""
    return Column(name=Words(name), **how)


def shown(label: str, wanted: tuple[str, ...]) -> bool:
    """Tell whether a board shows the row: all are shown where no labels are ``wanted``."""
    return not wanted or label in wanted


def table(
    title: str,
    caption: str | Text,
    columns: Iterable[Column],
    rows: Iterable[Iterable[Content]],
    footnotes: Iterable[Text] = (),
) -> Table:
    """Table of a board; a ``caption`` in one string is the program's text."""
    return Table(
        title=title,
        caption=Words(caption) if isinstance(caption, str) else caption,
        columns=tuple(columns),
        rows=tuple(map(tuple, rows)),
        footnotes=tuple(footnotes),
    )


def colour(style: Style, row: Row, i: int) -> str:
    """Colour of a row's line; the undefended one is black."""
    return "black" if row.undefended else style.colour(i)


def stroke(style: Style, i: int) -> dict[str, Any]:
    """Colour and dashes of line ``i``."""
    return {"color": style.colour(i), "ls": style.dashes(i)}


def grid(axis: Axes) -> None:
    """Draw the light grid of a panel."""
    axis.grid(True, color="0.92", lw=0.6)


def in_order(section: Section) -> list[Row]:
    """Rows in the order of the colours of a section's figures."""
    return sorted(section.rows, key=lambda r: (r.undefended, r.label))


def framed(
    figure: Canvas, axis: Axes, style: Style, section: Section, title: str, ncols: int = 4
) -> Canvas:
    """Give the figure a legend of what ``axis`` shows, and a title with the section's name."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=min(ncols, len(handles)),
            frameon=False,
            fontsize=8,
        )
    figure.suptitle(f"{title}, {style.literal(section.where, 90)}", fontsize=10)
    return figure
