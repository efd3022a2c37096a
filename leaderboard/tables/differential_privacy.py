"""Differential privacy that a row claims, beside the bound of an audit, as text."""

from __future__ import annotations

import math

from fedbench.core.contract.board import Part, Text
from fedbench.leaderboard.statistics.privacy_claims import PrivacyClaim, claims_of
from fedbench.leaderboard.statistics.rows import DefenseRow
from fedbench.leaderboard.statistics.sections import BoardSection
from fedbench.leaderboard.tables.common import joined, sentence


def claimed(section: BoardSection, row: DefenseRow) -> tuple[Part, ...]:
    """Return ``ε ≤ 8 (19.13 if replaced), δ = 1e-05: example without its gradient, ...`` and, where
    coins refute it, the bound; empty of a row without a claim.
    """
    texts = [_text(claim) for claim in claims_of(row)]
    audit = section.privacy_audits.get(row.label)
    if audit is not None and audit.refuted:
        assert audit.bound is not None
        texts.append(sentence(f"**refuted**: ε ≥ {audit.bound.epsilon:.2f}"))
    return joined(texts, "; ")


def _text(claim: PrivacyClaim) -> tuple[Part, ...]:
    bound = f"ε ≤ {_above(claim.epsilon)}"
    if claim.replaced is not None:
        bound += f" ({_above(claim.replaced)} if replaced)"
    return sentence(f"{bound}, δ = {claim.delta:.3g}: {{}}", joined(claim.terms))


def _above(bound: float) -> str:
    """Round up to four significant digits: what is printed of an upper bound is one too."""
    unit = 10.0 ** (math.floor(math.log10(max(bound, 1e-9))) - 3)
    return f"{math.ceil(bound / unit - 1e-9) * unit:,.10g}"


def refutations(section: BoardSection) -> list[Text]:
    """Return a sentence for each row that claims a smaller epsilon than its coins show."""
    audits = section.privacy_audits.items()
    return [
        sentence(f"**Refuted**: {{}} claims {audit} (95 %).", label)
        for label, audit in audits
        if audit.refuted
    ]
