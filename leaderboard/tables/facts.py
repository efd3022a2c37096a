"""What the defenses say of their runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedbench.core.contract.board import Column, Part, Table, Text, Words
from fedbench.core.contract.defense import FactValue
from fedbench.leaderboard.statistics.facts import Claim, Fact, claims, facts
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.tables.common import DEFENSE, joined

MAX_VALUES = 4
MOST_NAMED = 3  # defenses that say the same
MAX_MEANS = 16  # elements of a list of numbers, such as the draws of a bandit's arms


def fact_table(section: Section, told: Sequence[str] = ()) -> list[Table]:
    """A row a fact, and one row for all defenses that say the same: mean over seeds of a number, with its range where seeds
    differ; nothing where no defense says any. ``told``: facts that end so are shown elsewhere."""
    found: dict[str, dict[Text, list[str]]] = {}
    for f in facts(section):
        if not told or not f.name.endswith(tuple(told)):
            found.setdefault(f.name, {}).setdefault(_said(f), []).append(f.label)
    if not found:
        return []
    columns = (DEFENSE, Column(name=Words("fact"), align="left"), Column(name=Words("value"), align="left"))
    rows = tuple((_who(labels), name, said) for name, values in found.items() for said, labels in values.items())
    return [Table(title="What the defenses say of their runs", caption=Words(", means over seeds"), columns=columns, rows=rows)]


def _who(labels: Sequence[str]) -> Text:
    more = len(labels) - MOST_NAMED
    return joined(labels) if more <= 1 else (*joined(labels[:MOST_NAMED]), Words(f" and {more} more"))


def claimed(row: Row) -> tuple[Part, ...]:
    """``epsilon = 8, delta = 1e-05, example``: what a row claims of differential privacy, as its facts say; empty: nothing."""
    return joined([_claim(claim) for claim in claims(row)], "; ")


def claim_text(row: Row) -> str:
    """The same for a terminal."""
    parts = claimed(row)
    return "".join(part if isinstance(part, str) else part.text for part in parts)


def _claim(claim: Claim) -> tuple[Part, ...]:
    numbers = f"\u03b5 = {_span(claim.epsilon, _shown)}, \u03b4 = {_span(claim.delta, '{:.3g}'.format)}, "
    return Words(numbers), *joined(claim.units, " / ")


def _span(ends: tuple[float, float], shown: Callable[[float], str]) -> str:
    low, high = map(shown, ends)
    return low if low == high else f"{low} to {high}"


def _said(fact: Fact) -> Text:
    numbers = [v for v in fact.values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == len(fact.values):
        low, high, mean = min(numbers), max(numbers), float(np.mean(numbers))
        return Words(_shown(mean) + (f" ({_shown(low)} to {_shown(high)})" if low < high else ""))
    if (means := _means(fact.values)) is not None:
        return Words("; ".join(map(_shown, means)))
    return joined(list(dict.fromkeys(map(_text, fact.values)))[:MAX_VALUES], " / ")


def _shown(number: float) -> str:
    """Four digits that count; large numbers in full."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}" if number % 1 else f"{number:.0f}"


def _means(values: Sequence[FactValue]) -> np.ndarray | None:
    """Element by element, of short lists of numbers of one length; None of anything else."""
    lists = [v for v in values if isinstance(v, list) and v and all(isinstance(x, int | float) for x in v)]
    if len(lists) < len(values) or len({len(v) for v in lists}) > 1 or len(lists[0]) > MAX_MEANS:
        return None
    means: np.ndarray = np.mean(np.array(lists, dtype=np.float64), axis=0)
    return means


def _text(value: FactValue) -> Text:
    if isinstance(value, bool):
        return Words("yes" if value else "no")
    return _listed(value) if isinstance(value, list) else str(value)


def _listed(values: Sequence[int | float | str]) -> Text:
    """Few values in full, of many numbers how many and their range, of many words the first."""
    numbers = [v for v in values if not isinstance(v, str)]
    if len(values) > MAX_VALUES and len(numbers) == len(values):
        low, high = min(numbers), max(numbers)
        return Words(f"{len(values)} values, " + (f"{low:.4g} to {high:.4g}" if low < high else f"all {low:.4g}"))
    shown = [str(v) if isinstance(v, str) else Words(f"{v:.4g}") for v in values[:MAX_VALUES]]
    more = [Words(f"… ({len(values)})")] if len(values) > MAX_VALUES else []
    return joined([*shown, *more]) or Words("none")
