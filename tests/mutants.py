"""Suites changed at random, suites that once broke the reader, and how reading one ends."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from good_suite import GOOD, edited
from ruamel.yaml import YAML

from fedbench.core.contract.errors import UserError
from fedbench.core.registry.components import Registry
from fedbench.core.spec.resolve import load_and_check
from fedbench.core.words import printable
from fedbench.suites import shipped_suites

# what once ended in a traceback or an unreadable message: (edit of the good suite, words of the
# refusal)
EXAMPLES = {
    "too many rows of one grid": (
        ("params: {sigma: 0.01}", f"grid: {{sigma: {list(range(40))}, b: {list(range(40))}}}"),
        "grid has 1,600 combinations, more than 1,000",
    ),
    "a client 2,500 times": (
        ("pair, half", f"{{name: m, clients: {[0] * 2_500}}}"),
        "the client 0 is given twice",
    ),
    "a field of 900,000 letters": (
        ("schema: 1", f"schema: 1\n? {'x' * 900_000}\n: 1"),
        "unknown field",
    ),
    "a defense of 900,000 letters": (
        ("- none", f"- {'x' * 900_000}"),
        "expected at most 200 characters",
    ),
    "direction marks": (
        ("name: small", 'name: small\n"a\\u202eb\\e[2J": "\\u2066"'),
        "unknown field",
    ),
}


class Raw(str):
    """YAML as it stands."""


PLAUSIBLE = (
    None,
    True,
    0,
    1,
    2,
    0.5,
    1.0,
    "none",
    "pair",
    "digits",
    [],
    ["none"],
    [0, 1],
    [0.5, 1],
    {},
    {"name": "none"},
    math.inf,
)
HOSTILE = (
    *PLAUSIBLE,
    [[]],
    {"": None},
    {"name": {}},
    "",
    " ",
    -1,
    2**63,
    1e-300,
    1e308,
    math.nan,
    "\x00\x1b[31m",
    "\u202eevil\u2066",
    "\ud800",
    "a" * 100_000,
    "a\nb",
    "../../etc",
    "%s%n{}",
    ["x"] * 2_000,
    {f"k{i}": i for i in range(500)},
    *map(
        Raw,
        (
            "2001-01-01",
            "!!binary aGVsbG8=",
            "!!python/object:os.system {}",
            "!!set {a, b}",
            "&a [*a]",
            "*nowhere",
            "1_000",
            "!!int 3.5",
            "!!timestamp 2001-99-99",
            "1e" + "9" * 50,
            "{<<: {rounds: 1}}",
            "{[a]: 1}",
            "{a: 1, a: 2}",
            "? x",
            "{",
            "]",
            "'",
            "#",
            "\n---\n",
            "\x00",
            "- ",
            "%YAML x.y\n",
        ),
    ),
)


@cache
def sources() -> list[Any]:
    """Valid suites as data: the small one, and those that are shipped."""
    texts = [GOOD, *(path.read_text(encoding="utf-8") for path in shipped_suites().values())]
    return [YAML(typ="safe", pure=True).load(text) for text in texts]


def mutant(seed: int, values: tuple[Any, ...], of: Any) -> Any:
    """A valid suite, changed in one or two places; ``values``: what may come to stand there, beside
    parts of other suites.
    """
    rng = random.Random(seed)
    root = json.loads(json.dumps(of))
    for _ in range(rng.choice((1, 1, 2))):
        *inside, key = rng.choice(list(_places(root)) or [("name",)])
        _change(_at(root, inside), key, rng, values)
    return root


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place below the root."""
    for key in (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        yield (*at, key)
        yield from _places(value[key], (*at, key))


def _at(root: Any, place: list[Any]) -> Any:
    for step in place:
        root = root[step]
    return root


def _change(parent: Any, key: Any, rng: random.Random, values: tuple[Any, ...]) -> None:
    kind = rng.choice(
        (
            "replace",
            "replace",
            "number",
            "number",
            "splice",
            "splice",
            "splice",
            "delete",
            "double",
            "rename",
        )
    )
    if kind == "number" and isinstance(parent, dict) and type(parent.get(key)) in (int, float):
        parent[key] *= rng.choice((0, 1, 2, 10, 0.5, -1))
    elif kind == "delete" and key in parent:
        del parent[key]
    elif kind == "double" and isinstance(parent, list):
        parent[key:key] = [parent[key]] * rng.choice((1, 50))
    elif kind == "rename" and isinstance(parent, dict):
        parent[rng.choice((f"{key}x", "name", "grid", "recipe", key + "\u200b"))] = parent.pop(
            key, None
        )
    elif kind == "splice":
        other = rng.choice(sources())
        found = [
            place for place in _places(other) if place[-1] == key and isinstance(key, str)
        ] or list(_places(other))
        parent[key] = json.loads(json.dumps(_at(other, rng.choice(found))))
    else:
        parent[key] = rng.choice(
            (*values, [parent.get(key)] if isinstance(parent, dict) else {"name": 1})
        )


def written(value: Any) -> str:
    """As YAML in flow style."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(str(k))}: {written(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return json.dumps(value)


def refusal(text: str, folder: Path, registry: Registry) -> str | None:
    """What `fedbench validate --no-data` has against a suite: a few readable lines; None where it
    accepts the suite.
    """
    path = folder / "suite.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load_and_check(path, registry)
    except UserError as error:
        assert 0 < len(error.messages) <= 60
        unreadable = [
            m
            for m in error.messages
            if len(m) > 4_000 or not m.strip() or printable(m) != m or "\n" in m
        ]
        assert unreadable == []
        return "\n".join(error.messages)
    return None


def example(name: str) -> str:
    """The suite of an example."""
    return edited(EXAMPLES[name][0])
