"""Strengths are chosen on the tuning seeds and reported on the others: neither side looks at the
other's seeds.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from claim_boards import REPORTED, STRENGTHS, TUNING, tuned_section
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.core.metrics import hypervolume
from fedbench.core.report import RowSummary, Table
from fedbench.leaderboard.tables.attacks import attack_tables
from fedbench.leaderboard.tables.ranking import ranking_table
from fedbench.leaderboard.tables.tradeoffs import paired_table
from fedbench.plugins.analyses.choice import Strengths
from fedbench.plugins.analyses.strengths import Tuned

MATCHED = "Tuned defenses at matched accuracy"


def drawn(section, **params):
    return list(Tuned(**params).draw(section, "tuned"))


def tables(section):
    return {b.title: b for b in drawn(section) if isinstance(b, Table)}


def chosen(section, within=1.0):
    return {c.family: (c.matched, c.best) for c in Strengths.chosen(section.tuning, within)}


def words(text):
    parts = text if isinstance(text, tuple) else (text,)
    return "".join(part if isinstance(part, str) else part.text for part in parts)


@pytest.fixture(scope="module")
def section(tmp_path_factory):
    return tuned_section(tmp_path_factory.mktemp("tuned") / "results")


def elsewhere(tmp_path, seeds):
    """A section with other numbers on these seeds."""
    rng = np.random.default_rng(0)
    other = {
        s: {label: (rng.uniform(0, 2), rng.integers(100, 400) / 400) for label in STRENGTHS}
        for s in seeds
    }
    return tuned_section(tmp_path / "results", of_seed=other)


def test_the_choice_never_reads_a_reported_seed(section, tmp_path):
    changed = elsewhere(tmp_path, REPORTED)
    assert Strengths.chosen(changed.tuning, 1.0) == Strengths.chosen(section.tuning, 1.0)
    assert any(changed.summary(label) != section.summary(label) for label in STRENGTHS)


def test_what_is_reported_never_reads_a_tuning_seed(section, tmp_path):
    changed = elsewhere(tmp_path, TUNING)
    assert chosen(changed) != chosen(section)
    assert section.seeds == REPORTED and section.tuning.seeds == TUNING
    for label in STRENGTHS:
        assert changed.summary(label) == section.summary(label)
    for made in (ranking_table, attack_tables, paired_table):
        assert made(changed) == made(section)


# ---------------------------------------------------------------- what is chosen


def test_the_area_of_a_strength_is_that_between_privacy_and_accuracy(section):
    for s in map(section.summary, STRENGTHS):
        point = [max(0.0, 2 * s.worst.mean - 1), 1 - s.accuracy.mean]
        assert Strengths.area(s) == pytest.approx(hypervolume(np.array([point])))


def stands(strengths):
    """A tuning section of label -> (complete, worst case, accuracy, delta-accuracy); the family is
    a label's first letter.
    """

    def of(value):
        return None if value is None else SimpleNamespace(mean=value)

    known = {
        label: RowSummary(
            label=label,
            complete=complete,
            worst=of(worst),
            attack="",
            tf01=None,
            tf01_attack="",
            accuracy=of(acc),
            delta_accuracy=of(delta),
        )
        for label, (complete, worst, acc, delta) in strengths.items()
    }
    names = dict.fromkeys(label[0] for label in known)
    families = {n: tuple(x for x in reversed(known) if x[0] == n) for n in names}
    return SimpleNamespace(families=lambda: families, summary=known.get)


STRENGTH = st.tuples(
    st.booleans(),
    st.none() | st.sampled_from([0.3, 0.45, 0.5, 0.55, 0.6, 0.9]),
    st.none() | st.sampled_from([0.1, 0.7, 0.8]),
    st.none() | st.sampled_from([-0.03, -0.01, -0.0099, 0.0, 0.02]),
)


@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from(["a1", "a2", "a3", "b1", "b2"]), STRENGTH, min_size=1),
    st.sampled_from([0.0, 1.0, 3.0]),
)
def test_a_choice_is_what_looking_at_every_strength_finds(strengths, within):
    for choice in Strengths.chosen(stands(strengths), within):
        near, known = [], []
        for label, (complete, worst, acc, delta) in strengths.items():
            if label[0] == choice.family and complete and worst is not None and acc is not None:
                leak = max(worst, 0.5)
                known.append((-(1 - (2 * leak - 1)) * acc, -acc, label))
                if delta is not None and delta * 100 + within > -1e-9:
                    near.append((leak, -acc, label))
        assert (choice.matched, choice.best) == tuple(
            min(of)[2] if of else None for of in (near, known)
        )


# ---------------------------------------------------------------- what is reported


@pytest.mark.parametrize(
    ("without", "family", "said"),
    [
        ((), "late", "none within 1 pp; nearest on the tuning seeds, at -20.00 pp: s=2"),
        ({("one", 1)}, "one", "one (not all its scores on the reported seeds)"),
        (
            {("none", s) for s in TUNING},
            "one",
            "none can be matched: no undefended run on the tuning seeds",
        ),
    ],
)
def test_a_defense_without_a_matched_strength_has_no_rank_and_says_why(
    tmp_path, without, family, said
):
    rows = {r[1]: r for r in tables(tuned_section(tmp_path / "r", without=without))[MATCHED].rows}
    row = rows[family]
    assert words(row[2]) == said and row[0].text == "–"  # noqa: RUF001
    assert (row[3:] == (None,) * 5) == ("not all its scores" not in said)
