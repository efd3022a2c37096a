"""The attacks' random forests beside a tree that is grown node by node, and beside scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier
from worlds import auc

from fedbench.plugins.attacks.trained import forest, growth, random_forest
from fedbench.plugins.attacks.trained.base import Prepared
from fedbench.plugins.attacks.trained.forest import grow


def lesson(n: int, d: int, seed: int, leak: float = 1.0, distinct: int | None = None) -> Prepared:
    rng = np.random.default_rng(seed)
    member = np.arange(n) % 2 == 0
    x = rng.normal(size=(n, d))
    x[:, 0] += leak * member
    return Prepared(x if distinct is None else np.round(x * distinct), member, seed)


# --- the slow, obvious one -------------------------------------------------------------------------------------------


def gini(member: np.ndarray, weight: np.ndarray) -> float:
    p = (weight * member).sum() / weight.sum()
    return 2 * p * (1 - p) * weight.sum()


def best_split(x, member, weight, features, leaf):
    """(feature, threshold) with the lowest impurity, of equal ones the first; None where nothing can be split."""
    best, found = np.inf, None
    for f in features:
        for low, high in zip(*(np.unique(x[:, f])[s] for s in (slice(None, -1), slice(1, None))), strict=True):
            left = x[:, f] <= low
            if min(left.sum(), (~left).sum()) < leaf:
                continue
            impurity = gini(member[left], weight[left]) + gini(member[~left], weight[~left])
            if impurity < best - 1e-9:
                best, found = impurity, (int(f), (low + high) / 2)
    return found


def slow(x, member, weight, key, leaf, asked):
    """A tree as nested tuples: (feature, threshold, left, right), or the share of members."""
    share = (weight * member).sum() / weight.sum()
    if len(x) < 2 * leaf or share in (0, 1):
        return share
    d = x.shape[1]
    draws = growth._mixed(key ^ (growth._GOLDEN * np.arange(3, 3 + d, dtype=np.uint64)))
    order = np.argsort(draws)
    tries = (best_split(x, member, weight, order[i : i + asked], leaf) for i in range(0, d, asked))
    found = next((split for split in tries if split is not None), None)
    if found is None:
        return share
    f, threshold = found
    left = x[:, f] <= threshold
    keys = growth._mixed(key + growth._GOLDEN * np.arange(1, 3, dtype=np.uint64))
    sides = [slow(x[s], member[s], weight[s], k, leaf, asked) for s, k in zip((left, ~left), keys, strict=True)]
    return f, threshold, *sides


def answered(tree, row):
    while isinstance(tree, tuple):
        f, threshold, left, right = tree
        tree = right if row[f] > threshold else left
    return tree


@given(
    st.integers(2, 40), st.integers(1, 5), st.integers(1, 6), st.integers(1, 5), st.sampled_from([None, 1, 3]), st.integers(0, 99)
)
def test_the_trees_are_those_that_are_grown_node_by_node(n, d, leaf, asked, distinct, seed):
    lessons = [lesson(n, d, seed, distinct=distinct), lesson(n + 7, d, seed + 1, distinct=distinct)]
    asked_about = lesson(25, d, seed + 2, distinct=distinct).x
    with np.errstate(over="ignore"):
        for k, found in enumerate(grow(lessons, 4, leaf, asked)):
            (bags,) = [bags for of, bags in forest._bags(lessons, 4) if of == k]
            x, member, _ = lessons[k]
            trees = [slow(x[c > 0], member[c > 0], c[c > 0], key, leaf, asked) for c, key in zip(*bags, strict=True)]
            wanted = np.mean([[answered(tree, row) for row in asked_about] for tree in trees], axis=0)
            np.testing.assert_allclose(found.shares(asked_about), wanted, rtol=1e-12)


def test_equal_impurities_go_to_the_first_feature_asked_and_a_constant_one_is_passed_over():
    x = np.tile(np.arange(20.0)[:, None], (1, 4))
    x[:, :3] = 5.0  # three that cannot split
    (found,) = grow([Prepared(x, np.arange(20) >= 10, 3)], 50, 1, 1)
    assert set(found.feature[:, 0]) == {3} and (found.splits == 1).all()
    np.testing.assert_array_equal(found.shares(x) > 0.5, np.arange(20) >= 10)


def test_who_cannot_be_told_apart_is_one_leaf():
    (found,) = grow([Prepared(np.ones((12, 3)), np.arange(12) % 2 == 0, 0)], 5, 1, 2)
    assert found.feature.shape == (5, 0) and found.share.shape == (5, 1)
    shares = found.shares(np.zeros((3, 3)))
    assert (shares == shares[0]).all() and 0 < shares[0] < 1


# --- scikit-learn's --------------------------------------------------------------------------------------------------


def test_forests_are_as_large_and_as_right_as_scikit_learns():
    asked, ours, theirs, sizes = lesson(600, 9, 999, leak=1.5), [], [], []
    for seed in range(6):
        x, member, _ = one = lesson(120, 9, seed, leak=1.5)
        (found,) = grow([one], 100, 5, 3)
        reference = RandomForestClassifier(100, min_samples_leaf=5, random_state=seed, n_jobs=1).fit(x, member)
        ours.append(found.shares(asked.x))
        theirs.append(reference.predict_proba(asked.x)[:, 1])
        sizes.append((found.splits.mean(), np.mean([tree.get_n_leaves() - 1 for tree in reference.estimators_])))
        assert np.corrcoef(ours[-1], theirs[-1])[0, 1] > 0.95
    sizes = np.mean(sizes, axis=0)
    assert abs(sizes[0] / sizes[1] - 1) < 0.03
    aucs = [np.mean([auc(scores, asked.member) for scores in each]) for each in (ours, theirs)]
    assert abs(aucs[0] - aucs[1]) < 0.01
    assert abs(np.mean(ours) - np.mean(theirs)) < 0.01


# --- together as alone -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 500, 2**16])
def test_a_forest_is_the_same_alone_among_others_and_in_pieces(block, monkeypatch):
    monkeypatch.setattr(forest, "BLOCK", 2**16)
    lessons, asked = [lesson(n, 4, n) for n in (30, 31, 90)], lesson(50, 4, 7).x
    together = [f.shares(asked) for f in grow(lessons, 12, 3, 2)]
    for one, wanted in zip(lessons, together, strict=True):
        np.testing.assert_array_equal(grow([one], 12, 3, 2)[0].shares(asked), wanted)
    bags = forest._bags
    monkeypatch.setattr(forest, "_bags", lambda *a: list(bags(*a)))  # drawn as before, grown by other blocks
    drawn = forest._bags(lessons, 12)
    monkeypatch.setattr(forest, "_bags", lambda *a: iter(drawn))
    monkeypatch.setattr(forest, "BLOCK", block)
    for found, wanted in zip(grow(lessons, 12, 3, 2), together, strict=True):
        np.testing.assert_array_equal(found.shares(asked), wanted)


def test_all_rounds_and_folds_of_an_attack_grow_in_one_call(monkeypatch):
    from attack_worlds import rich_world, taught

    calls = []
    monkeypatch.setattr(random_forest, "grow", lambda lessons, *a: calls.append(len(lessons)) or grow(lessons, *a))
    taught(random_forest.RandomForest(trees=3), rich_world(1.0, 40, 80, rounds=3))
    assert calls == [6]
