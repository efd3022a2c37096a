"""A YAML file as plain data with the place of every value, and changes of the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from fedbench.core.contract.errors import UserError
from fedbench.core.words import bounded, did_you_mean, one_line

Loc = tuple[str | int, ...]
MAX_BYTES = 2**20
_LONGEST_NAME = 80  # of a field in a message
_MOST_FIELDS = 10_000  # of one mapping: merge keys (<<) may double them with every line


@dataclass(frozen=True)
class Problem:
    """A mistake in a file."""

    loc: Loc
    text: str
    at_key: bool = False
    """the name itself is wrong, not the value behind it"""


@dataclass(frozen=True)
class Document:
    """A parsed file."""

    path: Path
    text: str
    data: Any
    root: Node
    overridden: dict[Loc, str] = field(default_factory=dict)
    """places that come from the command line, with the option's text"""

    def position(self, loc: Sequence[str | int], at_key: bool = False) -> tuple[int, int]:
        """Return line and column, from 1, of a value, or of its nearest ancestor in the file."""
        key = None
        node = self.root
        for step in loc:
            inner = _step(node, step)
            if inner is None:
                at_key = isinstance(node, MappingNode)
                break
            key, node = inner
        is_empty = node.start_mark.index == node.end_mark.index  # marked where it ends
        if key is not None and (at_key or is_empty):
            node = key
        return node.start_mark.line + 1, node.start_mark.column + 1

    def error(self, problems: Iterable[Problem]) -> UserError:
        """Return all problems as one error, a line each, in the order of the file."""
        ordered = sorted(dict.fromkeys(problems), key=lambda p: self.position(p.loc, p.at_key))
        return UserError(*bounded(map(self._line, ordered), f"{self.path}: and {{}} more mistakes"))

    def _line(self, problem: Problem) -> str:
        text = problem.text
        if problem.loc:
            text = f"{path_words(problem.loc)}: {text}"
        for loc, option in self.overridden.items():
            if problem.loc[: len(loc)] == loc:
                return f"{self.path}: {option}: {text}"
        line, column = self.position(problem.loc, problem.at_key)
        return f"{self.path}:{line}:{column}: {text}"


def _step(node: Node, step: str | int) -> tuple[Node | None, Node] | None:
    """Return the key and the value one level down, or None."""
    if isinstance(node, SequenceNode):
        if isinstance(step, int) and step < len(node.value):
            return None, node.value[step]
    elif isinstance(node, MappingNode):
        # merged keys come first, a mapping's own override them
        for key, value in reversed(node.value):
            if isinstance(key, ScalarNode) and key.value == str(step):
                return key, value
    return None


def path_words(loc: Sequence[str | int]) -> str:
    """Return a place as ``attacks[2].params.stride``."""
    words = ""
    for step in loc:
        words += f"[{step}]" if isinstance(step, int) else f".{one_line(step, _LONGEST_NAME)}"
    return words.removeprefix(".")


# --- reading --------------------------------------------------------------------------------------


def read(path: Path, expected: str = "a suite (`fedbench list suites` shows examples)") -> Document:
    """Parse a file; ``expected`` says what it should be, for messages.

    Raises:
        UserError: with the place of the first mistake in its syntax.
    """
    text = _read_text(path)
    root, data = _parsed(text, str(path))
    if root is None:
        raise UserError(f"{path}:1:1: the file is empty, expected {expected}")
    return Document(path, text, data, root)


def parse_value(text: str, name: str) -> Any:
    """Return a YAML value of the command line; ``name`` leads the error messages."""
    return _parsed(text, name)[1]


