"""How often the gate stops an unchanged tree, and what it finds: ``python -m fedbench.leaderboard.simulations.gate``.

The values are measured ones: ``gate_pool.json`` beside this file is a baseline of the cells that this repository's own gate
runs, on many seeds of one tree; ``gate_elsewhere.json`` of the same tree and some of the same seeds, trained with other vector
instructions (``ATEN_CPU_CAPABILITY=avx2``), as on another type of CPU. Comparisons draw seeds from them; those of disjoint seeds
share trainings with one another, so the last rows draw seeds from a normal law with the pool's means and covariance.
docs/gate.md says how to make both files again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from fedbench.core.numerics.rng import numpy_rng
from fedbench.leaderboard.gate.file import read_baseline
from fedbench.leaderboard.gate.measures import ACCURACY, MEASURES, Value
from fedbench.leaderboard.gate.snapshot import Cell, Key, Snapshot
from fedbench.leaderboard.gate.verdict import Comparison, compare
from fedbench.leaderboard.simulations import show

FOLDER = Path(__file__).parent
SEEDS = (3, 5, 8)
OURS = 5  # seeds of this repository's own gate
SIZES = (0.02, 0.05, 0.1, 0.2)  # of planted changes of an AUC
LOSSES = (0.02, 0.05)  # of accuracy
REPETITIONS, QUICK = 100, 3
DRAWN = 20  # times as many where alarms are rare, or the law costs no training

Pair = tuple[Snapshot, Snapshot]
"""(old, new)"""
Draw = Callable[[int, np.random.Generator], Pair]


@cache
def pool() -> Snapshot:
    """Many seeds of one tree."""
    return read_baseline(FOLDER / "gate_pool.json")


@cache
def elsewhere() -> Snapshot:
    """The same tree, rounded otherwise."""
    return read_baseline(FOLDER / "gate_elsewhere.json")


def only(snapshot: Snapshot, seeds: Sequence[int]) -> Snapshot:
    """As a folder of these seeds says it."""
    cells = {
        key: Cell(
            key, {s: c.identities[s] for s in seeds}, {m: {s: v[s] for s in seeds} for m, v in c.values.items()}
        ) for key, c in snapshot.cells.items()
    }  # fmt: skip
    return replace(snapshot, cells=cells)


def again(n: int, rng: np.random.Generator) -> Pair:
    """The same seeds on the same machine: there nothing is random."""
    same = only(pool(), rng.choice(pool().seeds, n, replace=False).tolist())
    return same, same


def rounded(n: int, rng: np.random.Generator) -> Pair:
    """The same seeds, rounded otherwise."""
    seeds = rng.choice(elsewhere().seeds, n, replace=False).tolist()
    return only(pool(), seeds), only(elsewhere(), seeds)


def disjoint(n: int, rng: np.random.Generator) -> Pair:
    """Seeds of either side that the other has not."""
    seeds = rng.choice(pool().seeds, 2 * n, replace=False).tolist()
    return only(pool(), seeds[:n]), only(pool(), seeds[n:])


def drawn(n: int, rng: np.random.Generator) -> Pair:
    """Seeds of a normal law with the pool's means and covariance, over all cells and measures together."""
    places, table = _table()
    mean, left = table.mean(axis=0), table - table.mean(axis=0)
    values = mean + rng.standard_normal((2 * n, len(table))) @ left / np.sqrt(len(table) - 1)
    numbers = dict(zip(places, values.T, strict=True))
    known = only(pool(), pool().seeds[: 2 * n])
    made = _changed(known, lambda key, name, i, value: _within(name, numbers[key, name][i], value.error))
    return only(made, made.seeds[:n]), only(made, made.seeds[n:])


@cache
def _table() -> tuple[list[tuple[Key, str]], np.ndarray]:
    """Each cell and measure, and its values [seeds, places]."""
    places = [(key, name) for key, cell in pool().cells.items() for name in cell.values]
    columns = [[pool().cells[key].values[name][s].mean for s in pool().seeds] for key, name in places]
    return places, np.array(columns).T


def _changed(snapshot: Snapshot, change: Callable[[Key, str, int, Value], Value]) -> Snapshot:
    """``change``: (cell, measure, how manieth seed, value) -> value."""
    cells = {
        key: replace(cell, values={
            name: {s: change(key, name, i, v) for i, (s, v) in enumerate(sorted(found.items()))}
            for name, found in cell.values.items()
        }) for key, cell in snapshot.cells.items()
    }  # fmt: skip
    return replace(snapshot, cells=cells)


