"""A new package from templates: its names, its files, and the folder they are written to."""

from __future__ import annotations

import json
import keyword
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template

import fedbench.core
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import PROJECT
from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import BASES, HOOKS
from fedbench.core.words import one_line

# --- names ----------------------------------------------------------------------------------------

LONGEST = 30  # letters: a name is a label in every table of a board
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_RESERVED = {"none", "null", "true", "false"}  # words of a suite: no defense, and YAML's own
_IMPORTED = {*fedbench.core.__all__, "Field", "Tensor"}  # classes that generated modules import


@dataclass(frozen=True)
class Names:
    """Names of a new component."""

    kind: str
    name: str
    """the component's, in suites and on boards"""

    @property
    def a_kind(self) -> str:
        """``a defense``, ``an attack``."""
        if self.kind[0] in "aeiou":
            return f"an {self.kind}"
        return f"a {self.kind}"

    @property
    def distribution(self) -> str:
        """Name for pip, and of the folder."""
        return f"{PROJECT}-{self.name}"

    @property
    def method(self) -> str:
        """Module of the class."""
        return self.name.replace("-", "_")

    @property
    def module(self) -> str:
        """Package that is imported."""
        return f"{PROJECT}_{self.method}"

    @property
    def cls(self) -> str:
        """Class, named unlike everything the generated module imports."""
        camel = "".join(part.capitalize() for part in self.name.split("-"))
        if camel in _IMPORTED:
            return f"{camel}{self.kind.capitalize()}"
        return camel


def names_of(kind: str, text: str) -> Names:
    """Return the names of a component called ``text``, normalised as pip does.

    Raises:
        UserError: for an invalid name, with a valid one.
    """
    names = Names(kind, re.sub(r"[-_.]+", "-", text).lower())
    name = names.name
    if name.startswith(f"{PROJECT}-"):
        raise UserError(
            f"the name '{one_line(text, 60)}': leave out '{PROJECT}-', the package gets it by "
            "itself"
        )
    refusal = f"'{one_line(text, 60)}' is not a valid name for {names.a_kind}: "
    if not (_NAME.fullmatch(name) and 2 <= len(name) <= LONGEST):
        words = "-".join(re.findall(r"[a-z0-9]+", text.lower()))
        near = words.lstrip("0123456789-")[:LONGEST].strip("-")
        raise UserError(
            f"{refusal}expected 2 to {LONGEST} letters, digits and single dashes, a letter first, "
            f"e.g. '{near if len(near) > 1 else 'my-method'}'"
        )
    if keyword.iskeyword(name) or name in _RESERVED:
        language = "Python" if keyword.iskeyword(name) else "suites"
        raise UserError(f"{refusal}it is a word of {language}; try 'my-{name}'")
    return names


def refuse_taken(names: Names, registry: Registry) -> None:
    """Raise ``UserError`` if an installed package, or a component, has this name."""
    for plugin in registry.plugins:
        for component in plugin.components:
            if component.name == names.name:
                raise UserError(
                    f"the name '{names.name}' is taken: there is the {component}; choose another"
                )
        if re.sub(r"[-_.]+", "-", plugin.distribution).lower() == names.distribution:
            package = f"a package '{plugin.distribution}' {plugin.version} is installed already"
            raise UserError(f"{package}; choose another name, or `pip uninstall` it")


def author_of_git() -> str:
    """Return git's user.name, or "its authors"."""
    try:
        process = subprocess.run(["git", "config", "user.name"], capture_output=True, check=False)
    except OSError:
        return "its authors"
    return one_line(process.stdout.decode(errors="replace"), 200) or "its authors"


# --- files ----------------------------------------------------------------------------------------

_SUFFIX = ".in"
_HIDDEN = "dot_"  # a template of a hidden file: wheels and globs leave hidden ones out


@dataclass(frozen=True)
class About:
    """Texts of a package on its kind."""

    summary: str
    """its line in `fedbench list`"""
    row: str
    """its place on a board"""


KINDS = {
    "defense": About(
        "upload a random share of the update's entries",
        "a row of its own: how well each attack does against members that use it, and what it "
        "costs in accuracy and time.",
    ),
    "attack": About(
        "mean margin of the label over the last audited rounds",
        "a column of its own: how well it tells members from others, defense by defense.",
    ),
    "dataset": About(
        "noisy arms of a spiral, generated",
        "a section of its own: all defenses and attacks of the suite on its data, with its licence "
        "and digest in the records.",
    ),
    "model": About(
        "fully connected network with layer normalisation",
        "a section of its own: all defenses and attacks of the suite on this architecture.",
    ),
    "signal": About(
        "gap between the two largest probabilities of the prediction",
        "through the attacks that read it: the suite lifts it to FedMIA's test, in a column of its "
        "own.",
    ),
    "analysis": About(
        "gap between the members' and the others' mean loss",
        "a table of its own: its number for every defense, a mean over seeds.",
    ),
}


def package_files(names: Names, author: str, version: str) -> dict[str, str]:
    """Return relative path -> text of every file of the package.

    Args:
        version: the first one of fedbench that the package works with.
    """
    major, minor = version.split(".")[:2]
    values = {
        "kind": names.kind,
        "name": names.name,
        "distribution": names.distribution,
        "method": names.method,
        "module": names.module,
        "cls": names.cls,
        "article": names.a_kind.split()[0].capitalize(),
        **asdict(KINDS[names.kind]),
        "hook": HOOKS[names.kind],
        "base": BASES[names.kind][1],
        "author": author,
        "author_quoted": json.dumps(author, ensure_ascii=False),
        "range": f">={major}.{minor},<{int(major) + 1}",
    }
    texts = {}
    for folder in ("package", names.kind):
        root = Path(__file__).with_name("templates") / folder
        for path in root.rglob(f"*{_SUFFIX}"):
            template = Template(path.read_text(encoding="utf-8"))
            texts[_path(path.relative_to(root), names)] = template.substitute(values)
    return dict(sorted(texts.items()))


def _path(template: Path, names: Names) -> str:
    """Return ``src/fedbench_my_defense/my_defense.py`` for ``src/MODULE/METHOD.py.in``."""
    path = template.as_posix().removesuffix(_SUFFIX)
    for mark in ("MODULE", "METHOD", "NAME"):
        path = path.replace(mark, getattr(names, mark.lower()))
    return re.sub(rf"(^|/){_HIDDEN}", r"\1.", path)


# --- the folder -----------------------------------------------------------------------------------


def refuse_existing(target: Path) -> None:
    """Raise ``UserError`` if ``target`` exists."""
    if os.path.lexists(target):
        raise UserError(
            f"{one_line(str(target))} exists: nothing was written; move it away, or choose another "
            "name or --into"
        )


def write_folder(target: Path, texts: Mapping[str, str]) -> None:
    """Write ``texts`` (relative path -> text) as the new folder ``target``: all or nothing."""
    target.mkdir()
    try:
        for name, text in texts.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
