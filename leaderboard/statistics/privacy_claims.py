"""Differential privacy that the facts of a row claim, and what the coins of its seeds say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedbench.core.contract.defense import FactValue
from fedbench.leaderboard.statistics.audits import DELTA, Calibrated, epsilon_bound
from fedbench.leaderboard.statistics.epsilon import ChosenBound
from fedbench.leaderboard.statistics.rows import DefenseRow

EXAMPLE = "example"
_UNIT = "unit of privacy"
_TERMS = ("neighbours", "sampling", "accountant")
_ON_EVERY_SEED = ("epsilon", "delta", "neighbours")


@dataclass(frozen=True)
class PrivacyClaim:
    """Epsilon that one defense of a row claims, the largest over seeds and members."""

    epsilon: float
    delta: float
    replaced: float | None
    """epsilon if an example is replaced, not left out"""
    units: frozenset[str]
    """what is hidden: ``example`` or ``client``; empty where the facts do not say"""
    terms: tuple[str, ...]
    """neighbours, sampling and accountant, in words"""


def claims_of(row: DefenseRow) -> list[PrivacyClaim]:
    """Return the claims of a row with the facts ``epsilon``, ``delta`` (numbers, or lists of them)
    and ``neighbours`` on every seed.

    Several defenses in one (their facts have a prefix) make one claim each.
    """
    facts = row.facts
    names = [name for name in facts if name == "epsilon" or name.endswith(": epsilon")]
    seeds = len(row.utility_records)
    claims = [_claim(facts, name.removesuffix("epsilon"), seeds) for name in names]
    return [claim for claim in claims if claim is not None]


def _claim(
    facts: Mapping[str, Sequence[FactValue]], prefix: str, seeds: int
) -> PrivacyClaim | None:
    values: dict[str, list[object]] = {}
    for name in ("epsilon", "delta", "epsilon if replaced", _UNIT, *_TERMS):
        # what all groups of a coalition report alike has no prefix
        by_seed = facts.get(prefix + name) or facts.get(name, [])
        if name in _ON_EVERY_SEED and len(by_seed) < seeds:
            return None
        values[name] = []
        for value in by_seed:
            values[name] += value if isinstance(value, list) else [value]
    epsilon = _largest(values["epsilon"])
    delta = _largest(values["delta"])
    replaced = _largest(values["epsilon if replaced"])
    if epsilon is None or delta is None or (replaced is None and values["epsilon if replaced"]):
        return None
    terms: dict[str, None] = {}
    for name in _TERMS:
        terms |= dict.fromkeys(map(str, values[name]))
    units = frozenset(map(str, values[_UNIT]))
    return PrivacyClaim(epsilon, delta, replaced, units, tuple(terms))


def _largest(values: Sequence[object]) -> float | None:
    """Return the largest number; None where there is none, or a value is no number."""
    numbers = [float(value) for value in values if type(value) in (int, float)]  # type: ignore[arg-type]
    return max(numbers, default=None) if len(numbers) == len(values) else None


# -- audits ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PrivacyAudit:
    """Lower bound on a row's epsilon beside the epsilon that it claims, at one delta."""

    delta: float
    bound: ChosenBound | None
    """None without scores of all coins"""
    claimed: float | None = None
    """None without a claim that coins of single samples can refute"""

    @property
    def refuted(self) -> bool:
        """Whether the bound is above the claim."""
        if self.bound is None or self.claimed is None:
            return False
        return self.bound.epsilon > self.claimed

    def __str__(self) -> str:
        """``an epsilon of 1 at delta 1e-05, and the coins show at least 2.31``."""
        assert self.bound is not None
        shown = f"the coins show at least {self.bound.epsilon:.2f}"
        return f"an epsilon of {self.claimed:.4g} at delta {self.delta:g}, and {shown}"


def privacy_audit(scores: Calibrated, row: DefenseRow) -> PrivacyAudit:
    """Return the bound of a row at the delta of its claim.

    Coins of samples refute what is claimed of examples by a single defense or, at one delta, by
    several, of which the largest epsilon counts. Every judged client has to be one that defends.
    """
    claims = claims_of(row)
    deltas = {claim.delta for claim in claims}
    units = {unit for claim in claims for unit in claim.units or {""}}
    targets = {target for _, target in scores.units}
    defended = all(targets <= set(r.record.members) for r in row.utility_records.values())
    if units != {EXAMPLE} or len(deltas) > 1 or not defended:
        return PrivacyAudit(DELTA, epsilon_bound(scores, row.label, DELTA))
    delta = deltas.pop()
    largest = max(claim.epsilon for claim in claims)
    return PrivacyAudit(delta, epsilon_bound(scores, row.label, delta), largest)
