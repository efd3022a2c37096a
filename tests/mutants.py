"""Suites changed at random, and how reading one ended. ``python tests/mutants.py SEED N`` prints the counts; mutant i of a
seed is the same however many follow."""

from __future__ import annotations

import json
import math
import random
import resource
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from good_suite import GOOD
from hostile_suites import EXAMPLES
from ruamel.yaml import YAML

from fedbench.core.contract.errors import UserError
from fedbench.core.registry.components import Registry
from fedbench.core.registry.kinds import KINDS
from fedbench.core.spec.coalition import resolve_coalition
from fedbench.core.spec.resolve import load_and_check
from fedbench.core.spec.shipped import shipped_suites
from fedbench.core.words.explain import printable

MOST_MESSAGES, LONGEST_MESSAGE = 60, 4_000


@dataclass(frozen=True)
class Mutant:
    """A file's content, and how it was made."""

    how: str
    content: bytes


@dataclass(frozen=True)
class Ending:
    """``outcome``: ``valid``, ``refused`` (one ``UserError`` with readable messages) or ``broken``; ``what`` was said."""

    outcome: str
    what: str

    @property
    def held(self) -> bool:
        return self.outcome != "broken"


class Raw(str):
    """YAML as it stands."""


@cache
def sources() -> tuple[str, ...]:
    """Valid suites: the small one, and those that are shipped."""
    return GOOD, *(path.read_text(encoding="utf-8") for path in shipped_suites().values())


@cache
def parsed(i: int) -> Any:
    return YAML(typ="safe", pure=True).load(sources()[i])


def suite_mutants(seed: int, n: int) -> Iterator[Mutant]:
    """``n`` mutants: two thirds change the structure of a valid suite, one third its text; each in one to four places."""
    for i in range(n):
        rng = random.Random(f"{seed}/{i}")
        which = 0 if rng.random() < 0.5 else rng.randrange(len(sources()))
        changes = rng.choice((1, 1, 1, 2, 4))
        if rng.random() < 2 / 3:
            root, hows = json.loads(json.dumps(parsed(which))), []
            for _ in range(changes):
                root, how = _restructured(root, rng)
                hows.append(how)
            yield Mutant(f"{seed}/{i}: suite {which}: {', '.join(hows)}", written(root).encode("utf-8", "surrogatepass"))
        else:
            content, hows = sources()[which].encode(), []
            for _ in range(changes):
                change = rng.choice(TEXT_CHANGES)
                content = change(content, rng)
                hows.append(change.__name__)
            yield Mutant(f"{seed}/{i}: suite {which}: {', '.join(hows)}", content)


# -- the structure


def hostile(rng: random.Random) -> Any:
    """A value that nobody expects where it comes to stand."""
    return rng.choice((
        None, True, [], {}, [[]], [{}], {"": None}, {"name": {}}, [None], "", " ", "none", "nan", "-.inf", "1e9",
        0, -1, -0.0, 0.5, 1, 2, 10**9, -(10**9), 2**63, 10**30, 10**4000, 1e-300, 1e30, 1e308, -1e308, math.nan, math.inf,
        -math.inf, "\x00\x1b[31m", "\u202eevil\u2066", "\u200b", "\ud800", "\U0001f4a5" * 30, "a" * 100_000, "a\nb", "../../etc",
        "%s%n{}",
        list(range(200)), ["x"] * 2_000, {f"k{i}": i for i in range(500)}, {"name": "none", "params": {"a": [1] * 50}},
        {"name": "digits", "label": "x", "grid": {"a": [1, 2]}, "then": ["none"]},
        Raw("2001-01-01"), Raw("!!binary aGVsbG8="), Raw("!!python/object:os.system {}"), Raw("!!set {a, b}"),
        Raw("!!omap [a: 1]"), Raw("&a [*a]"), Raw("*nowhere"), Raw("0o777777"), Raw("0x" + "f" * 500), Raw("1_000"),
        Raw("!!float x"), Raw("!!int 3.5"),
        Raw("!!timestamp 2001-99-99"), Raw("[" * 60 + "]" * 60), Raw("9" * 5_000), Raw("1e" + "9" * 50), Raw("{<<: 1}"),
        Raw("{<<: {rounds: 1}, rounds: 2}"), Raw("{[a]: 1}"), Raw("{1: 1}"), Raw("{a: 1, a: 2}"), Raw("? x"), Raw("~"),
    ))  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place below the root."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*at, key)
        yield from places(value[key], (*at, key))


def _restructured(root: Any, rng: random.Random) -> tuple[Any, str]:
    every = list(places(root))
    if not every:
        return hostile(rng), "root replaced"
    *inside, key = rng.choice(every)
    parent = root
    for step in inside:
        parent = parent[step]
    where = ".".join(map(str, (*inside, key)))[:60]
    kind = rng.choice(("replace", "replace", "replace", "delete", "double", "rename", "splice", "wrap", "add", "many", "number"))
    if kind == "delete":
        del parent[key]
    elif kind == "double" and isinstance(parent, list):
        parent[key:key] = [parent[key]] * rng.choice((1, 2, 50, 2_000))
    elif kind == "rename" and isinstance(parent, dict):
        parent[_misspelt(str(key), rng)] = parent.pop(key)
    elif kind == "splice":
        other = parsed(rng.randrange(len(sources())))
        for step in rng.choice(list(places(other))):
            other = other[step]
        parent[key] = json.loads(json.dumps(other))
    elif kind == "wrap":
        for _ in range(rng.choice((1, 2, 60))):
            parent[key] = rng.choice(([parent[key]], {"name": parent[key]}))
    elif kind == "add" and isinstance(parent, dict):
        parent[rng.choice(("name", "params", "label", "grid", "then", "recipe", "x\u202e", "", "0"))] = hostile(rng)
    elif kind == "many" and isinstance(parent, dict):
        parent |= {f"unknown_{i}": i for i in range(rng.choice((20, 800)))}
    elif kind == "number" and isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
        parent[key] = rng.choice((-1, 0, 1.5, 10, 1e3, 1e9, 1e300)) * parent[key]
    else:
        kind, parent[key] = "replace", hostile(rng)
    return root, f"{kind} {where}"


