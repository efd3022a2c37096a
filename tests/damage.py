"""Damage to the records and score files of a results folder, and how reading them ends."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bundles import arrays_of, redigested
from edits import put
from running import suite

from fedbench.core.cli.run import build_plan
from fedbench.core.contract.errors import UserError
from fedbench.core.run.worker import Failed, Recorder
from fedbench.core.store.integrity import sealed
from fedbench.core.store.reading import read_run
from fedbench.core.store.run_file import cells_of

OTHER_OUTCOMES = ("failed", "timeout", "diverged", "skipped")
Files = dict[str, bytes]
"""the files of ``records/`` by name"""
Change = Callable[[Files, random.Random], Files]


class Damage(NamedTuple):
    """``how(files, rng)``: the files that differ afterwards."""

    kind: str
    seed: int
    how: Change


def with_all_outcomes(folder: Path) -> Path:
    """The same results folder of `tiny`, with further records that have no scores."""
    elsewhere = folder.parent / "more"
    elsewhere.mkdir()
    path = suite(elsewhere, attacks=["blackbox-loss", "avg-cosine", "fta-l", "rmia"])
    (job,) = build_plan(str(path), (), folder, "cpu").jobs
    reason = 'its reason: é, <b> and "quotes"'
    recorder = Recorder(job, lambda kind, value: None)
    for cell, outcome in zip(job.cells, OTHER_OUTCOMES, strict=True):
        recorder.add(cell, Failed(outcome, reason))
    recorder.write()
    return folder


def endings(folder: Path, damages: Iterable[Damage]) -> Counter[tuple[str, str]]:
    """(kind of damage, how reading ended at worst) -> how often. The folder is as before
    afterwards.
    """
    files = {path.name: path.read_bytes() for path in sorted((folder / "records").iterdir())}
    return Counter((damage.kind, _ending(folder / "records", files, damage)) for damage in damages)


def _ending(records: Path, files: Files, damage: Damage) -> str:
    made = damage.how(files, random.Random(damage.seed))
    changed = {name: content for name, content in made.items() if content != files[name]}
    try:
        for name, content in changed.items():
            (records / name).write_bytes(content)
        ends = [_end(records / name, files) for name in {record_of(name) for name in changed}]
    finally:
        for name in changed:
            (records / name).write_bytes(files[name])
    return max(ends, default="as before")


def record_of(name: str) -> str:
    """The name of the record of a run, which the file of its arrays begins with."""
    return (
        f"{name.removesuffix('.npz').rpartition('--')[0]}.json" if name.endswith(".npz") else name
    )


def _end(path: Path, files: Files) -> str:
    """`refused`, `as before`, or what must not happen, which comes later in the alphabet."""
    try:
        loaded = read_run(path)
    except UserError as error:
        clear = (
            all(m.isprintable() and len(m) < 1000 and path.stem in m for m in error.messages)
            and len(error.messages) > 0
        )
        return "refused" if clear else "unclear message"
    except Exception:
        return "traceback"
    before = cells_of(json.loads(files[path.name]))
    same = [_numbers(r.record.model_dump(mode="json")) for r in loaded] == [
        _numbers(fields) for fields in before
    ]
    return "as before" if same else "said something else"


def _numbers(fields: dict[str, Any]) -> dict[str, Any]:
    """All but the digest of the arrays, which some changes make again."""
    return {
        **fields,
        "digests": {name: digest for name, digest in fields["digests"].items() if name != "scores"},
    }


# -- of bytes --------------------------------------------------------------------------------------


def _bit(content: bytes, rng: random.Random) -> bytes:
    out = bytearray(content)
    out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _some_bytes(content: bytes, rng: random.Random) -> bytes:
    out = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(out))
        out[at : at + rng.randint(0, 40)] = rng.randbytes(rng.randint(0, 40))
    return bytes(out)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def _of_file(
    suffix: str, change: Callable[[bytes, random.Random], bytes], among: bytes = b""
) -> Change:
    def how(files: Files, rng: random.Random) -> Files:
        name = rng.choice(
            [name for name in files if name.endswith(suffix) and among in files[name]]
        )
        return {name: change(files[name], rng)}

    return how


# -- of what a record says -------------------------------------------------------------------------


def _leaves(value: Any, at: tuple = ()) -> Iterator[tuple]:
    """The paths of everything in JSON that holds nothing else."""
    if not isinstance(value, dict | list):
        yield at
    for name, item in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from _leaves(item, (*at, name))


def _type(given: bytes, rng: random.Random) -> bytes:
    """A value, or a part that holds others, becomes something else; of a part the digest is made
    again.
    """
    content = json.loads(given)
    path = rng.choice(list(_leaves(content)))
    n = rng.randint(1, len(path))
    other = rng.choice([None, True, -1, 0.5, "text", [], {}, [[1]], [None], {"surprise": None}])
    put(content, "/".join(map(str, path[:n])), other)
    unsealed = {
        "described",
        "identity",
        "facts",
        "analyses",
        "notes",
        "complaints",
        "history",
        "targets",
        "pooled",
        "utility",
    }
    return (
        json.dumps(content).encode()
        if unsealed & set(map(str, path)) or n == len(path)
        else sealed(content)
    )


# -- of scores, with digests made again ------------------------------------------------------------


def _other_arrays(files: Files, rng: random.Random) -> Files:
    """An array of another shape or type, of objects, or with other values, while the record's
    numbers stay.
    """
    name = rng.choice([name for name in files if name.endswith(".npz")])
    record = record_of(name)
    arrays = arrays_of(files[name])
    which = rng.choice(
        [n for n in arrays if n.rpartition("_")[2] in ("scores", "kind", "canary", "in_mix", "ids")]
    )
    a = arrays[which]
    others = [
        a[:-1],
        a[None],
        np.concatenate([a, a]),
        a[:0],
        np.asarray(a.flat[0]),
        a.astype(np.complex128),
        a.astype("U8"),
        a.astype(">i4"),
        np.zeros(len(a), [("x", a.dtype)]),
        np.array([{}, "x"] * 40, object),
    ]
    if which.endswith("_scores"):
        others = [*others[:2], np.full(len(a), np.nan), np.full(len(a), np.inf), np.zeros(len(a))]
    if which.endswith("_kind"):
        others = [*others[:2], a - 1, a + 1, np.zeros_like(a)]
    out = io.BytesIO()
    np.savez(out, **{**arrays, which: rng.choice(others)})
    return {name: out.getvalue(), record: redigested(files[record], out.getvalue())}


KINDS: dict[str, Change] = {
    **{
        f"{of} {how.__name__}": _of_file(of, how)
        for of in (".json", ".npz")
        for how in (_bit, _some_bytes, _cut)
    },
    "another type": _of_file(".json", _type, among=b'"outcome": "ok"'),
    "other arrays": _other_arrays,
}


def damages(seed: int) -> list[Damage]:
    """One of every kind."""
    return [Damage(kind, seed * 1_000_003 + i, how) for i, (kind, how) in enumerate(KINDS.items())]
