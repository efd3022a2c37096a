"""What aligned TF01 reads where thresholds of the targets' own can be had, on scores of boards.

``python -m fedbench.leaderboard.simulations.tf01_thinned RESULTS...`` prints the table.

Every cell of the boards of these folders, with the sign that the other seeds ask for, once in full and thrice with a few of its
non-members, drawn anew for every target: 1,200 over all of them, and 48 of each at least. No scores are made up here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.statistics.aligned import aligned_tpr
from fedbench.leaderboard.statistics.build import build_sections, newest
from fedbench.leaderboard.statistics.contest import Contest
from fedbench.leaderboard.statistics.pooled import pooled_tpr
from fedbench.leaderboard.statistics.sample import Sample

BANDS = (0.0, 0.003, 0.02, 0.1, 1.0)  # of TF01 in full
TOGETHER, LEAST, TIMES = 1200, 48, 3


def compared(contest: Contest) -> Iterator[tuple[float, float, float, float]]:
    """(in full, aligned, its low end, its high end) of every cell and drawing, fractions."""
    rng = numpy_rng(0, "thinned")
    for row in contest.rows:
        for attack in contest.attacks:
            signs = contest.sign(row.label, attack)
            units = [p.own[row.label, attack].signed(signs[p.fold]) for p in contest.parts if (row.label, attack) in p.own]
            full = pooled_tpr(units) if units else None
            for _ in range(TIMES if full else 0):
                found = aligned_tpr([_thinned(unit, max(LEAST, TOGETHER // len(units)), rng) for unit in units])
                if full is not None and found is not None:
                    yield full.value, found.value, found.low, found.high


def _thinned(unit: Sample, n: int, rng: np.random.Generator) -> Sample:
    kept = rng.permutation(len(unit.nonmember))[:n]
    return Sample(unit.seed, unit.member, unit.nonmember[kept], unit.ids[kept])


def tables(folders: Sequence[Path]) -> Iterator[str]:
    """Lines of Markdown."""
    contests = [section.contest for folder in folders for section in build_sections(newest(load_records(folder))[0])]
    found = np.array([numbers for contest in contests for numbers in compared(contest)]).reshape(-1, 4)
    yield f"Boards: {', '.join(folder.name for folder in folders)}."
    yield ""
    yield "| TF01 in full | cells | mean in full % | mean aligned % | in full within the aligned brackets % |"
    yield "|---|---|---|---|---|"
    for low, high in pairwise(BANDS):
        own = found[(found[:, 0] >= low) & ((found[:, 0] < high) | (high == 1))]
        if len(own):
            inside = np.mean((own[:, 2] <= own[:, 0]) & (own[:, 0] <= own[:, 3]))
            yield (
                f"| {100 * low:g} to {100 * high:g} | {len(own) // TIMES} | {100 * own[:, 0].mean():.2f} "
                f"| {100 * own[:, 1].mean():.2f} | {100 * inside:.0f} |"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of the folders on the command line."""
    for line in tables([Path(name) for name in (sys.argv[1:] if arguments is None else arguments)]):
        print(line, flush=True)


if __name__ == "__main__":
    main()
