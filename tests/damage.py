"""What can happen to a results folder's records and score files, made to order, and how reading them ends.

``record_damages(seed, n)`` and ``score_damages(seed, n)`` are n damages each, of every kind in turn; ``every_bit(folder)`` is
every single bit flip of one record; ``tried(folder, damages)`` counts how each ended.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from running import invoke, suite

from fedbench.core.cli.run import build_plan
from fedbench.core.contract.errors import UserError
from fedbench.core.execution.clock import Clock
from fedbench.core.execution.worker import record_for
from fedbench.core.store.files import npz_bytes
from fedbench.core.store.integrity import sealed
from fedbench.core.store.reading import read_record
from fedbench.core.store.results import Results
from fedbench.leaderboard.statistics.recount import require_recounted

REFUSED, SAME, ACCEPTED, TRACEBACK, UNCLEAR = "refused", "same content", "ACCEPTED CHANGED", "TRACEBACK", "UNCLEAR MESSAGE"
HELD = {REFUSED, SAME}
Files = dict[str, bytes]
"""the files of ``records/`` by name"""
Change = Callable[[Files, random.Random], Files]


@dataclass(frozen=True)
class Damage:
    """``change(files)``: the files that differ afterwards (empty bytes: the file is there and empty)."""

    kind: str
    seed: int
    how: Change

    def change(self, files: Files) -> Files:
        changed = self.how(files, random.Random(self.seed))
        return {name: content for name, content in changed.items() if content != files[name]}


def folder_of_all_outcomes(root: Path) -> Path:
    """A results folder of a run of a second with a record of every outcome."""
    path = suite(root, seeds=[0, 1], defenses=["none", "mixup"], attacks=["loss-series", "blackbox-loss", "rmia"])
    invoke(path, "--results", root / "r")
    plan, store = build_plan(str(path), (), root / "r", "cpu"), Results(root / "r")
    cells = [(job, cell) for job in plan.jobs for cell in job.cells if (job.defense.name, job.seed) == ("mixup", 1)]
    for (job, cell), outcome in zip(cells, ("failed", "timeout", "diverged"), strict=True):
        store.write(cell.stem, record_for(job, cell, outcome, "its reason: é, <b> and \"quotes\"", Clock.start().outside()))
    return root / "r"


def files_of(folder: Path) -> Files:
    """Everything in the folder's ``records/``."""
    return {path.name: path.read_bytes() for path in sorted((folder / "records").iterdir())}


# -- how it ends -------------------------------------------------------------------------------------------------------


def ending(folder: Path, files: Files, damage: Damage) -> str:
    """How reading a damaged folder ends, at worst; the folder is as before afterwards."""
    records = folder / "records"
    changed = damage.change(files)
    try:
        for name, content in changed.items():
            (records / name).write_bytes(content)
        ends = [_end(records / name, files) for name in {Path(name).with_suffix(".json").name for name in changed}]
    finally:
        for name in changed:
            (records / name).write_bytes(files[name])
    order = [TRACEBACK, ACCEPTED, UNCLEAR, REFUSED, SAME]
    return min(ends, key=order.index, default=SAME)


def _end(path: Path, files: Files) -> str:
    try:
        loaded = read_record(path)
        require_recounted([loaded])
    except UserError as error:
        clear = all(m.isprintable() and len(m) < 1000 and path.stem in m for m in error.messages) and len(error.messages) > 0
        return REFUSED if clear else UNCLEAR
    except Exception:
        return TRACEBACK
    before = json.loads(files[path.name])
    scores = path.with_suffix(".npz")
    same = loaded.record.model_dump(mode="json") == before and (not scores.exists() or scores.read_bytes() == files[scores.name])
    return SAME if same else ACCEPTED


def tried(folder: Path, damages: Iterable[Damage]) -> Counter[tuple[str, str]]:
    """(kind of damage, how it ended) -> how often."""
    files = files_of(folder)
    return Counter((damage.kind, ending(folder, files, damage)) for damage in damages)


# -- records -----------------------------------------------------------------------------------------------------------


def record_damages(seed: int, n: int) -> Iterator[Damage]:
    """n damages of records, of every kind in turn."""
    kinds = list(RECORD_KINDS)
    yield from (Damage(kinds[i % len(kinds)], seed * 1_000_003 + i, RECORD_KINDS[kinds[i % len(kinds)]]) for i in range(n))


def every_bit(folder: Path) -> Iterator[Damage]:
    """Every single bit flip of the folder's first record with scores."""
    name, content = next((n, c) for n, c in files_of(folder).items() if n.endswith(".json") and json.loads(c)["outcome"] == "ok")
    for place in range(8 * len(content)):
        yield Damage("every bit", place, lambda files, rng, place=place: {name: _flipped(files[name], place)})


def _flipped(content: bytes, place: int) -> bytes:
    at, bit = divmod(place, 8)
    return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]


def _json(files: Files, rng: random.Random, ok: bool = False) -> str:
    names = [name for name in files if name.endswith(".json")]
    return rng.choice([name for name in names if not ok or json.loads(files[name])["outcome"] == "ok"])


