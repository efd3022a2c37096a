"""A YAML file as plain data with the place of every value, and changes of it from the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from fedbench.core.contract.errors import UserError
from fedbench.core.words import bounded, did_you_mean, one_line

Loc = tuple[str | int, ...]
MAX_BYTES = 2**20
_LONGEST_NAME = 80  # of a field in a message
_MERGE = "tag:yaml.org,2002:merge"  # the key <<
_MOST_COPIED = 10_000  # fields that all merge keys of a file copy


@dataclass(frozen=True)
class Problem:
    """A mistake at ``loc``; ``at_key``: the name itself is wrong, not the value behind it."""

    loc: Loc
    text: str
    at_key: bool = False


@dataclass(frozen=True)
class Document:
    """A parsed file. ``overridden``: the places that come from the command line, with the option's
    text.
    """

    path: Path
    text: str
    data: Any
    root: Node
    overridden: dict[Loc, str] = field(default_factory=dict)

    def position(self, loc: Sequence[str | int], at_key: bool = False) -> tuple[int, int]:
        """(line, column), from 1, of the value at ``loc``, or of its nearest ancestor in the file."""
        key, node = None, self.root
        for step in loc:
            inner = _step(node, step)
            if inner is None:
                at_key = isinstance(node, MappingNode)
                break
            key, node = inner
        # marked where it ends
        empty = isinstance(node, ScalarNode) and node.start_mark.index == node.end_mark.index
        mark = (key if (at_key or empty) and key is not None else node).start_mark
        return mark.line + 1, mark.column + 1

    def error(self, problems: Iterable[Problem]) -> UserError:
        """All problems as one error, a line each, in the order of the file."""
        ordered = sorted(dict.fromkeys(problems), key=lambda p: self.position(p.loc, p.at_key))
        return UserError(
            *bounded((self._line(p) for p in ordered), what=f"{self.path}: and {{}} more mistakes")
        )

    def _line(self, problem: Problem) -> str:
        what = f"{path_words(problem.loc)}: {problem.text}" if problem.loc else problem.text
        for loc, option in self.overridden.items():
            if problem.loc[: len(loc)] == loc:
                return f"{self.path}: {option}: {what}"
        line, column = self.position(problem.loc, problem.at_key)
        return f"{self.path}:{line}:{column}: {what}"


def _step(node: Node, step: str | int) -> tuple[Node | None, Node] | None:
    """(key node, value node) one level down, or None."""
    if isinstance(node, MappingNode):
        return _keys(node).get(str(step))
    if isinstance(node, SequenceNode) and isinstance(step, int) and step < len(node.value):
        return None, node.value[step]
    return None


@lru_cache(maxsize=1000)
def _keys(node: MappingNode) -> dict[str, tuple[Node, Node]]:
    """Name -> (key node, value node). Merged keys come first, a mapping's own override them."""
    return {k.value: (k, v) for k, v in node.value if isinstance(k, ScalarNode)}


def path_words(loc: Sequence[str | int]) -> str:
    """``attacks[2].params.stride``."""
    words = "".join(
        f"[{s}]" if isinstance(s, int) else f".{one_line(s, _LONGEST_NAME)}" for s in loc
    )
    return words.removeprefix(".")


# --- reading --------------------------------------------------------------------------------------


def read(path: Path) -> Document:
    """Parse a file. Raises ``UserError`` with the place of the first mistake in its syntax."""
    text = _read_text(path)
    root, data = _parsed(text, str(path))
    if root is None:
        raise UserError(
            f"{path}:1:1: the file is empty, expected a suite (`fedbench list suites` shows "
            "examples)"
        )
    return Document(path, text, data, root)


def parse_value(text: str, name: str) -> Any:
    """A YAML value from the command line; ``name`` leads the error messages."""
    return _parsed(text, name)[1]


