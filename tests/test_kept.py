"""Draws kept for the attacks of a run: nobody can tell from a number whether they were kept, and they are not drawn twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench.core.metrics.bootstrap import bootstrap
from fedbench.core.metrics.groups import score_groups
from fedbench.core.metrics.kept import Kept
from fedbench.core.metrics.maximum import maximum
from fedbench.core.metrics.roc import auc
from fedbench.core.metrics.tpr import TF01_MIN_NONMEMBERS, tf01
from fedbench.core.numerics.rng import numpy_rng


def candidates(seed: int, members: int, others: int, levels: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, levels, members + others).astype(float), rng.permutation(members + others) < members


@given(st.integers(0, 99), st.integers(2, 9), st.integers(2, 40), st.sampled_from([3, 1000]))
def test_a_resample_is_what_its_candidates_written_out_say(seed, members, others, levels):
    scores, member = candidates(seed, members, others, levels)
    found, rng = bootstrap(scores, member, numpy_rng(seed, "x"), n=7), numpy_rng(seed, "x")
    mine, rest = rng.integers(0, members, (7, members)), rng.integers(0, others, (7, others))
    truth = np.arange(members + others) < members
    slow = [auc(np.concatenate([scores[member][a], scores[~member][b]]), truth) for a, b in zip(mine, rest, strict=True)]
    assert np.allclose(found.auc, slow, rtol=0, atol=1e-12) and found.tf01 is None


@pytest.mark.parametrize("levels", [4, 300, 10**6])
def test_so_is_its_tf01(levels):
    scores, member = candidates(1, 50, TF01_MIN_NONMEMBERS, levels)
    found, rng = bootstrap(scores, member, numpy_rng(1, "x"), n=5), numpy_rng(1, "x")
    mine, rest = rng.integers(0, 50, (5, 50)), rng.integers(0, TF01_MIN_NONMEMBERS, (5, TF01_MIN_NONMEMBERS))
    truth = np.arange(len(scores)) < 50
    slow = [tf01(np.concatenate([scores[member][a], scores[~member][b]]), truth) for a, b in zip(mine, rest, strict=True)]
    assert np.allclose(found.tf01, slow, rtol=0, atol=1e-12)


@given(st.integers(0, 99), st.sampled_from([0, 3000, 10**6]))
def test_the_attacks_of_a_run_get_what_each_would_draw_alone(seed, room):
    rng = np.random.default_rng(seed)
    kind, canary = rng.integers(-1, 3, 60), rng.random(60) < 0.3
    kept = Kept(room)
    for _ in range(3):
        scores = rng.normal(size=60)
        shared, alone = numpy_rng(seed, "x"), numpy_rng(seed, "x")
        assert score_groups(scores, kind, canary, shared, kept=kept) == score_groups(scores, kind, canary, alone)
        shared, alone = (maximum(scores[None], kind, r, 9, k) for r, k in ((shared, kept), (alone, None)))
        assert np.array_equal(shared.null_auc, alone.null_auc) and np.array_equal(shared.null_advantage, alone.null_advantage)


def test_what_is_kept_is_drawn_once_and_cannot_be_written_to():
    drawn, kept = [], Kept()

    def ask(seed: int, n: int) -> np.ndarray:
        rng = numpy_rng(seed, "x")
        (found,) = kept.draw(rng, (n,), lambda: (drawn.append(n) or rng.integers(0, 9, n),))
        return np.append(found, rng.integers(0, 9))

    first = ask(1, 4)
    assert np.array_equal(ask(1, 4), first) and drawn == [4]
    ask(2, 4), ask(1, 5)
    assert drawn == [4, 4, 5]
    (found,) = kept.draw(numpy_rng(1, "x"), (4,), lambda: ())
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def test_what_does_not_fit_is_drawn_each_time():
    drawn, kept = [], Kept(room=8)
    for _ in range(2):
        rng = numpy_rng(1, "x")
        kept.draw(rng, (2,), lambda rng=rng: (drawn.append(2) or rng.random(2),))
    assert drawn == [2, 2]
