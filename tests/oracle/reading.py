"""Read the numbers of a results folder: scores, metrics, facts, findings and board tables, without
keys, file names or times.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.store.reading import load_records
from fedbench.leaderboard.board import FullBoard

# what an audit set is: which samples, and member, outside or inside each
CANDIDATES = ("ids", "kind")
# what is measured anew each time
TIMES = re.compile(r"runtime|seconds|cpu|time\b|faster|slower|longer", re.IGNORECASE)
NUMBER = re.compile(r"[-+]?(?:\d+(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Part:
    """One kind of numbers of a cell, a run or a board.

    ``digest``: of all their bits. ``values``: a few of them, or their quantiles, for machines with
    other rounding.
    """

    digest: str
    values: tuple[float, ...]

    def bare(self) -> Part:
        """The digest without values."""
        return Part(self.digest, ())


Numbers = dict[str, dict[str, Part]]  # component -> kind of numbers -> what they are


def read(results: Path) -> tuple[dict[str, str], Numbers]:
    """(versions and CPU type that made the records, the numbers of every cell, run and board
    table).
    """
    records = sorted(load_records(results), key=lambda loaded: loaded.stem)
    found: Numbers = {}
    for loaded in records:
        record = loaded.record.model_dump(mode="json")
        run = "/".join(
            str(x)
            for x in (
                record["setting"],
                record["coalition"],
                record["defense"]["label"],
                f"s{record['seed']}",
            )
        )
        cell = f"{run}/{record['attack']['label']}/{record['view']}"
        assert cell not in found, f"two records of {cell}"
        found[cell] = {
            "outcome": exact(record["outcome"]),
            **cell_numbers(record),
            **scores(loaded.all_arrays()),
        }
        found.setdefault(f"{run} {attacker(record)}", {}).update(run_numbers(record))
    board = FullBoard().write(results, plots=False).read_text()
    provenance = records[0].record.provenance.model_dump()
    return made(provenance), found | {
        f"board table {i}": part for i, part in enumerate(tables(board), 1)
    }


def made(provenance: dict[str, Any]) -> dict[str, str]:
    """What decides the last digits."""
    return {
        name: str(provenance[name])
        for name in ("cpu", "cpu_capability", "python", "torch", "numpy", "device", "dtype")
    }


def attacker(record: dict[str, Any]) -> str:
    """The attack that takes part in the training of its own run; empty where it only judges."""
    return record["attack"]["label"] if record["identity"]["run"].get("attacker") else ""


def cell_numbers(record: dict[str, Any]) -> dict[str, Part]:
    """The metrics of every target and of all together; AUCs by group are the values for other
    machines.
    """
    groups = record["pooled"] or {}
    aucs = [
        auc
        for group in sorted(groups)
        if (auc := groups[group]["values"]["auc"]["value"]) is not None
    ]
    metrics = sorted(numbers([record["targets"], record["pooled"]]))
    return {"metrics": Part(digest(metrics), tuple(aucs))} if metrics else {}


def run_numbers(record: dict[str, Any]) -> dict[str, Part]:
    """Utility by round, facts of the defense and findings of the analyses, equal in all cells of a
    run.
    """
    parts = {
        "history": [record["utility"], record["history"]],
        "facts": record["facts"],
        "findings": record["analyses"],
    }
    found = {name: sorted(numbers(content)) for name, content in parts.items()}
    return {
        name: Part(digest(values), quartiles(values)) for name, values in found.items() if values
    }


def scores(arrays: dict[str, np.ndarray]) -> dict[str, Part]:
    """Score arrays, candidates and whatever else is stored for them, all targets together in their
    order.
    """
    names = sorted(
        arrays, key=lambda name: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", name)]
    )
    kinds: dict[str, list[np.ndarray]] = {}
    for name in names:
        kind = name.rpartition("_")[2] if re.match(r"t\d+_", name) else name
        kinds.setdefault(
            "candidates"
            if kind in CANDIDATES
            else "scores"
            if kind == "scores"
            else "other arrays",
            [],
        ).append(arrays[name])
    return {
        kind: Part(digest(parts), quartiles(np.concatenate([p.ravel() for p in parts])))
        for kind, parts in kinds.items()
    }


def numbers(content: Any) -> Iterator[float]:
    """Every number in a JSON value, whatever it is called and wherever it stands."""
    if isinstance(content, dict):
        content = list(content.values())
    if isinstance(content, list):
        for item in content:
            yield from numbers(item)
    elif isinstance(content, (int, float)):
        yield float(content)


def tables(board: str) -> Iterator[dict[str, Part]]:
    """The numbers of each table of a Markdown board, in its order, without those of its provenance
    and of the papers' times.
    """
    rows: list[str] = []
    for line in [*board.partition("## Provenance")[0].splitlines(), ""]:
        if line.startswith("|"):
            rows.append(line)
        elif rows:
            cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
            # is not there without times
            if not any(title.startswith("ours") and TIMES.search(title) for title in cells[0]):
                yield {"numbers": table(cells)}
            rows = []


def table(rows: list[list[str]]) -> Part:
    """The numbers of one table, row by row, without columns of times and claims about them."""
    kept = [i for i, title in enumerate(rows[0]) if not TIMES.search(title)]
    rows = [row for row in rows[2:] if not TIMES.search(" ".join(row))]
    found = [n for row in rows for i in kept if i < len(row) for n in NUMBER.findall(row[i])]
    return Part(digest(found), quartiles([float(n.replace(",", "")) for n in found]))


def quartiles(values: Iterable[float]) -> tuple[float, ...]:
    """Minimum, quartiles and maximum of the finite ones."""
    array = np.array(list(values), dtype=np.float64)
    array = array[np.isfinite(array)]
    return (
        tuple(float(f"{q:.6g}") for q in np.quantile(array, (0, 0.25, 0.5, 0.75, 1)))
        if len(array)
        else ()
    )


def exact(text: str) -> Part:
    """A word that must be the same everywhere."""
    return Part(text, ())


def digest(content: Any) -> str:
    """Ten hexadecimal digits of the SHA-256 of arrays, of numbers or of texts."""
    if isinstance(content, list) and content and isinstance(content[0], np.ndarray):
        data = b"".join(
            f"{a.dtype}{a.shape}".encode() + np.ascontiguousarray(a).tobytes() for a in content
        )
    else:
        data = json.dumps(content).encode()
    return hashlib.sha256(data).hexdigest()[:10]
