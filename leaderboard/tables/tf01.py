"""How TF01 came about in a section, or how many non-members it lacks: below every table that has it."""

from __future__ import annotations

from collections.abc import Mapping

from fedbench.core.contract.board import Text, Words
from fedbench.leaderboard.statistics.rows import Row
from fedbench.leaderboard.statistics.sections import Section
from fedbench.leaderboard.statistics.tf01 import ALIGNED_OF_ONE, ALIGNED_TOGETHER
from fedbench.leaderboard.tables.common import joined, spanned


def tf01_notes(section: Section) -> tuple[Text, ...]:
    """One sentence on the section, and one on rows that lack what others have."""
    sizes = [n for row in section.rows for n in _sizes(row)]
    if not has_tf01(section):
        return (_missing(section),)
    said = "each with a threshold of its own"
    if section.comparison.aligned():
        each = spanned((min(sizes), max(sizes))).text
        said = f"aligned and with one threshold, since {each} non-members{_own_parts(section)} are too few for one of their own"
        said += "; that tends to read low (docs/method.md)"
    without = [row.label for row in section.rows if not any(_has(section, row, attack) for attack in section.attacks)]
    rows: list[Text] = [(Words("TF01 n/a: too few scores of "), *joined(without), Words("."))] if without else []
    return (Words(f"TF01: targets and seeds pooled, {said}."), *rows)


def has_tf01(section: Section) -> bool:
    """Whether any cell has it."""
    return any(_has(section, row, attack) for row in section.rows for attack in section.attacks)


def _has(section: Section, row: Row, attack: str) -> bool:
    return section.comparison.tf01(row.label, attack) is not None


def _missing(section: Section) -> Text:
    sizes = max((_sizes(row) for row in section.rows), key=sum, default=[])
    missing, short = max(ALIGNED_TOGETHER - sum(sizes), 0), max(ALIGNED_OF_ONE - min(sizes, default=0), 0)
    said = f"TF01: n/a, since the {len(section.units)} targets and seeds have {sum(sizes):,} outside non-members together"
    said += f", {missing:,} too few to say anything at a false-positive rate of 0.1 %" if missing else ""
    said += f", and {min(sizes, default=0)} of one are {short} too few to align its scores by" if short else ""
    if not missing and not short:
        said += f", too few for thresholds of their own, and {len(section.seeds)} seeds are too few to judge them by a common one"
    return Words(f"{said}.")


def _own_parts(section: Section) -> str:
    """Whose non-members cannot be more, where they are what each target holds itself."""
    federation = section.described.get("federation")
    test = federation.get("test") if isinstance(federation, Mapping) else None
    return " each, all of a target's own test part," if isinstance(test, int | float) and test > 0 else " each"


def _sizes(row: Row) -> list[int]:
    """Outside non-members of each target and seed, under the attack that has most."""
    found = [[s.n_nonmembers for s in entry.units("ofl").values()] for entry in row.entries.values()]
    return max(found, key=sum, default=[])
