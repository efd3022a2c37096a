"""Partitions and audit sets: disjoint, complete, aligned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.core import IFL, MEMBER, OFL
from fedbench.core.contract.errors import UserError
from fedbench.core.population.audit import audit_set, pool_of
from fedbench.core.population.partition import partition
from fedbench.plugins.datasets.canaries import mislabel
from fedbench.plugins.datasets.digits import Digits

LABELS = np.random.default_rng(0).integers(0, 5, 400)


@given(clients=st.integers(1, 30), seed=st.integers(0, 9), beta=st.sampled_from([None, 0.5, 10.0, float("inf")]))
@settings(max_examples=40, deadline=None)
def test_a_partition_is_disjoint_and_complete(clients, seed, beta):
    rule = {"name": "iid"} if beta is None else {"name": "dirichlet", "beta": beta, "min_samples": 0}
    shards = partition(LABELS, clients, seed, **rule)
    together = np.concatenate(shards)
    assert len(shards) == clients and np.array_equal(np.sort(together), np.arange(len(LABELS)))


def test_iid_shares_are_equal_and_dirichlet_skews_labels():
    def skew(shards):
        share = [np.bincount(LABELS[s], minlength=5) / len(s) for s in shards]
        return np.std(share, axis=0).mean()

    iid = partition(LABELS, 8, 0)
    assert {len(s) for s in iid} == {50}
    skewed = [skew(partition(LABELS, 8, 0, "dirichlet", b, 0)) for b in (0.3, 3.0, float("inf"))]
    assert skewed[0] > skewed[1] > skewed[2] and skewed[2] < 0.05


def test_too_few_samples_and_empty_clients_are_refused():
    with pytest.raises(UserError, match="400 training samples for 401 clients"):
        partition(LABELS, 401, 0)
    with pytest.raises(UserError, match=r"the dirichlet partition leaves client \d+ with \d+ samples"):
        partition(LABELS, 20, 0, "dirichlet", 0.01, 1)


@given(target=st.integers(0, 9), nonmembers=st.integers(10, 3000), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_an_audit_set_is_fair_aligned_and_shuffled(target, nonmembers, seed):
    shards = partition(LABELS, 10, seed)
    a, b = (audit_set(shards, 60, target, nonmembers, seed) for _ in range(2))
    assert a.digest() == b.digest()
    assert len(np.unique(a.ids)) == len(a.ids)
    assert np.array_equal(np.sort(a.ids[a.kind == MEMBER]), shards[target])
    share = min(nonmembers // 10, 60)
    assert (a.kind == OFL).sum() == share and (a.ids[a.kind == OFL] >= 400).all()
    for k in range(10):
        mine = a.ids[(a.kind == IFL) & (a.owner == k)]
        assert len(mine) == (0 if k == target else min(share, len(shards[k]))) and np.isin(mine, shards[k]).all()


def test_positions_tell_nothing_about_membership():
    a = audit_set(partition(LABELS, 10, 0), 60, 3, 3000, 0)
    ranks = np.flatnonzero(a.kind == MEMBER)
    n, m = len(a.ids), len(ranks)
    assert abs(ranks.mean() - (n - 1) / 2) < 4 * n / np.sqrt(12 * m)
    assert not np.array_equal(a.ids, np.sort(a.ids))


def test_the_pool_holds_every_candidate_once():
    shards = partition(LABELS, 10, 0)
    audits = [audit_set(shards, 60, t, 500, 0) for t in (0, 4)]
    pool = pool_of(audits)
    assert np.array_equal(pool, np.unique(pool)) and all(np.isin(a.ids, pool).all() for a in audits)


def test_no_holdout_is_an_error():
    with pytest.raises(UserError, match="no outside non-members"):
        audit_set(partition(LABELS, 10, 0), 60, 0, 5, 0)


@given(share=st.floats(0, 1), classes=st.integers(2, 10), seed=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_canaries_are_exactly_the_wrong_labels(share, classes, seed):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, 101)
    noisy, canary = mislabel(y, share, classes, rng)
    assert canary.sum() == round(share * 101) and np.array_equal(noisy != y, canary)
    assert noisy.min() >= 0 and noisy.max() < classes


def test_digits_splits_are_disjoint_clean_where_promised_and_keyed():
    data, again, other = Digits(label_noise=0.3).load(0), Digits(label_noise=0.3).load(0), Digits(label_noise=0.3).load(1)
    assert data.digest() == again.digest() != other.digest()
    assert (len(data.train_y), len(data.test_y), len(data.holdout_y)) == (1200, 397, 200)
    rows = np.concatenate([s.reshape(len(s), -1) for s in (data.train_x, data.test_x, data.holdout_x)])
    assert len(np.unique(rows, axis=0)) == 1797  # no digit stands in two splits
    assert data.train_canary.sum() == 360 and data.holdout_canary.sum() == 60
    clean = Digits().load(0)
    assert np.array_equal(clean.test_y, data.test_y)
    assert np.array_equal(clean.train_y != data.train_y, data.train_canary)
