"""The files of a new package: templates, filled in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from string import Template

from fedbench.core.registry.kinds import BASES, HOOKS
from fedbench.core.scaffold.names import Names

_SUFFIX = ".in"
_HIDDEN = "dot_"  # a template of a hidden file: wheels and globs leave hidden ones out


@dataclass(frozen=True)
class About:
    """What the texts of a package say of its kind. ``summary``: its line in `fedbench list`; ``row``: what a board shows."""

    summary: str
    row: str


KINDS = {
    "defense": About(
        "upload a random share of the update's entries",
        "a row of its own: how well each attack does against members that use it, and what it costs in accuracy and time.",
    ),
    "attack": About(
        "mean margin of the label over the last audited rounds",
        "a column of its own: how well it tells members from others, defense by defense.",
    ),
    "dataset": About(
        "noisy arms of a spiral, generated",
        "a section of its own: all defenses and attacks of the suite on its data, with its licence and digest in the records.",
    ),
    "model": About(
        "fully connected network with layer normalisation",
        "a section of its own: all defenses and attacks of the suite on this architecture.",
    ),
    "signal": About(
        "gap between the two largest probabilities of the prediction",
        "through the attacks that read it: the suite lifts it to FedMIA's test, in a column of its own.",
    ),
    "analysis": About(
        "gap between the members' and the others' mean loss",
        "a table of its own: its number for every defense, a mean over seeds.",
    ),
}


def package_files(names: Names, author: str, version: str) -> dict[str, str]:
    """Relative path -> text of every file of the package. ``version``: of fedbench, from which on the package works."""
    base = BASES[names.kind][1]
    major, minor = version.split(".")[:2]
    filled = {
        **{key: getattr(names, key) for key in ("kind", "name", "distribution", "method", "module", "cls")},
        "article": names.a_kind.split()[0].capitalize(),
        **asdict(KINDS[names.kind]), "hook": HOOKS[names.kind], "base": base,
        "author": author, "author_quoted": json.dumps(author, ensure_ascii=False),
        "range": f">={major}.{minor},<{int(major) + 1}",
    }  # fmt: skip
    root = files("fedbench.core.scaffold") / "templates"
    found = [*_templates(root / "package"), *_templates(root / names.kind)]
    return dict(sorted((_path(path, names), Template(text).substitute(filled)) for path, text in found))


def _templates(folder: Traversable, above: str = "") -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _templates(entry, f"{above}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            yield above + entry.name, entry.read_text(encoding="utf-8")


def _path(template: str, names: Names) -> str:
    """``src/MODULE/METHOD.py.in`` -> ``src/fedbench_my_defense/my_defense.py``."""
    path = template.removesuffix(_SUFFIX)
    for mark in ("MODULE", "METHOD", "NAME"):
        path = path.replace(mark, getattr(names, mark.lower()))
    return "/".join(f".{p.removeprefix(_HIDDEN)}" if p.startswith(_HIDDEN) else p for p in path.split("/"))
