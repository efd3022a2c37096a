"""Every name of a new package, from the one that its author gives."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass

import fedbench.core
from fedbench.core.contract.errors import UserError
from fedbench.core.contract.hooks import PROJECT
from fedbench.core.words.explain import one_line

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
        """The class; none that the generated module imports."""
        camel = "".join(part.capitalize() for part in self.name.split("-"))
        return camel if camel not in _IMPORTED else f"{camel}{self.kind.capitalize()}"


def names_of(kind: str, given: str) -> Names:
    """The names of a component called ``given``: capitals, underscores and dots become what pip would make of them.

    Raises ``UserError`` for what is no name, with one that would do.
    """
    name = re.sub(r"[-_.]+", "-", given).lower() if given.isascii() else given
    if name.startswith(f"{PROJECT}-"):
        raise UserError(f"the name '{one_line(given, 60)}': leave out '{PROJECT}-', the package gets it by itself")
    if not (_NAME.fullmatch(name) and 2 <= len(name) <= LONGEST):
        raise UserError(f"'{one_line(given, 60)}' is no name for {a_kind(kind)}: {_FORM}{_instead(given)}")
    if keyword.iskeyword(name) or name in _RESERVED:
        what = "a word of Python" if keyword.iskeyword(name) else "a word of suites"
        raise UserError(f"'{name}' is no name for {a_kind(kind)}: it is {what}; try 'my-{name}'")
    return Names(kind, name)


def a_kind(kind: str) -> str:
    """The kind with its article."""
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _instead(given: str) -> str:
    """A good name near the one that is none, if there is one."""
    words = re.findall(r"[a-z0-9]+", given.lower() if given.isascii() else "")
    near = "-".join(words).lstrip("0123456789-")
    return f", e.g. '{near}'" if _NAME.fullmatch(near) and 2 <= len(near) <= LONGEST else ", e.g. 'my-method'"
