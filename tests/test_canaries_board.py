"""Clean and mislabelled samples as equals: a contest of one kind is the contest in which the others were never asked about."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from contests import judged
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.core import EXCLUDED, MEMBER, OFL
from fedbench.leaderboard.tables.canaries import canary_table

N = 60
KIND = np.repeat([MEMBER, OFL], N // 2)
CANARY = np.arange(N) % 3 == 0


def scores_of(seed, strength):
    """Three seeds of two attacks on two rows; canaries leak by ``strength``, clean samples do not."""
    rng = np.random.default_rng(seed)
    leak = strength * (KIND == MEMBER) * CANARY

    def one(of_row):
        return {a: {s: {0: rng.standard_normal(N) + of_row * leak} for s in range(3)} for a in ("loss", "cosine")}

    return {"none": one(1.0), "half": one(0.5)}


@settings(max_examples=15)
@given(st.integers(0, 2**20))
def test_a_contest_of_one_kind_never_sees_the_other(seed):
    scores = scores_of(seed, 4.0)
    everything = judged(scores, KIND, canary=CANARY)
    for some, mask in zip(everything.by_kind, (~CANARY, CANARY), strict=True):
        alone = judged(scores, np.where(mask, KIND, EXCLUDED), canary=CANARY)
        for label in scores:
            for attack in ("loss", "cosine"):
                assert some.signed(label, attack) == alone.signed(label, attack)
            assert some.worst(label) == alone.worst(label)
        assert some.ranks == alone.ranks


def section_of(contest):
    """As much of a section as the table asks for."""
    return SimpleNamespace(contest=contest, rows=contest.rows)


def test_the_table_sets_the_two_kinds_side_by_side():
    contest = judged(scores_of(1, 6.0), KIND, canary=CANARY)
    (table,) = canary_table(section_of(contest))
    assert [c.name.text for c in table.columns][1::3] == ["clean: #", "canaries: #"]
    row = next(r for r in table.rows if "none" in str(r[0]))
    clean, canary = row[2], row[5]
    assert canary.mean > 0.95 and clean is None


def test_there_is_no_table_where_all_samples_are_of_one_kind():
    for canary in (np.zeros(N, bool), np.ones(N, bool)):
        assert canary_table(section_of(judged(scores_of(2, 1.0), KIND, canary=canary))) == []