def _bit(files: Files, rng: random.Random) -> Files:
    name = _json(files, rng)
    return {name: _flipped(files[name], rng.randrange(8 * len(files[name])))}


def _bytes(files: Files, rng: random.Random) -> Files:
    name = _json(files, rng)
    content = bytearray(files[name])
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(content))
        content[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
    return {name: bytes(content)}


def _cut(files: Files, rng: random.Random) -> Files:
    name = _json(files, rng)
    return {name: files[name][: rng.randrange(len(files[name]))]}


def _swapped(files: Files, rng: random.Random) -> Files:
    one, other = rng.sample([name for name in files if name.endswith(".json")], 2)
    return {one: files[other], other: files[one]}


def leaves(value: Any, at: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """(path, value) of everything in JSON that holds nothing else."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, dict | list):
        yield at, value
    for name, item in inner:
        yield from leaves(item, (*at, name))


def put(value: Any, path: tuple, new: Any) -> None:
    """Replace what stands at the path."""
    for step in path[:-1]:
        value = value[step]
    value[path[-1]] = new


def _other(value: Any, rng: random.Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice([-1, 1, 7, 1000])
    if isinstance(value, float):
        return rng.choice([value + 0.01, value * 0.9 + 1e-3, 1 - value, -value - 1e-3])
    return f"{value}x" if isinstance(value, str) else 0.5


def _number(files: Files, rng: random.Random) -> Files:
    name = _json(files, rng)
    content = json.loads(files[name])
    path, value = rng.choice([(p, v) for p, v in leaves(content) if type(v) in (int, float)])
    put(content, path, _other(value, rng))
    return {name: json.dumps(content, indent=1).encode()}


def _type(files: Files, rng: random.Random) -> Files:
    name = _json(files, rng)
    content = json.loads(files[name])
    path, value = rng.choice(list(leaves(content)))
    path = path[: rng.randint(1, len(path))]
    wrong = rng.choice([None, True, -1, 0.5, "text", [], {}, [[1]], {"a": None}, [value], str(value)])
    put(content, path, wrong)
    return {name: json.dumps(content).encode()}


def _misshapen(files: Files, rng: random.Random) -> Files:
    """A part of the record that holds others becomes a single value, and the digest is made again."""
    name = _json(files, rng)
    content = json.loads(files[name])
    paths = {path[:n] for path, _ in leaves(content) for n in range(1, len(path))}
    own = [p for p in sorted(paths, key=str) if p[0] not in ("described", "facts", "analyses", "notes", "complaints", "history")]
    put(content, rng.choice(own), rng.choice([True, -1, 0.5, "text", [[1]], [None], {"surprise": None}]))
    return {name: sealed(content)}


def _huge(files: Files, rng: random.Random) -> Files:
    name = _json(files, rng)
    content = json.loads(files[name])
    path, _ = rng.choice([(p, v) for p, v in leaves(content) if type(v) in (int, float)])
    put(content, path, "HUGE")
    number = rng.choice(["1e999", "-1e999", "9" * 400, "9" * 5000, "NaN", "Infinity", "1e308", "-0", "1e-400", str(2**64 + 1)])
    return {name: json.dumps(content).replace('"HUGE"', number).encode()}


def _keys(files: Files, rng: random.Random) -> Files:
    """A field twice, one too many, one too few, or the fields in another order."""
    name = _json(files, rng)
    content = json.loads(files[name])
    field = rng.choice(list(content))
    how = rng.randrange(4)
    if how == 0:
        twice = f'{json.dumps(field)}: {json.dumps(rng.choice([1, "x", None, _other(content[field], rng)]))}'
        text = json.dumps(content)
        return {name: rng.choice([f"{{{twice}, {text[1:]}", f"{text[:-1]}, {twice}}}"]).encode()}
    if how == 1:
        content["surprise"] = 1
    elif how == 2:
        del content[field]
    else:
        content = dict(rng.sample(list(content.items()), len(content)))
    return {name: json.dumps(content, indent=rng.choice([None, 2])).encode()}


def _version(files: Files, rng: random.Random) -> Files:
    """Another schema, with at least one half of the protection left."""
    name = _json(files, rng)
    content = json.loads(files[name]) | {"schema_version": rng.choice([-1, 0, 1, 2, 3, 4, 6, 99, "4", 4.0, None, True])}
    if left := rng.choice([None, "digest", "identity"]):
        del content[left]
    return {name: json.dumps(content).encode()}


def _forged(files: Files, rng: random.Random) -> Files:
    """A number edited, and the digest made again: of what is promised to be counted or hashed again."""
    name = _json(files, rng, ok=True)
    content = json.loads(files[name])
    counted = ("auc", "tf01", "n_members", "n_nonmembers", "accuracy", "n_test", "target")
    top = ("key", "run_key", "seed", "members", "identity", "digests", "defense", "attack")

    def promised(path: tuple) -> bool:
        if path[0] in ("targets", "pooled", "utility"):
            return path[-1] in counted[2:] or (path[-1] == "value" and path[-2] in counted)
        return path[0] in top and path[-1] != "label"

    path, value = rng.choice([(p, v) for p, v in leaves(content) if promised(p)])
    put(content, path, _other(value, rng))
    return {name: sealed(content)}


RECORD_KINDS: dict[str, Change] = {
    "one bit": _bit, "some bytes": _bytes, "cut short": _cut, "two records swapped": _swapped, "a number edited": _number,
    "a value of another type": _type, "a number out of range": _huge, "fields twice, new, gone, in another order": _keys,
    "another schema": _version, "a part that is none, its digest made again": _misshapen,
    "a number edited, its digest made again": _forged,
}  # fmt: skip


# -- score files -------------------------------------------------------------------------------------------------------


def score_damages(seed: int, n: int) -> Iterator[Damage]:
    """n damages of score files, of every kind in turn."""
    kinds = list(SCORE_KINDS)
    yield from (Damage(kinds[i % len(kinds)], seed * 1_000_003 + i, SCORE_KINDS[kinds[i % len(kinds)]]) for i in range(n))


def _npz(files: Files, rng: random.Random) -> str:
    return rng.choice([name for name in files if name.endswith(".npz")])


def _score_bit(files: Files, rng: random.Random) -> Files:
    name = _npz(files, rng)
    return {name: _flipped(files[name], rng.randrange(8 * len(files[name])))}


def _score_bytes(files: Files, rng: random.Random) -> Files:
    name = _npz(files, rng)
    content = bytearray(files[name])
    at = rng.randrange(len(content))
    content[at : at + rng.randint(0, 40)] = rng.randbytes(rng.randint(1, 40))
    return {name: bytes(content)}


def _score_cut(files: Files, rng: random.Random) -> Files:
    name = _npz(files, rng)
    return {name: files[name][: rng.randrange(len(files[name]))]}


def _score_swapped(files: Files, rng: random.Random) -> Files:
    one, other = rng.sample([name for name in files if name.endswith(".npz")], 2)
    return {one: files[other], other: files[one]}


def _shaped(a: np.ndarray, rng: random.Random) -> np.ndarray:
    """The array in another shape or type, or with values that cannot be."""
    changes: list[Callable[[], np.ndarray]] = [
        lambda: a[:-1], lambda: a[None], lambda: np.concatenate([a, a]), lambda: a[:0], lambda: np.asarray(a.flat[0]),
        lambda: a.astype(np.complex128), lambda: a.astype(np.float16), lambda: a.astype("U8"), lambda: a.astype(">i4"),
        lambda: np.zeros(len(a), [("x", a.dtype)]), lambda: np.asfortranarray(np.stack([a, a])),
    ]  # fmt: skip
    return rng.choice(changes)()


def _reshaped(files: Files, rng: random.Random) -> Files:
    """An array of another shape or type, missing, or of objects; every digest is made again."""
    name = _npz(files, rng)
    arrays = _arrays(files[name])
    which = rng.choice([n for n in arrays if n.partition("_")[2] in ("scores", "kind", "ids", "canary", "in_mix")])
    how = rng.randrange(4)
    if how == 0 and not which.endswith("in_mix"):  # which may be missing, in records of earlier schemas
        del arrays[which]
    elif how == 1:
        buffer = io.BytesIO()
        np.savez(buffer, **{**arrays, which: np.array([{}, "x"] * 40, object)}, allow_pickle=True)
        return _with_digests(files, name, buffer.getvalue())
    else:
        arrays[which] = _shaped(arrays[which], rng)
    return _with_digests(files, name, npz_bytes(arrays))


def _rescored(files: Files, rng: random.Random) -> Files:
    """Other scores, members or test predictions; every digest is made again, the numbers stay."""
    name = _npz(files, rng)
    arrays = _arrays(files[name])
    target = rng.choice([n for n in arrays if n.endswith("_scores")])
    kind = target.replace("scores", "kind")
    member = arrays[kind] == 0
    how = rng.randrange(5)
    if how == 0:
        arrays[target] = np.where(member, arrays[target].max() + 1, arrays[target])
    elif how == 1:
        arrays[target] = np.where(rng.random() < 0.5, np.nan, np.inf) * np.ones(len(member))
    elif how == 2:
        one = np.arange(len(member)) == rng.randrange(len(member))
        arrays[kind] = np.where(one, np.where(member, 1, 0), arrays[kind]).astype(np.int8)
    elif how == 3:
        arrays[kind] = np.full(len(member), rng.choice([-7, 3, 100]), np.int8)
    else:
        arrays["test_correct"] = ~arrays["test_correct"]
    return _with_digests(files, name, npz_bytes(arrays))


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _with_digests(files: Files, name: str, scores: bytes) -> Files:
    """The score file and its record, which believes in it."""
    record = Path(name).with_suffix(".json").name
    content = json.loads(files[record])
    content["digests"]["scores"] = hashlib.sha256(scores).hexdigest()
    return {name: scores, record: sealed(content)}


SCORE_KINDS: dict[str, Change] = {
    "scores: one bit": _score_bit, "scores: some bytes": _score_bytes, "scores: cut short": _score_cut,
    "scores: two files swapped": _score_swapped, "scores: another shape or type, digests made again": _reshaped,
    "scores: other values, digests made again": _rescored,
}  # fmt: skip
