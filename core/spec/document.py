"""A YAML file as plain data, with the place of everything in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from fedbench.core.contract.errors import UserError
from fedbench.core.words.explain import bounded, one_line

Loc = tuple[str | int, ...]
MAX_BYTES = 2**20
MAX_NODES = 30_000  # written in the file: the largest suite has a tenth, and each costs a tenth of a millisecond
MAX_EXPANDED = 100_000  # with every alias replaced by what it stands for
MAX_DEPTH = 50
_TOO_DEEP = "nested too deeply"
_LONGEST_NUMBER = 100  # characters
_LONGEST_NAME = 80  # of a field in a message
_HALF = re.compile("[\ud800-\udfff]")  # of a pair that stands for one character; an escape can write it alone


@dataclass(frozen=True)
class Problem:
    """A mistake at ``loc``; ``at_key``: the name itself is wrong, not the value behind it."""

    loc: Loc
    text: str
    at_key: bool = False


@dataclass(frozen=True)
class Document:
    """A parsed file. ``overridden``: which places come from the command line, with the option's text."""

    path: Path
    text: str
    data: Any
    root: Node
    overridden: dict[Loc, str] = field(default_factory=dict)

    @cached_property
    def _steps(self) -> dict[int, dict[str, tuple[Node, Node]]]:
        """The fields of each mapping that was asked for one: looked up, since a large mapping is asked for all of them."""
        return {}

    def position(self, loc: Sequence[str | int], at_key: bool = False) -> tuple[int, int]:
        """(line, column), from 1, of the value at ``loc``, or of its nearest ancestor that is in the file."""
        key, node = None, self.root
        for segment in loc:
            inner = self._step(node, segment)
            if inner is None:  # left out: what should hold it is the place
                at_key = isinstance(node, MappingNode)
                break
            key, node = inner
        nothing = isinstance(node, ScalarNode) and node.start_mark.index == node.end_mark.index  # marked where it ends
        mark = (key if (at_key or nothing) and key is not None else node).start_mark
        return mark.line + 1, mark.column + 1

    def error(self, problems: Iterable[Problem]) -> UserError:
        """All problems as one error, a line each, in the order of the file."""
        ordered = sorted(dict.fromkeys(problems), key=lambda p: self.position(p.loc, p.at_key))
        return UserError(*bounded((self._line(p) for p in ordered), what=f"{self.path}: and {{}} more mistakes"))

    def _step(self, node: Node, segment: str | int) -> tuple[Node | None, Node] | None:
        """(key node, value node) one level down, None where the file has nothing there."""
        if isinstance(node, MappingNode):
            if id(node) not in self._steps:
                # merged keys come first, a mapping's own override them
                self._steps[id(node)] = {k.value: (k, v) for k, v in node.value}
            return self._steps[id(node)].get(str(segment))
        if isinstance(node, SequenceNode) and isinstance(segment, int) and segment < len(node.value):
            return None, node.value[segment]
        return None

    def _line(self, problem: Problem) -> str:
        what = f"{path_words(problem.loc)}: {problem.text}" if problem.loc else problem.text
        for loc, option in self.overridden.items():
            if problem.loc[: len(loc)] == loc:
                return f"{self.path}: {option}: {what}"
        line, column = self.position(problem.loc, problem.at_key)
        return f"{self.path}:{line}:{column}: {what}"


def path_words(loc: Sequence[str | int]) -> str:
    """``attacks[2].params.stride``."""
    words = "".join(f"[{s}]" if isinstance(s, int) else f".{one_line(s, _LONGEST_NAME)}" for s in loc)
    return words.removeprefix(".")


def read(path: Path) -> Document:
    """Parse a file; raises ``UserError`` with the place of every mistake in its syntax, keys included."""
    text = _read_text(path)
    try:
        root = _compose(text, str(path))
        if root is None:
            raise UserError(f"{path}:1:1: the file is empty, expected a suite (`fedbench list suites` shows examples)")
        _refuse_bad_keys(root, str(path))
        return Document(path, text, _construct(root, str(path)), root)
    except RecursionError:
        raise UserError(f"{path}:1:1: {_TOO_DEEP}") from None


def parse_value(text: str, name: str) -> Any:
    """A YAML value from the command line; ``name`` leads the error messages."""
    try:
        root = _compose(text, name)
        if root is None:
            return None
        _refuse_bad_keys(root, name)
        return _construct(root, name)
    except RecursionError:
        raise UserError(f"{name}: {_TOO_DEEP}") from None


def _compose(text: str, name: str) -> Node | None:
    """The tree of nodes of a YAML 1.2 text, None when there is nothing in it."""
    if re.search(r"^%YAML\s+(?!1\.2\b)", text, re.MULTILINE):
        raise UserError(f"{name}:1:1: suites are YAML 1.2: remove the %YAML directive")
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Bounded
    try:
        return yaml.compose(text)
    except (YAMLError, ValueError) as exc:  # ValueError: a version that is no number
        raise UserError(_syntax_words(exc, text, name)) from None


