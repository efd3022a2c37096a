"""What a board says of pure noise, by how sign and attack are chosen: ``python -m fedbench.leaderboard.simulations.worst_case``.

Scores of members and outside non-members are drawn from one distribution, anew for every attack, seed and target, so the
truth is an AUC of one half and a TF01 of 0.1 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedbench.core import MEMBER, OFL
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.store.reading import Candidates
from fedbench.leaderboard.simulations import show
from fedbench.leaderboard.statistics.contest import Contest
from fedbench.leaderboard.statistics.sheet import Part, part_of

DESIGNS = ((3, 2), (5, 2), (5, 5))  # seeds, targets
ATTACKS = tuple(f"attack {i}" for i in range(7))
MEMBERS, NONMEMBERS = 90, 500
ROW = "row"
REPETITIONS, QUICK = 400, 10


def noise(seeds: int, targets: int, rng: np.random.Generator) -> Contest:
    """One row against seven attacks that know nothing."""
    units = [(seed, target) for seed in range(seeds) for target in range(targets)]
    contest = Contest((), ATTACKS, units)
    contest.parts = [part for unit in units for part in _parts(unit, rng)]
    return contest


def _parts(unit: tuple[int, int], rng: np.random.Generator) -> Iterator[Part]:
    n = MEMBERS + NONMEMBERS
    kind, everybody = np.repeat([MEMBER, OFL], [MEMBERS, NONMEMBERS]).astype(np.int8), np.ones(n, bool)
    ids = np.arange(n)
    found = {(ROW, a): Candidates(rng.standard_normal(n), kind, ids, everybody, ~everybody) for a in ATTACKS}
    return part_of(unit[0], unit, found, everybody)


def _one(contest: Contest) -> list[float]:
    """(largest mean AUC, largest with the better sign, chosen on other seeds, largest TF01, TF01 chosen on other seeds)."""
    aucs = np.array([[part.own[ROW, a].auc for a in ATTACKS] for part in contest.parts])
    means = aucs.mean(axis=0)
    worst, rate = contest.worst(ROW), contest.worst_tf01(ROW)
    rates = [i.mean for a in ATTACKS if (i := contest.tf01(ROW, a)) is not None]
    if worst is None:
        raise ValueError("an attack without scores")
    return [
        float(means.max()), float(0.5 + np.abs(means - 0.5).max()), worst.found.mean, max(rates, default=np.nan),
        rate.found.mean if rate else np.nan,
    ]  # fmt: skip


def tables(repetitions: int) -> Iterator[str]:
    """Lines of Markdown."""
    rng = numpy_rng(0, "simulation of the worst case")
    yield f"{repetitions} repetitions a row, seven attacks, {MEMBERS} members and {NONMEMBERS} outside non-members a target;"
    yield "± one standard error."
    yield ""
    yield "| seeds x targets | largest of seven | largest, better sign | chosen on other seeds | largest TF01 % | chosen TF01 % |"
    yield "|---|---|---|---|---|---|"
    for seeds, targets in DESIGNS:
        found = np.array([_one(noise(seeds, targets, rng)) for _ in range(repetitions)])
        mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(repetitions)
        aucs = " | ".join(f"{m:.4f} ± {e:.4f}" for m, e in zip(mean[:3], error[:3], strict=True))
        rates = " | ".join(f"{m:.2f} ± {e:.2f}" for m, e in zip(mean[3:], error[3:], strict=True))
        yield f"| {seeds} x {targets} | {aucs} | {rates} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table; ``--quick`` with a few repetitions."""
    show(tables, REPETITIONS, QUICK, arguments)


if __name__ == "__main__":
    main()
