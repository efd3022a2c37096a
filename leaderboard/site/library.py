"""The parts of a site that are not ours: the plotting library's files, out of its installed Python package, and licences."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files

from fedbench.core import UserError

INSTALL = "pip install 'fedbench[html]'"
_PLOTS, _PLOTS_FOLDER = "bokeh", "server/static/js"
_TEMPLATES = "jinja2"


@dataclass(frozen=True)
class Part:
    """Something that a site is made of. ``text``: of its licence."""

    name: str
    version: str
    what: str
    licence: str
    text: str = ""


def library(names: list[str]) -> dict[str, bytes]:
    """The plotting library's files of these names. Raises ``UserError`` where it is not installed."""
    try:
        folder = files(_PLOTS) / _PLOTS_FOLDER
        return {name: (folder / name).read_bytes() for name in names}
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise UserError(f"--html needs {_PLOTS} with its JavaScript, which is not installed: {INSTALL}") from error


def parts() -> list[Part]:
    """What a site is made of."""
    own = _part("fedbench", "These pages, their scripts and their styles.")
    return [own, _part(_PLOTS, "The interactive figures: its JavaScript is in static/, as its Python package has it.")]


def _part(distribution: str, what: str) -> Part:
    found = metadata.distribution(distribution)
    about = found.metadata
    licence = next((about[name] for name in ("License-Expression", "License") if name in about), "see below")
    texts = {f.read_text() for f in found.files or () if f.name.upper().startswith(("LICENSE", "LICENCE", "COPYING"))}
    return Part(about["Name"], found.version, what, licence.splitlines()[0], "\n\n".join(sorted(texts)))
