"""Strengths are chosen on the tuning seeds and reported on the others: neither side ever looks at the other's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from boards import board, row_of
from hypothesis import given
from hypothesis import strategies as st
from tunings import REPORTED, ROWS, TUNING, Tuning, section_of

from fedbench.core import Figure, Note, Strengths, Table, hypervolume
from fedbench.leaderboard.figures import style
from fedbench.leaderboard.figures.files import image_of
from fedbench.leaderboard.statistics.standing import Standing, standing
from fedbench.leaderboard.tables.attacks import attack_tables
from fedbench.leaderboard.tables.costs import paired_table, pareto_table
from fedbench.leaderboard.tables.ranking import ranking_table
from fedbench.plugins.analyses.tuned import Tuned
from fedbench.plugins.analyses.tuned_figure import points_of, tuned_figure
from fedbench.plugins.analyses.tuned_tables import on_front


def drawn(section, **params):
    return list(Tuned(**params).draw(section, "tuned"))


def tables(section, **params):
    return {b.title: b for b in drawn(section, **params) if isinstance(b, Table)}


def chosen(section, within=1.0):
    return {c.family: (c.matched, c.best) for c in Strengths.chosen(section.tuning, within)}


def words(text):
    return "".join(p if isinstance(p, str) else p.text for p in (text if isinstance(text, tuple) else (text,)))


@pytest.fixture(scope="module")
def section(tmp_path_factory):
    return section_of(Tuning(tmp_path_factory.mktemp("tuned") / "results"))


# -- the two kinds of seeds --------------------------------------------------------------------------------------------


def test_a_section_is_of_the_reported_seeds_and_has_the_others_beside_it(section):
    assert section.seeds == REPORTED and section.tuning.seeds == TUNING and section.tuning.tuning is None
    assert {r.record.seed for r in section.records} == set(REPORTED)
    assert {label for r in section.rows for label in [r.label]} == {r.label for r in section.tuning.rows} == set(ROWS)


def test_no_other_table_counts_a_tuning_seed(section, tmp_path):
    alone = section_of(Tuning(tmp_path / "results", tuning=()))
    for made in (ranking_table, attack_tables, paired_table, pareto_table):
        assert made(section) == made(alone)
    assert alone.tuning is None


def test_a_board_says_which_seeds_are_of_tuning(tmp_path):
    text = board(Tuning(tmp_path / "results"), analyses=["tuned"])
    assert "seeds: 0, 1, 2" in text and "tuning seeds: 100, 101: strengths are chosen on them" in text
    assert text.count("**Tuned defenses at") == 2


def test_a_folder_of_tuning_seeds_alone_says_what_is_missing(tmp_path):
    assert "run the suite's other seeds" in board(Tuning(tmp_path / "results", reported=()), analyses=["tuned"])


def test_the_choice_never_reads_a_reported_seed(section, tmp_path):
    rng = np.random.default_rng(0)
    other = {s: {label: (rng.uniform(0, 2), rng.integers(100, 400) / 400) for label in ROWS} for s in REPORTED}
    changed = section_of(Tuning(tmp_path / "results", of_seed=other))
    assert Strengths.chosen(changed.tuning, 1.0) == Strengths.chosen(section.tuning, 1.0)
    assert any(changed.standing(label) != section.standing(label) for label in ROWS)


def test_what_is_reported_never_reads_a_tuning_seed(section, tmp_path):
    rng = np.random.default_rng(1)
    other = {s: {label: (rng.uniform(0, 2), rng.integers(100, 400) / 400) for label in ROWS} for s in TUNING}
    changed = section_of(Tuning(tmp_path / "results", of_seed=other))
    assert chosen(changed) != chosen(section)
    assert {label: changed.standing(label) for label in ROWS} == {label: section.standing(label) for label in ROWS}
    assert changed.ranks(list(ROWS)) == section.ranks(list(ROWS))


def test_another_seed_of_tuning_makes_another_choice(tmp_path):
    """The choice is of these seeds, not of a fixed order: the row that is private there is taken."""
    turned = {s: {"mine[a=1,b=2]": ROWS["mine[a=2,b=2]"], "mine[a=2,b=2]": ROWS["mine[a=1,b=2]"]} for s in TUNING}
    assert chosen(section_of(Tuning(tmp_path / "results", of_seed=turned)))["mine"] == ("mine[a=2,b=2]", "mine[a=2,b=2]")


# -- what is chosen ----------------------------------------------------------------------------------------------------


def test_matched_is_the_most_private_strength_within_reach_and_best_the_largest_area(section):
    assert chosen(section) == {
        "weak": ("weak[s=2]", "weak[s=3]"), "late": (None, "late[s=2]"), "one": ("one", "one"),
        "mine": ("mine[a=1,b=2]", "mine[a=1,b=2]"),
    }  # fmt: skip


@pytest.mark.parametrize(("within", "matched"), [(0.0, None), (0.75, None), (1.0, "one"), (5.0, "one")])
def test_a_strength_that_loses_exactly_as_much_as_it_may_is_matched(section, within, matched):
    """``one`` loses .01, which no binary fraction is."""
    assert chosen(section, within)["one"][0] == matched


def test_where_no_strength_is_within_reach_the_table_says_so_and_invents_no_row(section):
    rows = tables(section)["Tuned defenses at matched accuracy"].rows
    (late,) = (r for r in rows if r[1] == "late")
    assert words(late[2]) == "none within 1 pp; nearest on the tuning seeds, at -5.00 pp: s=1" and late[3:] == (None,) * 5
    assert [r[1] for r in rows][-1] == "late" and "late" not in [r[1] for r in rows[:-1]]
    assert "late" in [r[1] for r in tables(section)["Tuned defenses at their best"].rows]


def test_a_strength_without_all_its_scores_on_the_tuning_seeds_is_not_taken(tmp_path):
    section = section_of(Tuning(tmp_path / "results", without={("weak[s=2]", 101), ("one", 100), ("one", 101)}))
    found = chosen(section)
    assert found["weak"] == ("weak[s=1]", "weak[s=3]") and "one" not in found
    rows = {r[1]: r for r in tables(section)["Tuned defenses at matched accuracy"].rows}
    assert words(rows["one"][2]) == "none has all its scores on the tuning seeds" and rows["one"][3:] == (None,) * 5
    said = {r[0]: words(r[4]) for r in tables(section)["Strengths on the tuning seeds"].rows}
    assert said["weak[s=2]"] == "not all its scores" and said["weak[s=1]"] == "matched"


def test_a_chosen_strength_that_lacks_reported_scores_says_so_and_has_no_rank(tmp_path):
    section = section_of(Tuning(tmp_path / "results", without={("one", 1)}))
    rows = {r[1]: r for r in tables(section)["Tuned defenses at matched accuracy"].rows}
    assert words(rows["one"][2]) == "one (not all its scores on the reported seeds)" and rows["one"][0].text == "–"  # noqa: RUF001
    gone = section_of(Tuning(tmp_path / "gone", without={("one", s) for s in REPORTED}))
    rows = {r[1]: r for r in tables(gone)["Tuned defenses at matched accuracy"].rows}
    assert words(rows["one"][2]) == "one (no record on the reported seeds)" and rows["one"][3:] == (None,) * 5


def test_without_an_undefended_run_on_the_tuning_seeds_nothing_is_matched(tmp_path):
    section = section_of(Tuning(tmp_path / "results", without={("none", s) for s in TUNING}))
    assert all(matched is None and best for matched, best in chosen(section).values())
    rows = {r[1]: words(r[2]) for r in tables(section)["Tuned defenses at matched accuracy"].rows}
    assert rows["one"] == "none can be matched: no undefended run on the tuning seeds"


def test_without_tuning_seeds_nothing_is_chosen(tmp_path):
    (note,) = drawn(section_of(Tuning(tmp_path / "results", tuning=())))
    assert isinstance(note, Note) and "no strength can be chosen" in words(note.text)


def interval(mean):
    return None if mean is None else SimpleNamespace(mean=mean)


STRENGTH = st.tuples(
    st.booleans(), st.none() | st.sampled_from([0.3, 0.45, 0.5, 0.55, 0.6, 0.9]), st.none() | st.sampled_from([0.1, 0.7, 0.8]),
    st.none() | st.sampled_from([-0.03, -0.01, -0.0099, 0.0, 0.02]),
)  # fmt: skip


def chosen_of(within=1.0, **strengths):
    """(matched, best) of one family by name -> (worst case, accuracy, delta-accuracy)."""
    stands = {
        name: Standing(
            label=name, complete=True, worst=interval(worst), attack="", tf01=None, tf01_attack="", accuracy=interval(acc),
            delta_accuracy=interval(delta),
        )
        for name, (worst, acc, delta) in strengths.items()
    }  # fmt: skip
    family = SimpleNamespace(name="f", labels=tuple(stands))
    (choice,) = Strengths.chosen(SimpleNamespace(families=lambda: [family], standing=stands.get), within)
    return choice.matched, choice.best


def test_the_last_digit_of_a_mean_does_not_push_it_below_the_bar():
    assert 100 * -0.035 < -3.5
    assert chosen_of(3.5, a=(0.6, 0.7, -0.035))[0] == "a" and chosen_of(3.4, a=(0.6, 0.7, -0.035))[0] is None


def test_below_one_half_nothing_is_more_private_so_the_more_accurate_one_is_taken():
    assert chosen_of(a=(0.42, 0.7, 0.0), b=(0.5, 0.8, 0.0), c=(0.48, 0.75, 0.0)) == ("b", "b")
    assert chosen_of(b=(0.5, 0.8, 0.0), a=(0.5, 0.8, 0.0)) == ("a", "a")  # alike in all: the first by label


FAMILIES = st.dictionaries(st.sampled_from("abc"), st.lists(STRENGTH, min_size=1, max_size=4), max_size=3)


@given(FAMILIES, st.sampled_from([0.0, 1.0, 3.0]))
def test_a_choice_is_what_looking_at_every_strength_finds(families, within):
    stands = {
        f"{name}[s={i}]": Standing(
            label=f"{name}[s={i}]", complete=complete, worst=interval(worst), attack="", tf01=None, tf01_attack="",
            accuracy=interval(acc), delta_accuracy=interval(delta),
        )
        for name, own in families.items() for i, (complete, worst, acc, delta) in enumerate(own)
    }  # fmt: skip
    labels = {name: tuple(label for label in reversed(stands) if label[0] == name) for name in families}
    own = [SimpleNamespace(name=name, labels=of) for name, of in labels.items()]
    tuning = SimpleNamespace(families=lambda: own, standing=stands.get)
    for choice in Strengths.chosen(tuning, within):
        matched, best = None, None
        for label in sorted(labels[choice.family]):
            complete, worst, acc, delta = families[choice.family][int(label[-2])]
            if not complete or worst is None or acc is None:
                continue
            leak = max(worst, 0.5)
            if delta is not None and delta * 100 + within > -1e-9 and (matched is None or (leak, -acc) < matched[0]):
                matched = (leak, -acc), label
            value = (1 - (2 * leak - 1)) * acc
            if best is None or (-value, -acc) < best[0]:
                best = (-value, -acc), label
        assert (choice.matched, choice.best) == (matched and matched[1], best and best[1])


def test_the_area_is_the_share_of_the_plane_that_a_point_dominates(section):
    for label in ROWS:
        s = section.standing(label)
        point = [max(0.0, 2 * s.worst.mean - 1), 1 - s.accuracy.mean]
        assert Strengths.area(s) == pytest.approx(hypervolume(np.array([point])))


# -- what is reported --------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_ranking(section):
    ranking = {words(r[1]): r for r in ranking_table(section).rows}
    for title, at in (("Tuned defenses at matched accuracy", 0), ("Tuned defenses at their best", 1)):
        taken = {family: labels[at] for family, labels in chosen(section).items() if labels[at]}
        for row in tables(section)[title].rows:
            if row[1] in taken:
                theirs = ranking[taken[row[1]]]
                assert row[3].mean == theirs[2].mean and row[3].half_width == theirs[2].half_width
                assert (row[5], row[6]) == (theirs[6], theirs[7])


def test_ranks_are_among_the_chosen_rows_alone(section, tmp_path):
    """With every cell there, a section of these rows alone says the same."""
    own = ["none", "weak[s=2]", "one", "mine[a=1,b=2]"]
    alone = section_of(Tuning(tmp_path / "results", {label: ROWS[label] for label in own}))
    assert section.ranks(own) == alone.contest.ranks and len(alone.contest.ranks) == len(own)
    assert section.ranks([*own, "free-rider", "nobody"]) == section.ranks(own)
    shown = {r[1]: r[0].text for r in tables(section)["Tuned defenses at matched accuracy"].rows}
    theirs = {words(r[1]): r[0].text for r in ranking_table(alone).rows}
    assert shown == {"mine": theirs["mine[a=1,b=2]"], "one": theirs["one"], "weak": theirs["weak[s=2]"],
                     "none": theirs["none (undefended)"], "late": "–"}  # fmt: skip  # noqa: RUF001


def test_the_front_holds_the_rows_that_no_other_beats(section):
    rows = [section.standing(label) for label in ("none", "weak[s=2]", "one", "mine[a=1,b=2]")]
    assert on_front(rows) == {"none": True, "weak[s=2]": False, "one": False, "mine[a=1,b=2]": True}
    said = {r[1]: words(r[7]) for r in tables(section)["Tuned defenses at matched accuracy"].rows if r[7]}
    assert said == {"none": "yes", "weak": "no", "one": "no", "mine": "yes"}


def test_one_defense_is_compared_with_every_other_at_both_choices(section):
    table = tables(section, compared="mine")["One tuned defense against the others"]
    lines = [(r[0].text, r[1]) for r in table.rows]
    assert lines == [("matched", "one"), ("matched", "weak"), ("best", "late"), ("best", "one"), ("best", "weak")]
    pairs = [("mine[a=1,b=2]", b) for b in ("one", "weak[s=2]", "late[s=2]", "one", "weak[s=3]")]
    duels = {(d.first, d.second): d for d in section.duels(pairs)}
    for row, pair in zip(table.rows, pairs, strict=True):
        d = duels[pair]
        assert row[2].mean == d.worst.mean and row[4].mean == d.accuracy.mean
        assert row[3].text == ("no difference shown" if not d.shown else "less" if d.worst.mean < 0 else "MORE")
    assert {r[3].text for r in table.rows} > {"less"}


def test_a_compared_defense_that_is_not_there_or_was_not_matched_is_said(section):
    (note,) = (b for b in drawn(section, compared="mien") if isinstance(b, Note))
    assert words(note.text) == "No tuned defense here is called mien, so none is compared with the others."
    table = tables(section, compared="late")["One tuned defense against the others"]
    assert {r[0].text for r in table.rows} == {"best"} and "nothing is compared at matched accuracy" in words(table.footnotes[0])


def test_a_standing_is_what_its_row_says(section):
    row = row_of(section, "one")
    found = standing(section.contest, row, section.compared["one"])
    assert found == section.standing("one") and section.standing("nobody") is None
    assert found.delta_accuracy.mean == pytest.approx(-0.01) and found.accuracy == row.accuracy


# -- the figure --------------------------------------------------------------------------------------------------------


def test_the_figure_has_a_line_a_family_and_is_the_same_each_time(section, tmp_path):
    (figure,) = (b for b in drawn(section) if isinstance(b, Figure))
    images = [image_of(f, section).files for f in (figure, tuned_figure(section, Strengths.chosen(section.tuning, 1.0), 1.0))]
    assert images[0] == images[1] and len(images[0]) == 2
    one = points_of(section, ["weak[s=1]", "weak[s=2]", "weak[s=3]", "nobody"])
    assert list(one) == ["weak[s=3]", "weak[s=2]", "weak[s=1]"]
    assert one["weak[s=3]"][1] == pytest.approx(70) and one["weak[s=3]"][0] == section.standing("weak[s=3]").worst.mean


def test_what_was_chosen_is_marked_in_both_panels(section):
    canvas = tuned_figure(section, [Strengths(family="weak", strengths=(), matched="weak[s=2]", best=None)], 1.0).draw(style)
    for axis in canvas.axes:
        drawn_at = {line.get_label(): np.c_[line.get_data()] for line in axis.lines}
        s = section.standing("weak[s=2]")
        assert drawn_at["chosen at matched accuracy"].tolist() == [[s.worst.mean, 100 * s.accuracy.mean]]
        assert len(drawn_at["chosen as the best"]) == 0 and len(drawn_at["weak"]) == 3
    low, high = canvas.axes[1].get_ylim()
    assert low == pytest.approx(75) and high > 81
