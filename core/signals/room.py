"""Whether there is room for what a signal measures: a vector of every sample, row and round adds up."""

from __future__ import annotations

MOST_BYTES = 4 * 2**30  # of one vector signal; while a run packs it, it is in memory twice


def room_for(rounds: int, rows: int, samples: int, width: tuple[int, ...]) -> str:
    """Why a signal of so many components is not measured of so many audited rounds, rows of its views and samples of the pool;
    empty where it fits into ``MOST_BYTES`` of float32."""
    size = 4 * rounds * rows * samples
    for d in width:
        size *= d
    if size <= MOST_BYTES:
        return ""
    each = "x".join(map(str, width)) or "1"
    return (
        f"{rounds:,} audited rounds x {rows:,} rows x {samples:,} samples x {each} components of 4 bytes are "
        f"{size / 2**20:,.1f} MiB, at most {MOST_BYTES / 2**20:,.1f} MiB are kept of one signal: raise audit.every, lower "
        "audit.nonmembers, name fewer clients in audit.targets, or ask with a view of fewer rows"
    )
