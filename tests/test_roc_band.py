"""The interval of a board's ROC curve: it covers, is no wider than it must be, and knows what targets have in common."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from boards import LEAK, Folder, sections_of
from scipy.stats import norm

from fedbench.leaderboard.site.rows import FPR
from fedbench.leaderboard.statistics.roc import mean_roc, roc_band
from fedbench.leaderboard.statistics.sample import Sample

GRID = FPR[(FPR > 0.0099) & (FPR < 0.9)]  # five non-members of a unit and more
SHIFT, MEMBERS, OTHERS, DRAWS = 1.0, 150, 500, 300


def section(units):
    """Of one row and attack; ``units``: (seed, members, non-members)."""
    parts = [
        SimpleNamespace(unit=(seed, i), fold=seed, own={("row", "attack"): SimpleNamespace(sample=sample)})
        for i, (seed, m, n) in enumerate(units) for sample in [Sample(seed, m, n, np.arange(len(n)))]
    ]  # fmt: skip
    return SimpleNamespace(contest=SimpleNamespace(parts=parts, sign=lambda *_: {seed: 1 for seed, _, _ in units}))


def bands(seeds, targets, shared=False, spread=0.0):
    """The band of each of ``DRAWS`` sections; ``shared``: targets of a seed have the same non-members; ``spread``: of the shift
    from seed to seed."""
    rng = np.random.default_rng(7)
    for _ in range(DRAWS):
        units = []
        for seed in range(seeds):
            shift, common = SHIFT + spread * rng.normal(), rng.normal(size=OTHERS)
            units += [
                (seed, rng.normal(size=MEMBERS) + shift, common if shared else rng.normal(size=OTHERS)) for _ in range(targets)
            ]
        yield roc_band(section(units), "row", "attack", GRID)


def true_curve(spread=0.0):
    """TPR, a mean over seeds whose shifts vary by so much."""
    return norm.sf((norm.isf(GRID) - SHIFT) / np.sqrt(1 + spread**2))


@pytest.mark.parametrize(("seeds", "targets", "shared", "spread"), [
    (1, 1, False, 0.0), (1, 5, True, 0.0), (3, 2, False, 0.0), (3, 5, True, 0.0), (5, 2, True, 0.3),
])  # fmt: skip
def test_it_covers_the_true_curve_at_every_point(seeds, targets, shared, spread):
    found = list(bands(seeds, targets, shared, spread))
    inside = np.mean([(b.low <= true_curve(spread)) & (true_curve(spread) <= b.high) for b in found], axis=0)
    assert inside[1:].min() > 0.9
    assert inside[0] > 0.8  # whose slope is known from one side alone


def test_it_is_not_much_wider_than_the_curve_varies():
    found = list(bands(1, 1))
    half = np.mean([(b.high - b.low) / 2 for b in found], axis=0)
    assert (half < 1.35 * 1.96 * np.std([b.mean for b in found], axis=0)).all()


def test_targets_that_share_their_non_members_tell_less():
    (own, alone), (wide, together) = (
        (np.mean([b.high - b.low for b in found], axis=0) / 2, np.std([b.mean for b in found], axis=0))
        for found in (list(bands(1, 5)), list(bands(1, 5, shared=True)))
    )
    assert (together[:5] > 1.2 * alone[:5]).all()  # they do vary more
    assert (wide > 1.8 * together).all()
    assert own == pytest.approx(wide, rel=0.05)  # it takes the worse of the two for granted


def test_it_is_around_the_boards_own_curve(tmp_path):
    (own,) = sections_of(Folder(tmp_path / "r", LEAK).fill())
    for row in own.rows:
        for attack in own.attacks:
            band = roc_band(own, row.label, attack, GRID)
            assert band.mean == pytest.approx(mean_roc(own, row.label, attack, GRID))
            assert (band.low >= 0).all() and (band.low <= band.mean).all()
            assert (band.mean <= band.high).all() and (band.high <= 1).all()
    assert roc_band(own, "nobody", own.attacks[0], GRID) is None