def _parsed(text: str, name: str) -> tuple[Node | None, Any]:
    """(tree of nodes, plain data) of a YAML 1.2 text; None where it is empty."""
    try:
        root = YAML(typ="safe", pure=True).compose(text)
        if root is not None and _fields_copied(root) > _MOST_COPIED:
            raise UserError(
                f"{name}:1:1: its merge keys (<<) copy more than {_MOST_COPIED:,} fields; write "
                "the values out"
            )
        return root, None if root is None else YAML(
            typ="safe", pure=True
        ).constructor.construct_document(root)
    except RecursionError:
        raise UserError(f"{name}:1:1: nested too deeply") from None
    except (YAMLError, ValueError) as error:
        raise UserError(_syntax_words(error, text, name)) from None


def _fields_copied(root: Node) -> int:
    """Count the fields that the constructor copies for merge keys, which may double with every
    line.
    """
    sizes: dict[int, int] = {}
    copied = 0
    waiting = [root]
    seen = set()
    while waiting:  # in the order of the file, so that what is merged has been counted
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, MappingNode):
            copied += _fields(node, sizes) - len(node.value)
            waiting += [value for _, value in reversed(node.value)]
        elif isinstance(node, SequenceNode):
            waiting += reversed(node.value)
    return copied


def _fields(mapping: MappingNode, sizes: dict[int, int]) -> int:
    """Count the fields of a mapping and of those that it merges; a mapping inside itself counts
    once.
    """
    if id(mapping) not in sizes:
        sizes[id(mapping)] = 0
        merged = [value for key, value in mapping.value if key.tag == _MERGE]
        parts = [
            part
            for value in merged
            for part in (value.value if isinstance(value, SequenceNode) else [value])
        ]
        inner = sum(_fields(part, sizes) for part in parts if isinstance(part, MappingNode))
        sizes[id(mapping)] = len(mapping.value) + inner
    return sizes[id(mapping)]


def _read_text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise UserError(
                f"{path}: is {'a directory' if path.is_dir() else 'no regular file'}, expected a "
                "suite file"
            )
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
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
    """A parser's error on one line: place, problem, context."""
    (line, column), problem = (1, 1), " ".join(str(error).split())
    if isinstance(error, ReaderError):
        line, column = _place(text[: error.position])
        problem = f"the character U+{error.character:04X} is not allowed"
    elif isinstance(error, MarkedYAMLError):
        if (mark := error.problem_mark or error.context_mark) is not None:
            line, column = mark.line + 1, mark.column + 1
        problem = ", ".join(part for part in (error.problem, error.context) if part)
        if "'\\t'" in problem:
            problem += " (indent with spaces, not tabs)"
    return f"{name}:{line}:{column}: {one_line(f'not valid YAML: {problem}')}"


# --- changes --------------------------------------------------------------------------------------


def override(document: Document, overrides: Sequence[str]) -> Document:
    """The document with each ``path=value`` applied in turn. Raises ``UserError`` with every bad
    option.

    A path is dotted; elements of a list go by index or by their label or name. The value is YAML.
    Error messages about such a place name the option instead of a line.
    """
    mistakes: list[str] = []
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
    """(a copy of ``data`` with the value at ``path``, the place)."""
    if not path:
        return value, loc
    # left out, or the short form of a use
    if data is None or (isinstance(data, str) and len(loc) > 1):
        data = {} if data is None else {"name": data}
    if not isinstance(data, dict | list):
        raise UserError(
            f"{option}: {path_words(loc)} is a single value, it has no field '{path[0]}'"
        )
    key: Any = _index(data, path[0], loc, option) if isinstance(data, list) else path[0]
    inner = data[key] if isinstance(data, list) else data.get(key)
    changed, place = _set(inner, path[1:], value, (*loc, key), option)
    copy = data.copy()
    copy[key] = changed
    return copy, place


def _index(data: list[Any], step: str, loc: Loc, option: str) -> int:
    if step.isdecimal() and int(step) < len(data):
        return int(step)
    names = [
        str(item.get("label") or item.get("name")) if isinstance(item, dict) else str(item)
        for item in data
    ]
    if names.count(step) == 1:
        return names.index(step)
    if step in names:
        raise UserError(
            f"{option}: {path_words(loc)} has several elements '{step}': use an index, from 0"
        )
    listed = did_you_mean(step, names) or f"; it has {len(data)}: {', '.join(names)}"
    raise UserError(f"{option}: {path_words(loc)} has no element '{step}'{listed}")
