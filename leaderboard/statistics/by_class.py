"""TF01 of one client's samples of one class, from what an analysis counted."""

from __future__ import annotations

from fedbench.core.contract.analysis import Findings
from fedbench.leaderboard.statistics.rows import Entry

COUNTED = frozenset({"client", "class", "members", "found"})
"""vectors of an analysis that counts, for every client and class, the members above a threshold at 0.1 % of the non-members"""


def tf01_of_class(entry: Entry, client: int, label: int | None) -> float | None:
    """In percent, all seeds together; ``label`` None: all classes. None where nothing was counted, or one seed could not be."""
    found = [counted for seed in entry.targets if (counted := _counted(entry, seed)) is not None]
    hits, of = 0.0, 0.0
    for arrays in (f.arrays for f in found):
        mine = (arrays["client"] == client) & ((arrays["class"] == label) | (label is None))
        hits, of = hits + float(arrays["found"][mine].sum()), of + float(arrays["members"][mine].sum())
    return None if not of or hits != hits else 100 * hits / of


def _counted(entry: Entry, seed: int) -> Findings | None:
    """Of the first analysis that counted."""
    loaded = entry.ok(seed)
    labels = sorted(loaded.record.analyses) if loaded is not None else []
    found = (entry.findings(label, seed) for label in labels)
    return next((f for f in found if f is not None and set(f.arrays) >= COUNTED), None)
