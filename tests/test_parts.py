"""The parts of a client's samples: training, validation, test."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedbench.core import UserError
from fedbench.core.population.partition import partition
from fedbench.core.population.parts import cut, cut_all, whole
from fedbench.core.spec.federation import FederationSpec
from fedbench.core.spec.suite import Partition

LABELS = np.random.default_rng(0).integers(0, 5, 400)
SHARES = st.sampled_from([(0.1, 0.2), (0.0, 0.2), (0.1, 0.0), (0.25, 0.25), (0.3, 0.6), (0.05, 0.05), (1 / 3, 1 / 3)])
COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=12)


def labels(counts: list[int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))


@given(counts=COUNTS, shares=SHARES, seed=st.integers(0, 5), client=st.integers(0, 3))
def test_parts_are_disjoint_complete_and_hold_their_share_of_every_class(counts, shares, seed, client):
    y = labels(counts, seed)
    parts = cut(y, *shares, seed, client)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(y)))
    assert all(np.array_equal(part, np.unique(part)) for part in parts)
    for c, n in enumerate(counts):
        of_class = [int((y[part] == c).sum()) for part in parts]
        if n < 2:
            assert of_class == [n, 0, 0]
            continue
        for found, share in zip(of_class, (1 - sum(shares), *shares), strict=True):
            assert abs(found - n * share) < 1 + 1e-8, (c, n, of_class)


@given(counts=COUNTS, share=st.sampled_from([0.1, 0.2, 0.5]), seed=st.integers(0, 5))
def test_a_part_has_its_share_of_the_client_however_small_the_classes_are(counts, share, seed):
    """Rounding class by class would leave a client of many small classes without a part."""
    y = labels(counts, seed)
    many = sum(n for n in counts if n > 1)
    assert abs(len(cut(y, 0.0, share, seed, 0)[2]) - many * share) < 1 + 1e-8
    assert abs(len(cut(y, share, 0.0, seed, 0)[1]) - many * share) < 1 + 1e-8


def test_small_classes_are_rounded_up_in_turn_and_not_the_first_ones_always():
    y = np.repeat(np.arange(100), 4)  # .4 of a sample each: 40 of them give one
    taken = [set(y[cut(y, 0.1, 0.0, 0, k)[1]]) for k in range(4)]
    assert {len(t) for t in taken} == {40} and len(set.union(*taken)) > 80


@given(seed=st.integers(0, 5), shares=SHARES)
def test_a_cut_is_keyed_by_seed_and_client_and_by_nobody_elses_samples(seed, shares):
    shards = partition(LABELS, 4, seed, "dirichlet", 1.0, 20)
    split = cut_all(LABELS, shards, 30, seed, validation=shares[0], test=shares[1])
    again, other = (cut_all(LABELS, shards, 30, s, validation=shares[0], test=shares[1]) for s in (seed, seed + 1))
    assert split.digest() == again.digest() != other.digest()
    alone = cut_all(LABELS, [*shards[:2], shards[3], shards[2]], 30, seed, validation=shares[0], test=shares[1])
    for part in ("train", "validation", "test"):
        for k in (0, 1):
            assert np.array_equal(getattr(split, part)[k], getattr(alone, part)[k])
    one, two = (cut(np.repeat([0, 1], 30), 0.2, 0.2, seed, k)[0] for k in (0, 1))
    assert not np.array_equal(one, two)


@given(seed=st.integers(0, 5), shares=SHARES)
def test_clients_share_no_sample_and_every_sample_is_somebodys(seed, shares):
    shards = partition(LABELS, 4, seed, "dirichlet", 1.0, 20)
    split = cut_all(LABELS, shards, 30, seed, validation=shares[0], test=shares[1])
    everything = np.concatenate([*split.train, *split.validation, *split.test])
    assert np.array_equal(np.sort(everything), np.arange(len(LABELS)))
    for k, shard in enumerate(shards):
        assert np.array_equal(np.sort(np.concatenate([split.own(k), split.test[k]])), shard)
        assert (split.home()[shard] == k).all() and (split.trained_by()[split.train[k]] == k).all()
        assert (split.trained_by()[np.concatenate([split.validation[k], split.test[k]])] == -1).all()
    assert np.array_equal(split.home()[400:], np.arange(30) % 4) and (split.trained_by()[400:] == -1).all()


def test_without_shares_every_sample_is_trained_on():
    shards = partition(LABELS, 4, 0)
    split = cut_all(LABELS, shards, 30, 0)
    assert split.digest() == whole(shards, 30).digest() and not split.has_test and not len(split.validated())
    assert all(np.array_equal(split.own(k), shards[k]) for k in range(4))
    parts = [cut_all(LABELS, shards, 30, 0, **given).digest() for given in ({"test": 0.2}, {"validation": 0.2}, {})]
    parts.append(cut_all(LABELS, shards, 30, 0, test=0.2, on_test=True).digest())
    assert len(set(parts)) == 4


def test_the_released_validation_part_is_the_test_part():
    split = cut_all(LABELS, partition(LABELS, 4, 0), 30, 0, test=0.2, on_test=True)
    assert all(np.array_equal(a, b) for a, b in zip(split.validation, split.test, strict=True))
    assert not len(split.validated()) and all(len(split.own(k)) == 100 for k in range(4))


@pytest.mark.parametrize(
    ("counts", "given", "expected"),
    [
        ([5], {"validation": 0.1}, "client 0 has 5 samples of 1 classes: its validation part would be empty "
         "(federation.validation: 0.1; 2 of 2 clients, seed 3): use a larger share, a larger beta, fewer clients or more data"),
        ([1] * 10, {"test": 0.2}, "client 0 has 10 samples of 10 classes, 10 of them with a single sample, which stays in "
         "training: its test part would be empty (federation.test: 0.2; 2 of 2 clients, seed 3): use a larger share, a larger "
         "beta, fewer clients or more data"),
        ([2], {"test": 0.8}, "client 0 has 2 samples of 1 classes: its training part would be empty (what "
         "federation.validation and federation.test leave; 2 of 2 clients, seed 3): use smaller shares, a larger beta, fewer "
         "clients or more data"),
    ],
)  # fmt: skip
def test_an_empty_part_names_client_counts_and_remedies(counts, given, expected):
    y = np.concatenate([labels(counts, 0)] * 2)
    shards = [np.arange(len(y) // 2), np.arange(len(y) // 2, len(y))]
    with pytest.raises(UserError, match=re.escape(expected)):
        cut_all(y, shards, 10, 3, rule="dirichlet", **given)


def test_a_dirichlet_over_sizes_leaves_the_labels_iid():
    y = np.random.default_rng(0).integers(0, 2, 20_000)
    shards = partition(y, 5, 0, "dirichlet-sizes", 0.5, 1)
    assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(len(y)))
    sizes = np.array([len(s) for s in shards])
    assert sizes.max() > 3 * sizes.min()
    for s in shards:
        assert abs(y[s].mean() - y.mean()) < 4 * 0.5 / np.sqrt(len(s))
    assert [len(s) for s in partition(y, 5, 0, "dirichlet-sizes", float("inf"))] == [4000] * 5
    with pytest.raises(UserError, match=r"the dirichlet-sizes partition leaves client \d with 0 samples .*use a larger beta"):
        partition(y[:50], 40, 0, "dirichlet-sizes", 0.01)


BASE = {"clients": 4, "rounds": 1, "batch_size": 5, "optimizer": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"validation": 0.5, "test": 0.5}, "validation 0.5 and test 0.5 leave nothing to train on"),
        ({"validation": -0.1}, "greater than or equal to 0"),
        ({"test": 1.0}, "less than 1"),
        ({"validation_on": "nonmembers"}, "validates on the test part: give test a share, and no validation"),
        ({"validation_on": "nonmembers", "test": 0.2, "validation": 0.1}, "give test a share, and no validation"),
        ({"weights": "equal", "weight_order": "shuffled"}, "shuffled has no effect with weights: equal"),
    ],
)
def test_shares_that_do_not_fit_say_so(given, message):
    with pytest.raises(ValidationError, match=message):
        FederationSpec.model_validate(BASE | given)


def test_a_dirichlet_over_sizes_needs_its_beta():
    with pytest.raises(ValidationError, match=r"dirichlet-sizes needs beta, e\.g\. {name: dirichlet-sizes, beta: 0.5}"):
        Partition.model_validate("dirichlet-sizes")
    assert Partition.model_validate({"name": "dirichlet-sizes", "beta": 0.1}).beta == 0.1
