"""Made-up snapshots for tests of the regression gate: two defenses, two attacks, and what makes them comparable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from fedbench.leaderboard.gate.measures import ACCURACY, Value, definitions
from fedbench.leaderboard.gate.snapshot import Cell, Key, Snapshot

DEFENSES, ATTACKS, SEEDS = ("mixup", "none"), ("fta", "yeom"), (0, 1, 2, 3, 4)
SIGNAL_OF = {"fta": "confidence", "yeom": "loss"}


def use(name: str, **params: Any) -> dict[str, Any]:
    """A component as records name it."""
    return {"name": name, "params": params, "target": f"p.{name}:C", "distribution": "p 1.0", "digest": f"code of {name}"}


def identity(defense: str, attack: str, seed: int) -> dict[str, Any]:
    """What a cell is made of, in the form of a record's identity."""
    run = {
        "setting": {"federation": {"clients": 4, "rounds": 20}, "audit": {"every": 10}}, "members": [0, 1], "targets": [0, 1],
        "seed": seed, "dataset": use("digits", test=100), "model": use("mlp"), "defense": use(defense, rate=0.2),
        "attacker": None,
        "digests": {"data": f"data {seed}", "split": f"split {seed}", "engine": "code of the engine"}, "device": "cpu",
        "provenance": {"torch": "2.11", "cpu_capability": "AVX2", "dtype": "float32"}, "contract": 2, "expected_malicious": 0,
    }  # fmt: skip
    if not attack:
        return {"run": run}
    return {"run": run, "attack": use(attack), "signals": {SIGNAL_OF[attack]: use(SIGNAL_OF[attack])}}


def snapshot(seeds: Sequence[int] = SEEDS, noise: float = 0.0, draw: int = 0, suite: str = "demo") -> Snapshot:
    """An AUC of .6 outside, .55 inside, a TF01 of 1 % and an accuracy of .9, each with normal ``noise`` times its scale."""
    rng = np.random.default_rng(draw)

    def values(mean: float, scale: float, error: float | None) -> dict[int, Value]:
        return {s: Value((round(mean + scale * noise * rng.standard_normal(), 5),), error) for s in seeds}

    cells = {}
    for defense in DEFENSES:
        for attack in ("", *ATTACKS):
            key = Key("iid", "pair", defense, attack, "server" if attack else "")
            found = {"auc:ofl": values(0.6, 1, 0.03), "auc:ifl": values(0.55, 1, 0.03), "tf01:ofl": values(1.0, 10, None)}
            own = found if attack else {ACCURACY: values(0.9, 1, 0.01)}
            cells[key] = Cell(key, {s: identity(defense, attack, s) for s in seeds}, own)
    made = {"torch": ["2.11"], "cpu_type": ["A CPU"]}
    return Snapshot(suite=suite, made=made, definitions=definitions(), cells=cells)


def moved(made: Snapshot, by: float, measure: str = "auc:ofl", attack: str = "fta", defense: str = "mixup") -> Snapshot:
    """With one measure of one cell moved."""

    def move(cell: Cell) -> Cell:
        values = {s: Value(tuple(p + by for p in v.parts), v.error) for s, v in cell.values[measure].items()}
        return replace(cell, values={**cell.values, measure: values})

    return _edited(made, move, lambda key: (key.attack, key.defense) == (attack, defense))


def made_of(made: Snapshot, change: Callable[[dict[str, Any]], object]) -> Snapshot:
    """With every identity changed in place by ``change``."""

    def edit(cell: Cell) -> Cell:
        identities = deepcopy(dict(cell.identities))
        for one in identities.values():
            change(one)
        return replace(cell, identities=identities)

    return _edited(made, edit, lambda key: True)


def without(made: Snapshot, *keys: Key) -> Snapshot:
    """Without these cells."""
    return replace(made, cells={key: cell for key, cell in made.cells.items() if key not in keys})


def _edited(made: Snapshot, edit: Callable[[Cell], Cell], where: Callable[[Key], bool]) -> Snapshot:
    return replace(made, cells={key: edit(cell) if where(key) else cell for key, cell in made.cells.items()})
