"""Colours, dashes and markers that every figure of a board shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito's palette, told apart with every common colour blindness; dashes and markers repeat the distinction.
# 7 colours and 4 dashes share no factor, so 28 defenses differ in at least one of them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F6A00")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MARKERS = "oD^vP*X<>ph"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, imported late."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def literal(text: str, limit: int = 40) -> str:
    """Text that matplotlib draws character by character: no mathematics, and never hidden by a leading underscore."""
    text = "".join(c if c.isprintable() else " " for c in text)[:limit].replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