def _misspelt(name: str, rng: random.Random) -> str:
    at = rng.randrange(len(name) + 1)
    return rng.choice((name[:at] + name[at + 1 :], name[:at] + "x" + name[at:], name.upper(), name * 2, name + "\u200b"))


def written(value: Any) -> str:
    """As YAML in flow style."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))}: {written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if type(value) is int and abs(value) > 10**1000:
        return "1" + "0" * 4000
    return json.dumps(value)


# -- the text

def flipped(content: bytes, rng: random.Random) -> bytes:
    """One to five bits."""
    out = bytearray(content)
    for _ in range(rng.randint(1, 5)):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def cut(content: bytes, rng: random.Random) -> bytes:
    """Its end, or a piece of it."""
    a, b = sorted(rng.choices(range(len(content) + 1), k=2))
    return content[:a] if rng.random() < 0.5 else content[:a] + content[b:]


def repeated(content: bytes, rng: random.Random) -> bytes:
    """Some lines again, up to two thousand times."""
    lines = content.splitlines(keepends=True)
    a, b = sorted(rng.choices(range(len(lines) + 1), k=2))
    return b"".join(lines[:b] + lines[a:b] * rng.choice((1, 1, 5, 2_000 // (b - a + 1))) + lines[b:])


def indented(content: bytes, rng: random.Random) -> bytes:
    """A line further in or out."""
    lines = content.splitlines(keepends=True) or [b""]
    a = rng.randrange(len(lines))
    lines[a] = rng.choice((b"  " + lines[a], b"\t" + lines[a], lines[a].lstrip()))
    return b"".join(lines)


def inserted(content: bytes, rng: random.Random) -> bytes:
    """Something that YAML, or a terminal, has a meaning for."""
    at = rng.randrange(len(content) + 1)
    token = rng.choice((
        b"&a ", b"*a ", b"!!binary ", b"!x ", b"{", b"}", b"[", b"]", b": ", b"- ", b"? ", b"| \n", b"> \n", b"'", b'"', b"#",
        b"%YAML 1.1\n", b"---\n", b"...\n", b"\x00", b"\x1b[2J", b"\xff\xfe", b"\xef\xbb\xbf", "\u202e".encode(),
        "\u2028".encode(), b"\r", b"\x85", b"~",
        b"<<: ", b"[" * 2_000, b"- " * 2_000, b"a: " * 50, b"9" * 5_000, b"%TAG ! x\n", b"%YAML x.y\n", b"!!int ", b"\\ud800",
    ))  # fmt: skip
    return content[:at] + token + content[at:]


TEXT_CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (flipped, cut, repeated, indented, inserted)


# -- how it ends

def ending(content: bytes, folder: Path, registry: Registry) -> Ending:
    """How reading this file ended: as `fedbench validate --no-data` reads it, with the arithmetic of a plan."""
    path = folder / "suite.yaml"
    path.write_bytes(content)
    try:
        loaded, resolved = load_and_check(path, registry)
        cells = loaded.spec.n_cells(len(resolved.floors))
        for setting in resolved.settings:
            members = [resolve_coalition(c, setting.spec.federation.clients) for c in setting.coalitions]
            assert max(map(len, members)) <= setting.spec.federation.clients
    except UserError as error:
        return _judged(error.messages)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return Ending("broken", printable(f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"[:300]))
    return Ending("valid", f"{cells:,} cells")


def _judged(messages: tuple[str, ...]) -> Ending:
    """A refusal, or what is wrong with its messages."""
    if not 0 < len(messages) <= MOST_MESSAGES:
        return Ending("broken", f"{len(messages):,} messages")
    for message in messages:
        if len(message) > LONGEST_MESSAGE:
            return Ending("broken", f"a message of {len(message):,} characters")
        if not message.strip() or printable(message) != message or "\n" in message:
            return Ending("broken", f"a message that is not one line of printable characters: {printable(message)[:200]}")
    return Ending("refused", messages[0])


def limited(megabytes: int) -> None:
    """From now on this process may take so much memory more, until it ends."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(seed: int, n: int, megabytes: int = 300) -> int:
    """Try the examples and ``n`` mutants with so much memory beyond what loading every component takes; print the counts."""
    registry = Registry.discover()
    with tempfile.TemporaryDirectory() as folder:
        for found in (found for kind in KINDS for found in registry.components(kind)):
            found.load()
        limited(megabytes)
        counts: Counter[str] = Counter()
        made = (Mutant(how, text.encode()) for how, text in EXAMPLES.items())
        for mutant in (*made, *suite_mutants(seed, n)):
            end = ending(mutant.content, Path(folder), registry)
            counts[end.outcome] += 1
            if not end.held:
                print(f"{mutant.how}: {end.what}")
    print(json.dumps({"tried": sum(counts.values()), "held": sum(counts.values()) - counts["broken"], **counts}))
    return int(counts["broken"] > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
