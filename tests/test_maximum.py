"""The maximum over rounds: equal to a slow reference, exact at ties, and its null says what no leak gives."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from fedbench.core import EXCLUDED, IFL, MEMBER, OFL
from fedbench.core.metrics import advantage, auc
from fedbench.core.metrics.maximum import SHUFFLES, maximum, shuffled, who_counts
from fedbench.core.population.audit import shuffle_rng


def slow(scores, kind, rng, n):
    """[1 + n] AUC and advantage: the membership itself and n shuffles, one round and one shuffle after the other."""
    counts = who_counts(kind)
    member = kind[counts] == MEMBER
    flags = [member, *shuffled(counts, int(member.sum()), rng, n)]
    there = [row[counts] for row in scores if not np.isnan(row).all()]
    return tuple(np.array([max(of(row, f) for row in there) for f in flags]) for of in (auc, advantage))


def fake(seed, n=80, rounds=5, ties=False):
    """(scores [R, n], kind [n]) of a federation that leaks nothing."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(rounds, n)) + rng.normal(size=n)  # rounds go together, as those of a training do
    return (np.round(scores) if ties else scores), rng.choice([MEMBER, OFL, IFL, EXCLUDED], n, p=[0.4, 0.4, 0.1, 0.1])


@given(seed=st.integers(0, 2**32), n=st.integers(12, 60), rounds=st.integers(1, 4), ties=st.booleans())
def test_equals_the_slow_reference_at_ties_too(seed, n, rounds, ties):
    scores, kind = fake(seed, n, rounds, ties)
    kind[:2] = MEMBER, OFL
    found = maximum(scores, kind, shuffle_rng(seed, 3), 7)
    aucs, advantages = slow(scores, kind, shuffle_rng(seed, 3), 7)
    assert [found.auc, *found.null_auc] == pytest.approx(aucs, abs=1e-12)
    assert [found.advantage, *found.null_advantage] == pytest.approx(advantages, abs=1e-12)
    assert found.looks == rounds


def test_chunks_change_nothing(monkeypatch):
    scores, kind = fake(1)
    whole = maximum(scores, kind, shuffle_rng(1, 0))
    monkeypatch.setattr(sys.modules[maximum.__module__], "_CHUNK", 70)
    again = maximum(scores, kind, shuffle_rng(1, 0))
    assert (whole.auc, whole.advantage) == (again.auc, again.advantage)
    assert np.array_equal(whole.null_auc, again.null_auc) and np.array_equal(whole.null_advantage, again.null_advantage)
    assert len(whole.null_auc) == SHUFFLES


def test_whole_numbers_are_wide_enough_for_many_candidates():
    n = 47_000  # n squared is above 2^31, n x members / 2 is not
    scores, kind = np.arange(n, dtype=float)[None], np.repeat([OFL, MEMBER], [100, n - 100])
    found = maximum(scores, kind, shuffle_rng(0, 0), 2)
    assert (found.auc, found.advantage) == (1, 1) and (found.null_advantage < 0.5).all()
    below = n - 700  # the largest number of candidates whose square a 32-bit number holds is in between
    assert maximum(scores[:, :below], kind[:below], shuffle_rng(0, 0), 2).advantage == 1


def test_auc_and_advantage_are_each_the_largest_for_themselves():
    kind = np.repeat([MEMBER, OFL], 10)
    middle = np.r_[np.full(5, 1.0), np.zeros(5), np.zeros(10)]  # advantage .5, AUC .75
    everywhere = np.r_[np.arange(10) + 3.5, np.arange(10)]  # AUC .805, advantage .4
    by_round = [maximum(row[None], kind, shuffle_rng(0, 0)) for row in (middle, everywhere)]
    assert by_round[0].advantage > by_round[1].advantage and by_round[0].auc < by_round[1].auc
    both = maximum(np.stack([middle, everywhere]), kind, shuffle_rng(0, 0))
    assert (both.auc, both.advantage, both.looks) == (by_round[1].auc, by_round[0].advantage, 2)
    assert maximum(-middle[None], kind, shuffle_rng(0, 0)).advantage == 0  # signed: an inverted attack has none


