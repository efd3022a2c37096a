"""Ids of the rows that stand for a whole coalition, on the client axis of the signals."""

from __future__ import annotations

from collections.abc import Sequence

from fedbench.core.contract.errors import SkipCell

COALITION = -2  # of all that defend or, of several coalitions, the first; the others are far below the rows of global models
_SEVERAL = -1_000_000


def coalition_row(g: int) -> int:
    """Id of the row of the ``g``-th coalition: -2 for the first, -1000001, -1000002, ... for the others."""
    return COALITION if g == 0 else _SEVERAL - g


def coalition_of_row(row: int) -> int | None:
    """Which coalition a row is the mean of, if any."""
    if row == COALITION:
        return 0
    return _SEVERAL - row if row < _SEVERAL else None


def seen_from(target: int | None, rows: Sequence[int], coalitions: Sequence[tuple[int, ...]]) -> list[int]:
    """``rows`` for whoever asks about ``target`` through its coalition: the mean of its own one is called -2, as where there is
    one alone, and the first one's is called what the other was.

    Raises ``SkipCell`` where several ``coalitions`` defend and the target is in none of them, or is many clients together.
    """
    if len(coalitions) < 2:
        return list(rows)
    own = next((g for g, members in enumerate(coalitions) if target in members), None)
    if own is None:
        whom = "many clients together" if target is None else f"client {target}, which is in none of them"
        raise SkipCell(f"it follows the target's own coalition; there are {len(coalitions)}, and the audit asks about {whom}")
    exchanged = {coalition_row(own): COALITION, COALITION: coalition_row(own)}
    return [exchanged.get(row, row) for row in rows]
