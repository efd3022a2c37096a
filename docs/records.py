#!/usr/bin/env python3
"""Write docs/records.md, every field of a record with its meaning, from the classes: ``python
docs/records.py`` (``--check``).
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedbench.core.store.record import SCHEMA_VERSION, Outcome, Record

PAGE = Path(__file__).resolve().parent / "records.md"
TITLES = {"Record": "The record"}
_HEAD = f"""# Records

<!-- Written by `python docs/records.py`. -->

A run has two files in the results folder: `records/RUN.json`, UTF-8 JSON of at most 16 MiB, and `records/RUN--DIGEST.npz`, the
arrays of the cells with scores ([what a record proves](architecture.md#what-a-record-proves)). Fields of the file:

* `schema_version`: {SCHEMA_VERSION}
* `digest`: sha256 of the canonical JSON of all other fields
* `arrays`: name of the `.npz`, empty where no cell has scores
* `run`: what all cells share; `identity` of the run alone
* `cells`: the rest of the record of each cell; a field of `run` that differs in a cell is repeated there

What follows from the identity is not stored: keys, seed, members, setting, versions of libraries, digests of code and data, and
all of a component but its label. `fedbench show RESULTS --json` prints it. Below, `?` after a type means: or null;
a field without a type is a string.

An `outcome` is one of {", ".join(f"`{o}`" for o in typing.get_args(Outcome))}; every one but `ok` has a `reason`.
"""
_TAIL = """
## The arrays of a run

`T` is the number of a target; arrays are in the order of its candidates, null arrays in that of the shuffles. An array that is
equal in all cells of the run has the name below, one of a single cell `KEY/NAME` with the first 12 letters of its key.

* `tT_scores` (float64): the attack's score of each candidate, higher = member
* `tT_kind` (int8): 0 member, 1 outside the federation, 2 another client's, -1 not counted
* `tT_ids` (int64): the sample's id
* `tT_canary` (bool): deliberately mislabelled
* `tT_owner` (int32): the client that trained on it, -1 none
* `tT_in_mix` (bool): in the group `mix`
* `tT_null_auc`, `tT_null_advantage` (float32): the target's largest value over the rounds under each of 200 shuffled memberships
* `test_correct` (bool): final model's result on each test sample
* `ANALYSIS:NAME` (float64): a vector of an analysis
"""


class Mistake(Exception):
    """What is wrong with a page, or with the code that it is made of."""


def page() -> str:
    """The whole page. Raises :class:`Mistake` for a field without a meaning."""
    return _HEAD + "".join(_section(cls) for cls in classes()) + _TAIL


def classes() -> list[type]:
    """The record's class and every one that stands in it, in the order of their first use."""
    seen_classes: dict[type, None] = {}
    pending: list[Any] = [Record]
    while pending:
        cls = pending.pop(0)
        if cls not in seen_classes:
            seen_classes[cls] = None
            pending += [inner for hint in fields(cls).values() for inner in _inside(hint)]
    return list(seen_classes)


def fields(cls: type) -> dict[str, Any]:
    """Field -> type, of a pydantic model or a dataclass."""
    names = getattr(cls, "model_fields", None) or getattr(cls, "__dataclass_fields__", {})
    hints = typing.get_type_hints(cls)
    return {name: hints[name] for name in names if "ClassVar" not in str(hints[name])}


def _inside(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and (
        hasattr(hint, "model_fields") or hasattr(hint, "__dataclass_fields__")
    ):
        yield hint
    for part in typing.get_args(hint):
        yield from _inside(part)


def meanings(cls: type) -> dict[str, str]:
    """Field -> the text under it."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    texts = {}
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if (
            isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            texts[statement.target.id] = " ".join(after.value.value.split())
    return texts


def _section(cls: type) -> str:
    known, about = meanings(cls), " ".join((inspect.getdoc(cls) or "").split())
    described: dict[tuple[str, str], list[str]] = {}
    for name, hint in fields(cls).items():
        if name not in known and f"``{name}``" not in about:
            raise Mistake(
                f"{cls.__module__}.{cls.__name__}.{name} has no text under it, and its class does "
                "not explain it"
            )
        meaning = known.get(name, "").replace("``", "`")
        described.setdefault((_type(hint), meaning), []).append(f"`{name}`")
    rows = [
        f"* {', '.join(names)}" + f" ({kind})" * (kind != "string") + f": {meaning}" * bool(meaning)
        for (kind, meaning), names in described.items()
    ]
    text = about.replace("``", "`")
    title = TITLES.get(cls.__name__, cls.__name__)
    return f"\n## {title}\n\n{text}\n\n" + "\n".join(rows) + "\n"


def _type(hint: Any) -> str:
    """As a reader of JSON would say it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if type(None) in args:
            return f"{' or '.join(_type(a) for a in args if a is not type(None))}?"
        return " or ".join(_type(a) for a in args) if len(args) < 4 else "any"
    if hint is Outcome or origin is typing.Literal:
        return "string"
    if origin in (list, tuple):
        return f"list of {_type(args[0])}"
    if origin is dict:
        return f"object of {_type(args[1])}".removesuffix(" of any")
    if isinstance(hint, type) and list(_inside(hint)):
        anchor = TITLES.get(hint.__name__, hint.__name__).lower().replace(" ", "-")
        return f"[{hint.__name__}](#{anchor})"
    names = {
        str: "string",
        int: "integer",
        float: "number",
        bool: "boolean",
        type(None): "null",
        Any: "any",
    }
    return names.get(hint, "any")


def finish(pages: dict[Path, str], problems: list[str], source: str) -> int:
    """Write the pages, or with ``--check`` compare them; where there are problems they are printed
    and nothing is written. Returns the exit status. ``source``: of the pages, and the command that
    writes them.
    """
    stale = {
        path: text
        for path, text in pages.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    if "--check" in sys.argv[1:]:
        problems = [*problems, *(f"{path} is not what {source}" for path in stale)]
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(finish({PAGE: page()}, [], "the classes say: run python docs/records.py"))
