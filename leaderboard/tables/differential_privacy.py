"""Differential privacy that the facts of a row claim, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedbench.core.contract.board import Part
from fedbench.core.contract.defense import FactValue
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.tables.common import joined, sentence

_TERMS = ("neighbours", "sampling", "accountant")
_ON_EVERY_SEED = ("epsilon", "delta", "neighbours")


def claimed(row: DefenseRow) -> tuple[Part, ...]:
    """Return ``ε ≤ 8 (19.13 if replaced), δ = 1e-05: example without its gradient, ...``, the
    largest over seeds and members, of a row with the facts ``epsilon``, ``delta`` (numbers, or
    lists of them) and ``neighbours`` on every seed; empty of another row.

    Several defenses in one (their facts have a prefix) make one claim each.
    """
    facts = row.facts
    prefixes = [
        name.removesuffix("epsilon")
        for name in facts
        if name == "epsilon" or name.endswith(": epsilon")
    ]
    claims = [_claim(facts, prefix, len(row.utility_records)) for prefix in prefixes]
    return joined(filter(None, claims), "; ")


def _claim(facts: Mapping[str, Sequence[FactValue]], prefix: str, seeds: int) -> tuple[Part, ...]:
    values: dict[str, list[object]] = {}
    for name in ("epsilon", "delta", "epsilon if replaced", *_TERMS):
        # what all groups of a coalition report alike has no prefix
        by_seed = facts.get(prefix + name) or facts.get(name, [])
        if name in _ON_EVERY_SEED and len(by_seed) < seeds:
            return ()
        values[name] = []
        for value in by_seed:
            values[name] += value if isinstance(value, list) else [value]
    epsilon = _largest(values["epsilon"])
    delta = _largest(values["delta"])
    replaced = _largest(values["epsilon if replaced"])
    if epsilon is None or delta is None or (replaced is None and values["epsilon if replaced"]):
        return ()
    bound = f"\u03b5 \u2264 {_above(epsilon)}"
    if replaced is not None:
        bound += f" ({_above(replaced)} if replaced)"
    terms: dict[str, None] = {}
    for name in _TERMS:
        terms |= dict.fromkeys(map(str, values[name]))
    return sentence(f"{bound}, \u03b4 = {delta:.3g}: {{}}", joined(terms))


def _largest(values: Sequence[object]) -> float | None:
    """Return the largest number; None where there is none, or a value is no number."""
    numbers = [float(value) for value in values if type(value) in (int, float)]  # type: ignore[arg-type]
    return max(numbers, default=None) if len(numbers) == len(values) else None


def _above(bound: float) -> str:
    """Round up to four significant digits: what is printed of an upper bound is one too."""
    unit = 10.0 ** (math.floor(math.log10(max(bound, 1e-9))) - 3)
    return f"{math.ceil(bound / unit - 1e-9) * unit:,.10g}"
