"""A new package from templates: its names, its files, and the folder they are written to."""

from __future__ import annotations

import json
import keyword
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import fedbench.core
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import PROJECT
from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import BASES, HOOKS
from fedbench.core.words import one_line, printable

# --- names ----------------------------------------------------------------------------------------

LONGEST = 30  # letters: a name is a label in every table of a board
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_RESERVED = {"none", "null", "true", "false"}  # words of a suite: no defense, and YAML's own
_IMPORTED = {*fedbench.core.__all__, "Field", "Tensor"}  # classes that generated modules import
_FORM = f"expected 2 to {LONGEST} letters, digits and single dashes, a letter first"


@dataclass(frozen=True)
class Names:
    """``name``: the component's, in suites and on boards; ``cls``: its class; ``kind``: what it is."""

    kind: str
    name: str

    @property
    def a_kind(self) -> str:
        """``a defense``, ``an attack``."""
        return a_kind(self.kind)

    @property
    def distribution(self) -> str:
        """What pip installs, and the folder's name."""
        return f"{PROJECT}-{self.name}"

    @property
    def method(self) -> str:
        """The module of the class."""
        return self.name.replace("-", "_")

    @property
    def module(self) -> str:
        """The package that is imported."""
        return f"{PROJECT}_{self.method}"

    @property
    def cls(self) -> str:
        """The class, named unlike everything the generated module imports."""
        camel = "".join(part.capitalize() for part in self.name.split("-"))
        return camel if camel not in _IMPORTED else f"{camel}{self.kind.capitalize()}"


def names_of(kind: str, given: str) -> Names:
    """The names of a component called ``given``, normalised as pip does.

    Raises ``UserError`` for an invalid name, with a valid one.
    """
    name = re.sub(r"[-_.]+", "-", given).lower() if given.isascii() else given
    if name.startswith(f"{PROJECT}-"):
        raise UserError(
            f"the name '{one_line(given, 60)}': leave out '{PROJECT}-', the package gets it by "
            "itself"
        )
    if not (_NAME.fullmatch(name) and 2 <= len(name) <= LONGEST):
        raise UserError(
            f"'{one_line(given, 60)}' is not a valid name for {a_kind(kind)}: "
            f"{_FORM}{_instead(given)}"
        )
    if keyword.iskeyword(name) or name in _RESERVED:
        what = "a word of Python" if keyword.iskeyword(name) else "a word of suites"
        raise UserError(
            f"'{name}' is not a valid name for {a_kind(kind)}: it is {what}; try 'my-{name}'"
        )
    return Names(kind, name)


def a_kind(kind: str) -> str:
    """The kind with its article."""
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _instead(given: str) -> str:
    """A valid name near an invalid one."""
    words = re.findall(r"[a-z0-9]+", given.lower() if given.isascii() else "")
    near = "-".join(words).lstrip("0123456789-")
    return (
        f", e.g. '{near}'"
        if _NAME.fullmatch(near) and 2 <= len(near) <= LONGEST
        else ", e.g. 'my-method'"
    )


def refuse_taken(names: Names, registry: Registry) -> None:
    """Raise ``UserError`` if an installed package has this name, or announces a component of this
    name.
    """
    for plugin in registry.plugins:
        for found in plugin.components:
            if found.name == names.name:
                raise UserError(
                    f"the name '{names.name}' is taken: there is the {found}; choose another"
                )
        if re.sub(r"[-_.]+", "-", plugin.distribution).lower() == names.distribution:
            package = f"a package '{plugin.distribution}' {plugin.version} is installed already"
            raise UserError(f"{package}; choose another name, or `pip uninstall` it")


def author_of(given: str | None) -> str:
    """``given``, or git's user.name, or "its authors". Raises ``UserError`` for a name that does
    not fit on a line of a file.
    """
    if given is not None and not _usable(given):
        expected = "expected a name on one line, of at most 200 printable characters"
        raise UserError(f"--author '{one_line(given, 60)}': {expected}")
    name = _of_git() if given is None else given.strip()
    return name if _usable(name) else "its authors"


def _usable(name: str) -> bool:
    return 0 < len(name.strip()) <= 200 and printable(name) == name


def _of_git() -> str:
    """git's user.name; empty without git or a name."""
    try:
        done = subprocess.run(
            ["git", "config", "user.name"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip()


# --- files ----------------------------------------------------------------------------------------

_SUFFIX = ".in"
_HIDDEN = "dot_"  # a template of a hidden file: wheels and globs leave hidden ones out


@dataclass(frozen=True)
class About:
    """What the texts of a package say of its kind. ``summary``: its line in `fedbench list`;
    ``row``: what a board shows.
    """

    summary: str
    row: str


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
    """Relative path -> text of every file of the package. ``version``: of fedbench, from which on
    the package works.
    """
    base = BASES[names.kind][1]
    major, minor = version.split(".")[:2]
    filled = {
        **{
            key: getattr(names, key)
            for key in ("kind", "name", "distribution", "method", "module", "cls")
        },
        "article": names.a_kind.split()[0].capitalize(),
        **asdict(KINDS[names.kind]),
        "hook": HOOKS[names.kind],
        "base": base,
        "author": author,
        "author_quoted": json.dumps(author, ensure_ascii=False),
        "range": f">={major}.{minor},<{int(major) + 1}",
    }
    root = files("fedbench.core.scaffold") / "templates"
    found = [*_templates(root / "package"), *_templates(root / names.kind)]
    return dict(
        sorted((_path(path, names), Template(text).substitute(filled)) for path, text in found)
    )


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
    return "/".join(
        f".{p.removeprefix(_HIDDEN)}" if p.startswith(_HIDDEN) else p for p in path.split("/")
    )


# --- the folder -----------------------------------------------------------------------------------


def refuse_existing(target: Path) -> None:
    """Raise ``UserError`` if ``target`` exists, or the folder around it does not."""
    if os.path.lexists(target):
        raise UserError(
            f"{one_line(str(target))} exists: nothing was written; move it away, or choose another "
            "name or --into"
        )
    if not target.parent.is_dir():
        raise UserError(
            f"{one_line(str(target.parent))}: no such folder; make it first, or name another with "
            "--into"
        )


def write_folder(target: Path, texts: Mapping[str, str]) -> None:
    """Write ``texts`` (relative path -> text) as the new folder ``target``: all of them, or
    nothing.
    """
    refuse_existing(target)
    try:
        target.mkdir()
    except OSError as error:
        where = one_line(str(target.parent))
        raise UserError(
            f"{where}: nothing can be written there: {error.strerror}; name another folder with "
            "--into"
        ) from error
    try:
        for name, text in texts.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
