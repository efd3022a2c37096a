"""Colours, dashes and markers that every figure of a board shares (``fedbench.core.Style``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedbench.core.words import printable
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.sections import BoardSection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito's palette, distinguishable with every common colour blindness; dashes and markers
# repeat the distinction. 7 colours and 4 dashes share no factor, so 28 defenses differ in at least
# one of them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F6A00")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = "oD^vP*X<>ph"


def colour(i: int) -> str:
    """Return the colour of the i-th defense, distinguishable with every common colour blindness."""
    return COLOURS[i % len(COLOURS)]


def dashes(i: int) -> Any:
    """Return a matplotlib line style."""
    return DASHES[i % len(DASHES)]


def marker(i: int) -> str:
    """Return a matplotlib marker."""
    return MARKERS[i % len(MARKERS)]


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def literal(text: str, limit: int = 40) -> str:
    """Text that matplotlib draws character by character: no mathematics, and never hidden by a
    leading underscore.
    """
    text = printable(text)[:limit].replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def row_styles(section: BoardSection) -> dict[str, dict[str, Any]]:
    """Look of each row with scores, the same in all figures of a section; the undefended row is
    black.
    """
    styles: dict[str, dict[str, Any]] = {}
    defended = sorted(r.label for r in section.rows if not r.undefended)
    for i, label in enumerate(defended):
        look = {"color": colour(i), "ls": dashes(i), "marker": marker(i)}
        styles[label] = {**look, "lw": 1.5, "zorder": 3}
    black = {"color": "black", "ls": "-", "marker": "s", "lw": 1.8, "zorder": 2}
    scored = [row for row in section.rows if row.mean("auc", "mix", section.attacks)]
    return {row.label: styles.get(row.label, black) for row in scored}


def legend_name(row: DefenseRow) -> str:
    """A label for a legend: drawn as it is, and marked when it is the undefended row."""
    return literal(row.label) + (" (undefended)" if row.undefended else "")


def title_of(section: BoardSection) -> str:
    """Return where the figure belongs."""
    return literal(section.where, 90)
