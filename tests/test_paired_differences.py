"""Two defenses side by side: the worst case and the accuracy of one minus those of the other."""

from __future__ import annotations

import numpy as np
import pytest
from boards import sections_of, worlds

from fedbench.plugins.analyses.paired_differences import PairedDifferences

LEAKS = {"own": {"none": 2.0, "shield": 0.0, "twin": 0.0, "mixup": 1.5}}


@pytest.fixture(scope="module")
def section(tmp_path_factory):
    return sections_of(worlds(tmp_path_factory.mktemp("pairs") / "results", LEAKS))[0]


def test_a_pair_is_what_the_comparison_with_one_row_says(section):
    found = section.duels([("shield", "mixup"), ("mixup", "none")])
    for duel in found:
        alone = section.contest.against(duel.second)[duel.first]
        assert duel.worst == alone.found
    assert [d.shown for d in found] == [True, True] and found[0].worst.mean < -0.2


def test_a_pair_turned_round_is_minus_itself(section):
    one, other = section.duels([("shield", "mixup"), ("mixup", "shield")])
    assert one.worst.mean == pytest.approx(-other.worst.mean) and one.worst.half_width == pytest.approx(other.worst.half_width)
    assert one.accuracy.mean == pytest.approx(-other.accuracy.mean)


def test_two_defenses_that_do_the_same_are_not_told_apart(section):
    (duel,) = section.duels([("shield", "twin")])
    assert not duel.shown and abs(duel.worst.mean) <= duel.worst.half_width


def test_many_pairs_are_judged_more_strictly_than_one(section):
    """Holm: the claims of a family of pairs hold together."""
    labels = [r.label for r in section.rows]
    pairs = [(a, b) for a in labels for b in labels if a != b]
    alone = {p: section.contest.between([p])[p].p for p in pairs}
    together = section.contest.between(pairs)
    assert all(together[p].p >= alone[p] for p in pairs) and any(together[p].p > alone[p] for p in pairs)


def test_the_table_has_the_pairs_that_are_there(section):
    tables = list(PairedDifferences(pairs=[("shield", "mixup"), ("shield", "gone"), ("shield", "shield")]).draw(section, "pairs"))
    ((pair, worst, verdict, accuracy),) = tables[0].rows
    assert (pair[0], pair[2]) == ("shield", "mixup") and verdict.text == "less"
    assert np.isfinite([worst.mean, worst.half_width, accuracy.mean]).all()
    assert list(PairedDifferences(pairs=[("shield", "gone")]).draw(section, "pairs")) == []