class _Bounded(Composer):
    """Stops at what no suite is, before it has cost minutes: too many values, or too deep."""

    nodes = level = 0

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False  # YAML allows them: the later one counts

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self.nodes, self.level = self.nodes + 1, self.level + 1
        if self.nodes > MAX_NODES or self.level > MAX_DEPTH:
            text = _TOO_DEEP if self.level > MAX_DEPTH else f"more than {MAX_NODES:,} values, which no suite has"
            raise _TooMuch(problem=text, problem_mark=self.parser.peek_event().start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.level -= 1


class _TooMuch(MarkedYAMLError):
    """Right as YAML, but no suite."""


def _construct(root: Node, name: str) -> Any:
    """Plain dicts, lists and scalars; raises ``UserError`` for tags that YAML 1.2 does not know."""
    try:
        return YAML(typ="safe", pure=True).constructor.construct_document(root)
    except (YAMLError, ValueError) as exc:
        raise UserError(_syntax_words(exc, "", name)) from None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a directory, expected a suite file") from None
    except OSError as exc:
        raise UserError(f"{path}: cannot be read: {exc.strerror or exc}") from None
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: larger than {MAX_BYTES // 2**20} MiB, which no suite is")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        before = content[: exc.start]
        line, column = before.count(b"\n") + 1, len(before.rsplit(b"\n", 1)[-1]) + 1
        raise UserError(f"{path}:{line}:{column}: not UTF-8 text (byte 0x{content[exc.start]:02x})") from None


def _syntax_words(exc: Exception, text: str, name: str) -> str:
    """A parser's complaint on one line: place first, then the problem, then what it was reading."""
    line, column, problem = 1, 1, " ".join(str(exc).split())
    if isinstance(exc, ReaderError):
        before = text[: exc.position]
        line, column = before.count("\n") + 1, len(before.rsplit("\n", 1)[-1]) + 1
        problem = f"the character U+{exc.character:04X} is not allowed"
    elif isinstance(exc, MarkedYAMLError):
        mark = exc.problem_mark or exc.context_mark
        if mark is not None:
            line, column = mark.line + 1, mark.column + 1
        problem = ", ".join(part for part in (exc.problem, exc.context) if part)
        if "'\\t'" in problem:
            problem += " (indent with spaces, not tabs)"
    kind = "" if isinstance(exc, _TooMuch) else "not valid YAML: "
    return f"{name}:{line}:{column}: {one_line(kind + problem)}"


def _refuse_bad_keys(root: Node, name: str) -> None:
    found = _bad_keys(root, set(), set())
    if not found and (size := _expanded(root, {}, 1)) > MAX_EXPANDED:
        found = [(root, f"its aliases stand for {size:,} values, more than {MAX_EXPANDED:,}: write them out where needed")]
    if found:
        lines = (f"{name}:{n.start_mark.line + 1}:{n.start_mark.column + 1}: {text}" for n, text in found)
        raise UserError(*bounded(lines, what=f"{name}: and {{}} more mistakes"))


def _bad_keys(node: Node, done: set[int], inside: set[int]) -> list[tuple[Node, str]]:
    """Duplicate and non-text keys anywhere below ``node``, and aliases to what they stand in."""
    if id(node) in inside:
        return [(node, "an alias refers to the part it stands in")]
    if isinstance(node, ScalarNode):
        return _bad_scalar(node)
    if id(node) in done or not isinstance(node, MappingNode | SequenceNode):
        return []
    done.add(id(node))
    inside.add(id(node))
    found = _own_bad_keys(node) if isinstance(node, MappingNode) else []
    for item in node.value:
        found += _bad_keys(item[1] if isinstance(node, MappingNode) else item, done, inside)
    inside.remove(id(node))
    return found


def _bad_scalar(node: ScalarNode) -> list[tuple[Node, str]]:
    """What no reader takes, and what would cost the square of its length."""
    if len(node.value) > _LONGEST_NUMBER and str(node.tag).endswith((":int", ":float")):
        return [(node, f"a number of {len(node.value):,} characters, at most {_LONGEST_NUMBER} are read")]
    half = None if node.value.isascii() else _HALF.search(node.value)
    return [(node, f"half a character (U+{ord(half[0]):04X}), which no text has")] if half else []


def _expanded(node: Node, known: dict[int, int], depth: int) -> int:
    """How many values ``node`` holds once every alias is replaced by what it stands for."""
    if depth > MAX_DEPTH:
        raise RecursionError
    if id(node) not in known:
        inner = [i for item in node.value for i in (item if isinstance(node, MappingNode) else (item,))] if (
            isinstance(node, MappingNode | SequenceNode)) else []  # fmt: skip
        known[id(node)] = 1 + sum(_expanded(n, known, depth + 1) for n in inner)
    return known[id(node)]


def _own_bad_keys(node: MappingNode) -> list[tuple[Node, str]]:
    found: list[tuple[Node, str]] = []
    first: dict[str, int] = {}
    for key, _ in node.value:
        if not (isinstance(key, ScalarNode) and str(key.tag).endswith((":str", ":merge"))):
            shown = f"'{one_line(key.value, _LONGEST_NAME)}'" if isinstance(key, ScalarNode) else "a collection"
            found.append((key, f"a key must be text, found {shown} (put it in quotes)"))
        elif half := _bad_scalar(key):
            found += half
        elif key.value in first:
            found.append((key, f"duplicate key '{one_line(key.value, _LONGEST_NAME)}', first given in line {first[key.value]}"))
        else:
            first[key.value] = key.start_mark.line + 1
    return found

