"""Sections with seeds that share a pool: calibrated attacks, candidates that are found, epsilon."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from boards import board, sections_of
from contests import judged
from running import finish, invoke, suite

from fedbench.core import EXCLUDED, IFL, MEMBER, OFL, UserError
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.statistics.audits import (
    TOGETHER,
    Calibrated,
    epsilon_bound,
    found_by,
    pool_of,
)
from fedbench.leaderboard.statistics.calibration import lira, rmia

SEEDS, SAMPLES = range(16), 60


def coins(seed):
    return np.random.default_rng(seed).random(SAMPLES) < 0.5


def contest(gain, attacks=("blackbox-loss", "fedmia-ii")):
    """Two rows: the undefended one leaks by ``gain``, hidden by each candidate's own level."""
    level = 3 * np.random.default_rng(99).normal(size=SAMPLES)
    scores = {}
    for i, (label, share) in enumerate({"none": 1.0, "half": 0.5}.items()):
        scores[label] = {}
        for a, attack in enumerate(attacks):
            by_seed = {}
            for seed in SEEDS:
                noise = np.random.default_rng([seed, i, a]).normal(size=SAMPLES)
                by_seed[seed] = {0: level + noise + gain * share * coins(seed)}
            scores[label][attack] = by_seed
    return judged(scores, lambda seed: np.where(coins(seed), MEMBER, OFL))


def test_calibrated_scores_are_those_of_the_pool_seed_by_seed():
    section = contest(gain=1.0)
    scores = Calibrated(section.scores)
    raw = np.stack(
        [section.scores.candidates(s, [0])[0]["none", "blackbox-loss"].scores for s in SEEDS]
    )
    member = np.stack([coins(seed) for seed in SEEDS])
    for seed in (0, 9):
        candidates = scores.candidates(seed, [0])[0]
        assert candidates["none", "blackbox-loss, LiRA"].scores == pytest.approx(
            lira(raw, member, ~member)[seed]
        )
        assert candidates["none", "blackbox-loss, RMIA"].scores == pytest.approx(
            rmia(raw, member, ~member)[seed]
        )
        assert ("none", "fedmia-ii, RMIA") not in candidates
        assert (candidates["none", TOGETHER].kind == np.where(coins(seed), MEMBER, OFL)).all()


def test_calibration_finds_a_planted_leak_that_the_levels_of_candidates_hide():
    section = contest(gain=1.5)
    general = section.worst_cases.of("none").worst
    strongest = section.calibrated.worst_cases.of("none").worst
    assert strongest.interval.mean > 0.85 > general.interval.mean + 0.15
    assert section.calibrated.pairwise.ranks == {"half": (1, 1), "none": (2, 2)}
    scores = Calibrated(section.scores)
    by_share = [found_by(scores, label, "fedmia-ii", 1).shares.mean() for label in ("none", "half")]
    assert by_share[0] > 0.15 > by_share[1] > 0.02
    assert found_by(scores, "none", "seqmia", 1) is None


def test_scores_without_a_leak_stay_at_chance_and_show_no_epsilon():
    section = contest(gain=0.0)
    scores = Calibrated(section.scores)
    bound = epsilon_bound(scores, "none")
    assert bound.epsilon == 0 and bound.limit > 2
    found = found_by(scores, "none", "fedmia-ii", 1)
    assert found.shares.mean() < 0.03 and found.tenth < 0.06
    parts = section.calibrated.leaks.parts
    aucs = [part.entries["none", "fedmia-ii, LiRA"].auc for part in parts]
    assert np.mean(aucs) == pytest.approx(0.5, abs=0.04)


def test_a_leak_shows_an_epsilon_below_the_limit_of_its_coins():
    bound = epsilon_bound(Calibrated(contest(gain=8.0).scores), "none")
    assert 1.0 < bound.epsilon <= bound.limit
    assert bound.guesses.canaries == SAMPLES * 8


def test_a_pool_has_the_clients_samples_that_every_seed_asks_about():
    def candidates(ids, kinds):
        n = len(ids)
        return SimpleNamespace(
            ids=np.array(ids),
            kind=np.array(kinds),
            scores=10.0 * np.array(ids),
            canary=np.zeros(n, bool),
        )

    first = candidates([5, 1, 9, 7], [MEMBER, OFL, IFL, OFL])
    pool = pool_of({3: first, 4: candidates([1, 9, 5], [EXCLUDED, IFL, OFL])})
    assert pool.ids.tolist() == [1, 5] and pool.scores.tolist() == [[10, 50], [10, 50]]
    assert pool.member.tolist() == [[False, True], [False, False]]
    assert pool.outside.tolist() == [[True, False], [False, True]]


POOL = {
    "name": "pool",
    "dataset": {"name": "digits", "params": {"test": 1200, "holdout": 100, "label_noise": 0.3}},
    "model": {"name": "mlp", "params": {"hidden": [8]}},
    "data_seed": 3,
    "federation": {
        "clients": 2,
        "rounds": 1,
        "batch_size": 50,
        "test": 0.5,
        "test_by": "coin",
        "optimizer": {"lr": 0.2},
    },
    "audit": {"nonmembers": 1000, "outside": 500},
}


@pytest.mark.slow
def test_seeds_of_one_pool_have_the_same_samples_and_coins_of_their_own(tmp_path):
    path = suite(tmp_path, settings=[POOL], coalitions=["uniform"], seeds=list(range(8)))
    invoke(path, "--results", tmp_path / "r", "--workers", "1")
    pools = {}
    for loaded in load_records(tmp_path / "r"):
        c = loaded.candidates(0)
        counted = (c.kind == MEMBER) | (c.kind == OFL)
        pools[loaded.record.seed] = set(c.ids[counted].tolist()), set(c.ids[c.kind == MEMBER])
    samples, members = zip(*pools.values(), strict=True)
    assert all(ids == samples[0] for ids in samples) and len(samples[0]) > 150
    overlaps = [len(a & b) / len(samples[0]) for a, b in combinations(members, 2)]
    assert 0.15 < min(overlaps) <= np.mean(overlaps) == pytest.approx(0.25, abs=0.03)
    results, usual = (SimpleNamespace(root=root) for root in (tmp_path / "r", finish(tmp_path)))
    assert sections_of(results)[0].shares_pool and not sections_of(usual)[0].shares_pool
    text = board(results)
    assert "Calibrated attacks" in text and "over 8 federations of one pool" in text


def test_a_coin_without_a_share_is_refused(tmp_path):
    setting = {**POOL, "federation": {**POOL["federation"], "test": 0.0}}
    with pytest.raises(UserError, match="by a fair coin: set test"):
        invoke(suite(tmp_path, settings=[setting]), "--results", tmp_path / "r")
