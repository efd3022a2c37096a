"""What analyses share: a client's members and outsiders, findings over seeds, columns, and the
frame of a figure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.core import Findings, FinishedRun
from fedbench.core.metrics import combined_interval, t_interval
from fedbench.core.report import Column, Entry, Interval, Row, Section, Style, Value, Words, value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


# ---------------------------------------------------------------- samples


def clients_of(run: FinishedRun) -> list[int]:
    """Honest clients that have both members and outsiders among the audited samples."""
    honest = (k for k in range(run.clients) if k not in run.malicious)
    return [k for k in honest if members_of(run, k).any() and outsiders_of(run, k).any()]


def members_of(run: FinishedRun, client: int) -> np.ndarray:
    """[N] bool: the audited samples that the client trained on."""
    return run.pool == client


def outsiders_of(run: FinishedRun, client: int) -> np.ndarray:
    """[N] bool, samples without training: the client's own test part or, where clients have none,
    the hold-out.
    """
    if (run.outsider_of >= 0).any():
        return (run.outsider_of == client) & (run.pool == -1)
    return run.pool == -1


def advantage(members: np.ndarray, outsiders: np.ndarray) -> float:
    """max |TPR - FPR| over all thresholds on one number; 0 where a side is empty."""
    if not len(members) or not len(outsiders):
        return 0.0
    at = np.concatenate([members, outsiders])
    below = [
        np.searchsorted(np.sort(side), at, side="right") / len(side)
        for side in (members, outsiders)
    ]
    return float(np.abs(below[0] - below[1]).max())


# ---------------------------------------------------------------- findings over seeds


def seeds_of(
    section: Section, source: Row | Entry, label: str, name: str | None = None
) -> list[Findings]:
    """The findings of every seed that has some, or that has an array ``name``."""
    found = (source.findings(label, seed) for seed in section.seeds)
    return [f for f in found if f is not None and (name is None or name in f.arrays)]


def over_seeds(values: Iterable[float | None]) -> Value:
    """Mean with its 95 % interval; of one value itself. None does not count."""
    known = [float(v) for v in values if v is not None]
    return value(t_interval(known)) if len(known) > 1 else Value(mean=known[0] if known else None)


def interval_of(found: Iterable[Findings], name: str) -> Interval | None:
    """Mean over seeds of a number with its error, and the 95 % interval, never narrower than those
    errors make it.
    """
    numbers = [f.numbers[name] for f in found if name in f.numbers]
    known = [(n.value, n.error) for n in numbers if n.value is not None and n.error is not None]
    return combined_interval([v for v, _ in known], [e for _, e in known]) if known else None


# ---------------------------------------------------------------- tables and figures


def words(name: str) -> Column:
    """A column of words."""
    return Column(name=Words(name), align="left")


def numbers(name: str, **how: Any) -> Column:
    """A column of numbers; ``how``: as of :class:`Column`."""
    return Column(name=Words(name), **how)


def shown(label: str, wanted: tuple[str, ...]) -> bool:
    """Whether a board shows the row: all are shown where no labels are ``wanted``."""
    return not wanted or label in wanted


def stroke(style: Style, row: Row, i: int) -> dict[str, Any]:
    """Colour and dashes of a row's line; the undefended one is black."""
    return {"color": "black" if row.undefended else style.colour(i), "ls": style.dashes(i)}


def in_order(section: Section) -> list[Row]:
    """The rows in the order of the colours of a section's figures."""
    return sorted(section.rows, key=lambda r: (r.undefended, r.label))


def framed(
    figure: Canvas, axis: Axes, style: Style, section: Section, title: str, ncols: int = 4
) -> Canvas:
    """The figure with a legend of what ``axis`` shows, and a title that ends with the section's
    name.
    """
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
