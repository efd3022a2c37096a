"""Partitions and audit sets: disjoint, complete, aligned."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.core import EXCLUDED, IFL, MEMBER, OFL
from fedbench.core.contract.errors import UserError
from fedbench.core.population.audit import attack_set, audit_set, group_set, pool_of
from fedbench.core.population.partition import partition
from fedbench.core.population.parts import Outsiders, whole
from fedbench.core.population.target import EVERYBODY, group
from fedbench.plugins.datasets.canaries import mislabel
from fedbench.plugins.datasets.digits import Digits

LABELS = np.random.default_rng(0).integers(0, 5, 400)


def of_holdout(n: int) -> Outsiders:
    """All of a hold-out of ``n`` samples, behind the training samples."""
    return Outsiders(ids=len(LABELS) + np.arange(n))


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
    a, b = (audit_set(shards, of_holdout(60), target, nonmembers, seed) for _ in range(2))
    assert a.digest() == b.digest()
    assert len(np.unique(a.ids)) == len(a.ids)
    assert np.array_equal(np.sort(a.ids[a.kind == MEMBER]), shards[target])
    share = min(nonmembers // 10, 60)
    assert (a.kind == OFL).sum() == share and (a.ids[a.kind == OFL] >= 400).all()
    for k in range(10):
        mine = a.ids[(a.kind == IFL) & (a.owner == k)]
        assert len(mine) == (0 if k == target else min(share, len(shards[k]))) and np.isin(mine, shards[k]).all()


def listed(audit, where):
    """(id, kind, owner) of the candidates there, in their order."""
    return list(zip(audit.ids[where].tolist(), audit.kind[where].tolist(), audit.owner[where].tolist(), strict=True))


@given(
    target=st.integers(0, 3), nonmembers=st.integers(4, 500), outside=st.integers(1, 100), seed=st.integers(0, 5),
    absent=st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_more_outsiders_leave_the_mix_as_it_is(target, nonmembers, outside, seed, absent):
    """``outside`` adds candidates that count among the outside ones alone; the others are the same list, in its order."""
    shards = partition(LABELS, 4, seed)  # shards of 100, more than the hold-out
    plain, wide = (audit_set(shards, of_holdout(60), target, nonmembers, seed, outside=n, absent=absent) for n in (None, outside))
    free = 30 if absent else 60  # half of the hold-out are the members of the null
    share, strangers = min(nonmembers // 4, free), min(outside, free)
    assert (plain.kind == OFL).sum() == share and plain.in_mix().all()
    assert (wide.kind == OFL).sum() == strangers and len(np.unique(wide.ids)) == len(wide.ids)
    if absent:
        assert wide.in_mix().all()  # nobody inside is a non-member: all are asked as one
    else:
        assert np.array_equal(np.flatnonzero(~wide.in_mix()), np.flatnonzero(wide.extra)[: max(0, strangers - share)])
        assert (wide.kind[wide.extra] == OFL).all()
        assert [(plain.kind == IFL).sum(), (wide.kind == IFL).sum()] == [3 * share] * 2  # as many of each other client
        if strangers >= share:
            assert listed(wide, wide.in_mix()) == listed(plain, plain.in_mix())
    if strangers >= share:
        assert listed(wide, wide.kind != OFL) == listed(plain, plain.kind != OFL)


def test_the_outsiders_beyond_the_mix_stand_anywhere():
    audit = audit_set(partition(LABELS, 10, 0), of_holdout(130), 3, 500, 0, outside=120)
    places = np.flatnonzero(audit.extra)
    n, m = len(audit.ids), len(places)
    assert m == 70 and abs(places.mean() - (n - 1) / 2) < 4 * n / np.sqrt(12 * m)
    assert not np.array_equal(audit.ids[audit.extra], np.sort(audit.ids[audit.extra]))


@given(target=st.integers(0, 9), nonmembers=st.integers(10, 500), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_members_from_the_holdout_were_trained_on_by_nobody(target, nonmembers, seed):
    shards = partition(LABELS, 10, seed)
    null, real = (audit_set(shards, of_holdout(130), target, nonmembers, seed, absent=absent) for absent in (True, False))
    counted = null.kind != EXCLUDED
    assert (null.ids[counted] >= 400).all() and (null.owner[counted] == -1).all()
    assert (null.kind == MEMBER).sum() == (real.kind == MEMBER).sum() == len(shards[target])
    assert (null.kind == OFL).sum() == min(nonmembers // 10, 130 - len(shards[target])) and not (null.kind == IFL).any()
    assert len(np.unique(null.ids)) == len(null.ids)
    for k in range(10):  # a colluder keeps as many of its samples in the pool
        assert (null.owner == k).sum() == ((real.owner == k) & (real.kind == IFL)).sum()
        assert np.isin(null.ids[null.owner == k], shards[k]).all()


def test_half_of_a_small_holdout_stands_in_for_the_members():
    null = audit_set(partition(LABELS, 4, 0), of_holdout(60), 1, 1000, 0, absent=True)
    assert [(null.kind == kind).sum() for kind in (MEMBER, OFL)] == [30, 30]
    with pytest.raises(UserError, match="no outside non-members"):
        audit_set(partition(LABELS, 4, 0), of_holdout(1), 1, 1000, 0, absent=True)


def test_the_null_of_all_clients_together_and_of_a_group_is_drawn_from_their_holdout():
    shards = partition(LABELS, 4, 0)
    everybody = attack_set(shards, of_holdout(60), 1, 20, 30, 0, absent=True)
    assert everybody.target == EVERYBODY and (everybody.ids >= 400).all() and (everybody.owner == -1).all()
    clients = np.array([1, 3])
    like_theirs = whole(shards, 60).outsiders(clients, "group 'b'")
    some = group_set(shards, like_theirs, 1, "b", clients, 10, 20, 0, absent=True)
    assert some.target == group(1) and np.isin((some.ids - 400) % 4, [1, 3]).all() and (some.owner == -1).all()
    for audit, members, nonmembers in ((everybody, 20, 30), (some, 10, 20)):
        assert [(audit.kind == kind).sum() for kind in (MEMBER, OFL)] == [members, nonmembers]
        assert len(np.unique(audit.ids)) == len(audit.ids)
    with pytest.raises(UserError, match=r"audit.nonmembers = 30, but the hold-out beside the members has 20 samples"):
        attack_set(shards, of_holdout(60), 1, 40, 30, 0, absent=True)
    with pytest.raises(UserError, match=r"audit.members = 70, but the hold-out has 60 samples"):
        attack_set(shards, of_holdout(60), 1, 70, 30, 0, absent=True)


def test_positions_tell_nothing_about_membership():
    a = audit_set(partition(LABELS, 10, 0), of_holdout(60), 3, 3000, 0)
    ranks = np.flatnonzero(a.kind == MEMBER)
    n, m = len(a.ids), len(ranks)
    assert abs(ranks.mean() - (n - 1) / 2) < 4 * n / np.sqrt(12 * m)
    assert not np.array_equal(a.ids, np.sort(a.ids))


def test_the_pool_holds_every_candidate_once():
    shards = partition(LABELS, 10, 0)
    audits = [audit_set(shards, of_holdout(60), t, 500, 0) for t in (0, 4)]
    pool = pool_of(audits)
    assert np.array_equal(pool, np.unique(pool)) and all(np.isin(a.ids, pool).all() for a in audits)


def test_no_holdout_is_an_error():
    with pytest.raises(UserError, match="no outside non-members"):
        audit_set(partition(LABELS, 10, 0), of_holdout(60), 0, 5, 0)


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