def _within(name: str, value: float, error: float | None) -> Value:
    m = MEASURES[name]
    return Value((float(np.clip(value, m.low, m.high)),), error)


def planted(snapshot: Snapshot, attack: str, metric: str, size: float) -> Snapshot:
    """Every value of that metric and attack lowered by so much."""

    def lower(key: Key, name: str, i: int, value: Value) -> Value:
        hit = key.attack == attack and MEASURES[name].metric == metric
        return replace(value, parts=tuple(p - size for p in value.parts)) if hit else value

    return _changed(snapshot, lower)


DESIGNS: Mapping[str, Draw] = {
    "nothing: same seeds, same CPU": again, "rounding: same seeds, another CPU": rounded,
    "disjoint seeds": disjoint, "disjoint seeds, drawn from a normal law": drawn,
}  # fmt: skip


QUICK_DESIGNS = ("nothing: same seeds, same CPU", "disjoint seeds")  # half a minute for both; the others take minutes


def tables(repetitions: int, designs: Sequence[str] = tuple(DESIGNS)) -> Iterator[str]:
    """Lines of Markdown; ``designs``: the rows of these alone."""
    sides = len(pool().seeds), len(elsewhere().seeds)
    yield f"{sides[0]} seeds of one tree, {sides[1]} of them trained with other vector instructions, too. A false alarm is a"
    yield "comparison of two unchanged trees of which any number is better or worse; uncorrected: by intervals of 95 % each."
    yield ""
    yield "| what differs | seeds a side | numbers compared | comparisons | false alarms, % | uncorrected, % |"
    yield "|---|---|---|---|---|---|"
    for name, draw in ((name, DESIGNS[name]) for name in designs):
        for seeds in SEEDS:
            n = repetitions * (DRAWN if draw in (rounded, drawn) else 1)
            yield f"| {name} | {seeds} | {_false_alarms(name, draw, seeds, n)} |"
    yield ""
    yield f"Planted changes, {repetitions} comparisons a row. Blamed besides: something else has a verdict, too."
    yield ""
    yield "| what differs otherwise | seeds a side | planted | found, % | blamed besides, % |"
    yield "|---|---|---|---|---|"
    for name, draw in ((name, DESIGNS[name]) for name in designs if DESIGNS[name] is not drawn):
        for seeds in (OURS, SEEDS[-1]):
            for metric, size in [*(("auc", size) for size in SIZES), *((ACCURACY, loss) for loss in LOSSES)]:
                found, besides = _found(draw, seeds, metric, size, repetitions)
                what = "AUC of one attack" if metric == "auc" else metric
                yield f"| {name} | {seeds} | {what} -{size:.2f} | {found:.0f} | {besides:.0f} |"


def _false_alarms(name: str, draw: Draw, seeds: int, n: int) -> str:
    rng = numpy_rng(0, f"simulation of the gate, {name}, {seeds} seeds")
    alarms = bare = compared = 0
    for _ in range(n):
        old, new = draw(seeds, rng)
        found = compare(new, old)
        alarms, compared = alarms + bool(blamed(found)), found.compared
        bare += bool(blamed(compare(new, old, false_alarms=0.05 * compared)))
    return f"{compared} | {n} | {100 * alarms / n:.1f} | {100 * bare / n:.0f}"


def blamed(found: Comparison) -> set[str]:
    """Attacks that got better or worse; an empty name for the accuracy."""
    return {row.key.attack for row in found.rows if row.verdict in ("better", "worse")}


def _found(draw: Draw, seeds: int, metric: str, size: float, n: int) -> tuple[float, float]:
    rng = numpy_rng(0, f"power of the gate, {draw.__name__}, {seeds} seeds, {metric} {size}")
    attacks = sorted({key.attack for key in pool().cells if key.attack})
    found = besides = 0
    for _ in range(n):
        attack = "" if metric == ACCURACY else str(rng.choice(attacks))
        old, new = draw(seeds, rng)
        names = blamed(compare(planted(new, attack, metric, size), old))
        found, besides = found + (attack in names), besides + bool(names - {attack})
    return 100 * found / n, 100 * besides / n


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables; ``--quick`` with a few repetitions."""
    show(tables, REPETITIONS, QUICK, arguments)


if __name__ == "__main__":
    main()