def test_who_counts_and_who_does_not():
    scores, kind = fake(2)
    found = maximum(scores, kind, shuffle_rng(2, 0))
    changed = scores.copy()
    changed[:, (kind == IFL) | (kind == EXCLUDED)] += 100
    again = maximum(changed, kind, shuffle_rng(2, 0))
    assert (found.auc, found.advantage) == (again.auc, again.advantage) and np.array_equal(found.null_auc, again.null_auc)
    inside = np.where(kind == OFL, EXCLUDED, kind)  # nobody from outside: the other clients' samples are all there is
    assert maximum(scores, inside, shuffle_rng(2, 0)).auc == max(
        auc(row[inside >= 0], inside[inside >= 0] == MEMBER) for row in scores
    )
    assert maximum(scores, np.full(len(kind), MEMBER), shuffle_rng(2, 0)) is None


def test_a_round_without_the_target_is_no_look():
    scores, kind = fake(3)
    absent = np.insert(scores, 2, np.nan, axis=0)
    one, other = maximum(scores, kind, shuffle_rng(3, 0)), maximum(absent, kind, shuffle_rng(3, 0))
    assert (one.auc, one.looks) == (other.auc, other.looks) and np.array_equal(one.null_auc, other.null_auc)
    with pytest.raises(ValueError, match="no round has scores"):
        maximum(np.full_like(scores, np.nan), kind, shuffle_rng(3, 0))
    scores[0, np.flatnonzero(kind == OFL)[0]] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        maximum(scores, kind, shuffle_rng(3, 0))


def test_shuffles_are_of_the_seed_and_the_target_alone():
    counts = np.ones(50, bool)
    first = shuffled(counts, 20, shuffle_rng(5, 1))
    assert np.array_equal(first, shuffled(counts, 20, shuffle_rng(5, 1))) and (first.sum(axis=1) == 20).all()
    for seed, target in ((5, 2), (6, 1)):
        assert not np.array_equal(first, shuffled(counts, 20, shuffle_rng(seed, target)))
    fewer = counts.copy()
    fewer[:5] = False  # a defense held them out: the others keep their order
    again = shuffled(fewer, 20, shuffle_rng(5, 1))
    assert (first[:, 5:] & ~again).sum() == 0


def test_without_a_leak_the_maximum_lies_above_its_null_in_one_federation_of_twenty():
    """Six attacks and ten rounds in 30 federations: 60 looks, of which no correction is asked."""
    above, observed, nulls = 0, [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        kind, sample = np.repeat([MEMBER, OFL], 50), rng.normal(size=100)
        found = [
            maximum(0.7 * sample + rng.normal(size=(10, 100)), kind, shuffle_rng(seed, 0)) for _ in range(6)
        ]  # fmt: skip
        null = np.max([m.null_auc for m in found], axis=0)
        largest = max(m.auc for m in found)
        above += 1 + (null >= largest).sum() <= 0.05 * (1 + len(null))
        observed.append(largest)
        nulls.append(null.mean())
    low, high = binom.ppf([0.001, 0.999], 30, 0.05)
    assert low <= above <= high
    assert np.mean(observed) > 0.58  # far above one half, though nothing leaks
    spread = np.std(observed, ddof=1) / np.sqrt(30)
    assert abs(np.mean(observed) - np.mean(nulls)) < 3 * spread  # which is what the null says


def test_a_leak_is_above_its_null():
    scores, kind = fake(7, 200)
    found = maximum(scores + (kind == MEMBER), kind, shuffle_rng(7, 0))
    assert found.auc > found.null_auc.max() and found.advantage > found.null_advantage.max()