class _Constructor(SafeConstructor):
    def flatten_mapping(self, node: MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _MOST_FIELDS:
            raise ConstructorError(
                None, None, f"a mapping of more than {_MOST_FIELDS:,} fields", node.start_mark
            )


def _parsed(text: str, name: str) -> tuple[Node | None, Any]:
    """Return nodes and plain data of a YAML 1.2 text; None where it is empty."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    try:
        root = yaml.compose(text)
        if root is None:
            return None, None
        return root, yaml.constructor.construct_document(root)
    except RecursionError:
        raise UserError(f"{name}:1:1: nested too deeply") from None
    except (YAMLError, ValueError) as error:
        raise UserError(_syntax_words(error, text, name)) from None


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: larger than {MAX_BYTES // 2**20} MiB, which no suite is")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _place(content[: error.start].decode())
        raise UserError(
            f"{path}:{line}:{column}: not UTF-8 text (byte 0x{content[error.start]:02x})"
        ) from None


def _place(before: str) -> tuple[int, int]:
    return before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1


def _syntax_words(error: Exception, text: str, name: str) -> str:
    """Return a parser's error on one line: place, problem, context."""
    line = 1
    column = 1
    problem = " ".join(str(error).split())
    if isinstance(error, ReaderError):
        line, column = _place(text[: error.position])
        problem = f"the character U+{error.character:04X} is not allowed"
    elif isinstance(error, MarkedYAMLError):
        if mark := error.problem_mark or error.context_mark:
            line = mark.line + 1
            column = mark.column + 1
        problem = ", ".join(filter(None, (error.problem, error.context)))
        if "'\\t'" in problem:
            problem += " (indent with spaces, not tabs)"
    return f"{name}:{line}:{column}: {one_line(f'not valid YAML: {problem}')}"


# --- changes --------------------------------------------------------------------------------------


def override(document: Document, overrides: Sequence[str]) -> Document:
    """Return the document with each ``path=value`` applied in turn.

    A path is dotted; elements of a list go by index or by their label or name. The value is YAML.
    Error messages about such a place name the option instead of a line.

    Raises:
        UserError: with every bad option.
    """
    mistakes = []
    for text in overrides:
        try:
            document = _override(document, text)
        except UserError as error:
            mistakes += [f"{document.path}: {message}" for message in error.messages]
    if mistakes:
        raise UserError(*bounded(mistakes))
    return document


def _override(document: Document, text: str) -> Document:
    option = f"--set {one_line(text, 200)}"
    path, equals, value = text.partition("=")
    steps = path.strip().split(".")
    if not equals or not all(steps):
        raise UserError(f"{option}: expected PATH=VALUE, such as settings.0.federation.rounds=5")
    data, loc = _set(document.data, steps, parse_value(value, f"{option}: value"), (), option)
    return replace(document, data=data, overridden={**document.overridden, loc: option})


def _set(data: Any, path: list[str], value: Any, loc: Loc, option: str) -> tuple[Any, Loc]:
    """Return a copy of ``data`` with the value at ``path``, and the place."""
    if not path:
        return value, loc
    if data is None:
        data = {}
    elif isinstance(data, str) and len(loc) > 1:
        data = {"name": data}  # the short form of a use
    if isinstance(data, list):
        key: Any = _index(data, path[0], loc, option)
        inner = data[key]
    elif isinstance(data, dict):
        key = path[0]
        inner = data.get(key)
    else:
        raise UserError(
            f"{option}: {path_words(loc)} is a single value, it has no field '{path[0]}'"
        )
    changed, place = _set(inner, path[1:], value, (*loc, key), option)
    copy = data.copy()
    copy[key] = changed
    return copy, place


def _index(data: list[Any], step: str, loc: Loc, option: str) -> int:
    """Return the index of an element that goes by its index, label or name."""
    if step.isdecimal() and int(step) < len(data):
        return int(step)
    names = []
    for item in data:
        label = item
        if isinstance(item, dict):
            label = item.get("label") or item.get("name")
        names.append(str(label))
    list_has = f"{option}: {path_words(loc)} has"
    if names.count(step) == 1:
        return names.index(step)
    if step in names:
        raise UserError(f"{list_has} several elements '{step}': use an index, from 0")
    choices = did_you_mean(step, names) or f"; it has {len(data)}: {', '.join(names)}"
    raise UserError(f"{list_has} no element '{step}'{choices}")
