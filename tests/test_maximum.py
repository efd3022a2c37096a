"""The best of many rounds and attacks, in statistics, records and boards: equal to slow references,
and beside its null.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from boards import CLIENTS, MEMBERS, Folder, board, row_of, sections_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fedbench.core import EXCLUDED, IFL, MEMBER, OFL
from fedbench.core.metrics import advantage, auc, tf01
from fedbench.core.metrics.rounds import SHUFFLES, maximum, round_report
from fedbench.core.population.audit import shuffle_rng
from fedbench.core.store.scores import MaximumScores
from fedbench.plugins.papers.claim_files import Quantity
from fedbench.plugins.papers.maximum import null_of_mean, row_maximum
from fedbench.plugins.papers.quantities import measured

# --- the largest of many rounds -------------------------------------------------------------------


def slow_maximum(scores, kind, rng, n):
    """[1 + n] AUC and advantage: the membership itself and n shuffles of all candidates, one round
    after the other.
    """
    from_outside = (kind == OFL).any()
    counts = np.array([k in (MEMBER, OFL) if from_outside else k != EXCLUDED for k in kind])
    flags = [kind == MEMBER]
    for _ in range(n):
        called = [i for i in rng.permutation(len(kind)) if counts[i]][: int((kind == MEMBER).sum())]
        flags.append(np.isin(np.arange(len(kind)), called))
    there = [row[counts] for row in scores if not np.isnan(row).all()]
    return tuple(
        np.array([max(of(row, f[counts]) for row in there) for f in flags])
        for of in (auc, advantage)
    )


def fake(seed, n=80, rounds=5, ties=False, kinds=(MEMBER, OFL, IFL, EXCLUDED)):
    """(scores [R, n], kind [n]) of a federation that leaks nothing."""
    rng = np.random.default_rng(seed)
    # rounds go together, as those of a training do
    scores = rng.normal(size=(rounds, n)) + rng.normal(size=n)
    return (np.round(scores) if ties else scores), np.r_[MEMBER, kinds[1], rng.choice(kinds, n - 2)]


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(12, 60),
    rounds=st.integers(1, 4),
    ties=st.booleans(),
    kinds=st.sampled_from([(MEMBER, OFL, IFL, EXCLUDED), (MEMBER, IFL, EXCLUDED)]),
    absent=st.booleans(),
)
def test_the_maximum_is_that_of_the_slow_reference_at_ties_and_for_every_kind_of_candidate(
    seed, n, rounds, ties, kinds, absent
):
    scores, kind = fake(seed, n, rounds, ties, kinds)
    # a round without the target is no look
    shown = np.insert(scores, 1, np.nan, axis=0) if absent else scores
    found = maximum(shown, kind, shuffle_rng(seed, 3), 7)
    slow_auc, slow_advantage = slow_maximum(scores, kind, shuffle_rng(seed, 3), 7)
    assert [found.auc, *found.null_auc] == pytest.approx(slow_auc, abs=1e-12)
    assert [found.advantage, *found.null_advantage] == pytest.approx(slow_advantage, abs=1e-12)
    assert found.looks == rounds
    assert maximum(scores, np.full(n, MEMBER), shuffle_rng(seed, 3)) is None


@pytest.mark.parametrize(
    "of",
    [
        maximum,
        lambda scores, kind, rng: round_report(scores, kind == MEMBER, np.arange(len(scores)), rng),
    ],
)
@pytest.mark.parametrize(
    ("value", "said"), [(np.nan, "no round has scores"), (np.inf, "not finite")]
)
def test_scores_that_are_no_numbers_are_refused(of, value, said):
    scores, kind = fake(3)
    with pytest.raises(ValueError, match=said):
        of(scores + value, kind, shuffle_rng(3, 0))


def test_shuffles_are_of_the_seed_and_the_target_alone():
    scores, kind = fake(5, 200, 1)
    first = maximum(scores, kind, shuffle_rng(5, 1)).null_auc
    assert len(first) == SHUFFLES
    np.testing.assert_array_equal(maximum(3 * scores, kind, shuffle_rng(5, 1)).null_auc, first)
    for seed, target in ((5, 2), (6, 1)):
        assert not np.array_equal(maximum(scores, kind, shuffle_rng(seed, target)).null_auc, first)


def test_without_a_leak_the_maximum_lies_above_its_null_in_one_federation_of_twenty():
    """Six attacks and ten rounds in 30 federations: 60 looks, of which no correction is asked."""
    above, observed, nulls = 0, [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        kind, sample = np.repeat([MEMBER, OFL], 50), rng.normal(size=100)
        found = [
            maximum(0.7 * sample + rng.normal(size=(10, 100)), kind, shuffle_rng(seed, 0))
            for _ in range(6)
        ]
        null, largest = np.max([m.null_auc for m in found], axis=0), max(m.auc for m in found)
        above += 1 + (null >= largest).sum() <= 0.05 * (1 + len(null))
        observed.append(largest)
        nulls.append(null.mean())
    low, high = binom.ppf([0.001, 0.999], 30, 0.05)
    assert low <= above <= high
    assert np.mean(observed) > 0.58  # far above one half, though nothing leaks
    spread = np.std(observed, ddof=1) / np.sqrt(30)
    assert abs(np.mean(observed) - np.mean(nulls)) < 3 * spread  # which is what the null says


# --- which round counts ---------------------------------------------------------------------------


def slow_report(scores, member, rng, shuffles):
    """The same numbers one round and one shuffle after the other, with the same draws: a half, then
    the shuffles.
    """
    first = np.zeros(len(member), bool)
    for side in (member, ~member):
        at = rng.permutation(np.flatnonzero(side))
        first[at[: len(at) // 2]] = True

    def best(rows, truth):
        return max(range(len(rows)), key=lambda r: (tf01(rows[r], truth) or 0, auc(rows[r], truth)))

    def at(rows, truth, r):
        return auc(rows[r], truth), tf01(rows[r], truth)

    choosing, judging, truth = scores[:, first], scores[:, ~first], member[~first]
    by_auc = max(range(len(scores)), key=lambda r: auc(choosing[r], member[first]))
    calibrated = at(judging, truth, by_auc)[0], at(judging, truth, best(choosing, member[first]))[1]
    chosen, orders = best(scores, member), [rng.permutation(member) for _ in range(shuffles)]
    nulls = [at(scores, order, best(scores, order)) for order in orders]
    means = [None if None in column else np.mean(column) for column in zip(*nulls, strict=True)]
    return *at(scores, member, -1), *calibrated, *at(scores, member, chosen), chosen, *means


@pytest.mark.parametrize(("members", "strangers"), [(150, 4000), (150, 1999), (40, 1998)])
def test_the_report_of_rounds_equals_its_definition(members, strangers):
    """Last, calibrated, best and null, with TF01 from 1,999 non-members on; half of 4,000 are
    enough to calibrate.
    """
    rng, member = np.random.default_rng(0), np.arange(members + strangers) < members
    # with ties
    scores = np.round(rng.normal(size=(7, len(member))) + 0.2 * rng.random((7, 1)) * member, 1)
    shown = np.insert(scores, [0, 5, 7], np.nan, axis=0)  # rounds without the target are left out
    got = round_report(shown, member, np.arange(10), np.random.default_rng(5), shuffles=9)
    wanted = list(slow_report(scores, member, np.random.default_rng(5), 9))
    wanted[6] = [1, 2, 3, 4, 5, 7, 8][wanted[6]]
    names = (
        "last_auc last_tf01 calibrated_auc calibrated_tf01 best_auc best_tf01 best_round "
        "null_best_auc null_best_tf01"
    )
    found = [getattr(got, name) for name in names.split()]
    assert found == [w if w is None else pytest.approx(w) for w in wanted]
    scores, member = scores[:, members - 1 :], member[members - 1 :]
    alone = round_report(scores, member, np.arange(7), np.random.default_rng(0))
    assert alone.calibrated_auc is None and alone.calibrated_tf01 is None


# --- boards ---------------------------------------------------------------------------------------

TITLE = "Maximum over attacks and rounds"
ROUNDS = 4
SINGLE = ("threshold-loss", "threshold-entropy")
LEAK = {"none": 1.0, "membershield": 0.0}


class Looking(Folder):
    """A folder of attacks that score every round (those in ``single``) or a trajectory; every
    record knows its maximum.
    """

    def __init__(self, root, leak=LEAK, single=SINGLE):
        self.single = single
        super().__init__(root, leak, (*SINGLE, "fedmia-ii"))

    def parties(self, defense):
        return ("none", (), CLIENTS) if defense == "none" else ("uniform", MEMBERS, MEMBERS)

    def _measured(self, defense, attack, seed, targets, ids_from):
        arrays, scored, correct = super()._measured(defense, attack, seed, targets, ids_from)
        for t in scored:
            kind, last = arrays[f"t{t.target}_kind"], arrays[f"t{t.target}_scores"]
            by_round = last[None]
            if attack in self.single:
                rng = np.random.default_rng([seed, t.target, *f"{attack} {defense}".encode()])
                earlier = last + rng.normal(size=(ROUNDS - 1, len(last)))
                by_round = np.vstack([earlier, last])
                t.rounds = round_report(by_round, kind == 0, 10 * np.arange(1, ROUNDS + 1), rng)
            found = maximum(by_round, kind, shuffle_rng(seed, t.target))
            t.maximum = MaximumScores(auc=found.auc, advantage=found.advantage, rounds=found.looks)
            arrays |= {
                f"t{t.target}_null_auc": found.null_auc.astype(np.float32),
                f"t{t.target}_null_advantage": found.null_advantage.astype(np.float32),
            }
        return arrays, scored, correct


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Looking(tmp_path_factory.mktemp("maximum") / "results").fill(seeds=(0, 1))


@pytest.fixture(scope="module")
def section(folder):
    (found,) = sections_of(folder)
    return found


def test_a_row_has_the_maximum_over_attacks_beside_the_same_maximum_of_every_shuffle(
    folder, section
):
    row = row_of(section, "membershield")
    entries, found = list(row.entries.values()), row_maximum(row)
    values = [max(e.maxima[unit].auc for e in entries) for unit in section.units]
    nulls = [np.max([e.null_maxima(unit)[0] for e in entries], axis=0) for unit in section.units]
    assert found.auc.found.mean == pytest.approx(np.mean(values))
    assert found.looks == (2 * ROUNDS + 1,) * 2
    assert found.auc.null_mean == pytest.approx(np.mean(nulls)) and found.auc.found.n == 4
    loud = row_maximum(row_of(section, "none"))
    assert found.auc.within and found.advantage.within and not loud.auc.within
    assert loud.auc.p == loud.advantage.p == pytest.approx(1 / (1 + SHUFFLES))
    assert measured(section, Quantity(measure="max-advantage", row="none")) == loud.advantage.found


def test_it_appears_where_two_attacks_score_every_round(tmp_path):
    assert TITLE not in board(Looking(tmp_path / "one", single=SINGLE[:1]).fill(seeds=(0,)))


def test_other_shuffles_cannot_be_put_together(tmp_path):
    folder = Looking(tmp_path / "results").fill(seeds=(0,))
    names = [f"t{t}_null_{of}" for t in MEMBERS for of in ("auc", "advantage")]
    half = dict.fromkeys(names, np.full(100, 0.5, np.float32))
    folder.add("membershield", "fedmia-ii", 0, arrays=half)
    text = board(folder)
    assert re.search(r"entropy--s0--.*: its null has other shuffles than that of .*-ii--s0--", text)
    assert TITLE not in text


def test_the_null_of_targets_of_a_seed_moves_together_and_that_of_seeds_does_not():
    rng = np.random.default_rng(0)
    draws = {(seed, t): rng.normal(size=400) for seed in (0, 1) for t in (0, 1, 2)}
    same, both = null_of_mean({u: d for u, d in draws.items() if u[0] == 0}), null_of_mean(draws)
    assert same.std() == pytest.approx(1, abs=0.1)
    assert both.std() == pytest.approx(1 / np.sqrt(2), abs=0.1)
    assert both.mean() == pytest.approx(np.mean(list(draws.values())))
