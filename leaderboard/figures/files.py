"""A drawn figure as files, whose names hold nothing of a record but letters, digits and hyphens."""

from __future__ import annotations

import hashlib
import io
import re
from typing import TYPE_CHECKING

from fedbench.core.contract.board import Figure, Image, Text, Words
from fedbench.leaderboard.figures import style
from fedbench.leaderboard.statistics.sections import Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_METADATA: dict[str, dict[str, None]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


def image_of(figure: Figure, section: Section) -> Image:
    """The figure, drawn here and now and saved as PNG and SVG."""
    name = name_of(figure, section)
    return Image(alt_of(figure, section), {f"{name}.{suffix}": content for suffix, content in drawn_files(figure).items()})


def drawn_files(figure: Figure) -> dict[str, bytes]:
    """Suffix -> content, the first of them the one to show."""
    canvas = figure.draw(style)
    return {suffix: _saved(canvas, suffix) for suffix in _METADATA}


def name_of(figure: Figure, section: Section) -> str:
    """The name of its files, without a suffix."""
    return f"{slug(figure.kind)}-{stem(section)}"


def alt_of(figure: Figure, section: Section) -> Text:
    """What it shows, and of which section."""
    return Words(f"{figure.title}: "), section.where


def stem(section: Section) -> str:
    """A file name from names that may hold anything; two sections never share one."""
    key = (section.suite, section.setting, section.coalition, section.view)
    return "-".join([*map(slug, key[1:]), hashlib.sha256("\0".join(key).encode()).hexdigest()[:6]])


def slug(text: str) -> str:
    """Letters, digits and hyphens only."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "x"


def _saved(canvas: Canvas, suffix: str) -> bytes:
    """The file's bytes, without date or version, so that they can be compared and committed."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(canvas)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "fedbench"}):
        canvas.savefig(buffer, format=suffix, metadata=_METADATA[suffix])
    return buffer.getvalue()
