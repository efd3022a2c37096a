"""The papers' tables as they are printed, and what of them can stand beside ours."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from fedbench.core import UserError

MAXIMA = ("auc_max", "advantage_max")
"""over all attacks and rounds, printed for every client of a paper"""
VIEW_OF = {"globaladversary": "server", "globaladversaryadaptive": "server", "localadversary": "client"}
"""an adversary of a paper, without punctuation -> our view: on local models the server, on the global model a client"""
COMPONENT = {
    "fc": "mlp-512-128", "cnn2": "membershield-cnn2", "cnn3": "membershield-cnn3", "mlp4": "membershield-mlp4",
}  # fmt: skip
"""what a paper calls a model -> the component that is its network, where the names differ"""
AVERAGE = "avg"
"""the attack of a paper's printed average over its attacks"""
_RUNTIME = "runtime_s"
_CELL = ("table", "dataset", "model", "partition", "case", "defense", "attack", "metric")


@cache
def published(source: str) -> tuple[dict[str, str], ...]:
    """The rows of ``leaderboard/reference/<source>.csv``; raises ``UserError`` for a paper that is not there."""
    folder = files("fedbench.leaderboard.reference")
    names = sorted(f.name.removesuffix(".csv") for f in folder.iterdir() if f.name.endswith(".csv"))
    if source not in names:
        raise UserError(f"no reference numbers of '{source}'; there are {', '.join(names)}")
    return tuple(csv.DictReader((folder / f"{source}.csv").read_text(encoding="utf-8").splitlines()))


def plain(name: str) -> str:
    """A method's name without punctuation: ``fedmia-ii`` and ``fedmia_ii``, ``dp-sgd`` and ``dpsgd`` are the same."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def same(theirs: str, ours: str) -> bool:
    """Whether a paper's data set or model is the one that a setting has, by their names."""
    return plain(ours) == plain(COMPONENT.get(theirs, theirs))


def comparable(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The rows of a paper's table, with numbers that only make sense together as one row: maxima of every client as their mean,
    with ``low`` and ``high``; seconds as a share of those of the undefended federation beside them."""
    return [*(r for r in rows if r["metric"] not in (*MAXIMA, _RUNTIME)), *_over_clients(rows), *_relative(rows)]


def _over_clients(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in (r for r in rows if r["metric"] in MAXIMA):
        one = {**row, "attack": row["attack"].partition(":")[0]}
        groups.setdefault(tuple(one[c] for c in _CELL), []).append(one)
    found = []
    for own in groups.values():
        values = [float(r["mean"]) for r in own]
        found.append(
            {**own[0], "mean": repr(sum(values) / len(values)), "low": repr(min(values)), "high": repr(max(values))}
        )
    return found


def _relative(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    times = [r for r in rows if r["metric"] == _RUNTIME]
    plain_ones = {_place(r): float(r["mean"]) for r in times if r["defense"] == "none"}
    return [
        {**r, "metric": "runtime", "mean": repr(float(r["mean"]) / plain_ones[_place(r)])}
        for r in times if r["defense"] != "none" and _place(r) in plain_ones
    ]  # fmt: skip


def _place(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[c] for c in ("table", "dataset", "model", "partition", "case"))
