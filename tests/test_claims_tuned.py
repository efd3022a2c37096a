"""Claims of tuned defenses: who is compared is told by the tuning seeds alone, and who is on the front by both numbers."""

from __future__ import annotations

import pytest
from claim_boards import NOBODY, Claimed, verdict
from claiming import judge, paper_of
from tunings import ROWS, TUNING, Tuning, section_of

from fedbench.core import UserError
from fedbench.core.metrics import Interval
from fedbench.leaderboard.claims.load import load_paper
from fedbench.leaderboard.statistics.claims_front import undominated
from fedbench.leaderboard.statistics.claims_measures import Found

YES, NO, OPEN, NONE = "supported", "contradicted", "not decided by these intervals", "not tested at this scale"
SETTINGS = ("digits", "location30", "cifar10")
FRONT, PRIVATE = "cofedmid-front-at-matched-accuracy", "cofedmid-most-private-at-matched-accuracy"
FRONT_BEST, PRIVATE_BEST = "cofedmid-front-at-its-best", "cofedmid-most-private-at-its-best"


@pytest.fixture(scope="module")
def section(tmp_path_factory):
    """Of ``weak`` the tuning seeds match s=2 and find s=3 the best; of ``late`` they match none; ``mine`` is the most private."""
    return section_of(Tuning(tmp_path_factory.mktemp("tuned") / "results"))


def asked(row, at, *others, how="lower"):
    than = {"rows": list(others)} if others else {"tuned": True}
    return {how: {"measure": "worst-auc", "row": row, "chosen": at, "than": than}}


def compared(section, predicate):
    """(row, other) of every comparison, and what is lacking."""
    found = judge([section], predicate)
    return [(c.quantity.row, c.other) for c in found.comparisons], [(k.why, k.what) for k in found.lacks]


# -- who is compared -------------------------------------------------------------------------------------------------------


def test_every_other_tuned_defense_is_compared_at_what_was_chosen_for_it(section):
    assert compared(section, asked("weak", "matched")) == (
        [("weak[s=2]", "mine[a=1,b=2]"), ("weak[s=2]", "one")], []
    )  # fmt: skip
    assert compared(section, asked("weak", "best")) == (
        [("weak[s=3]", other) for other in ("late[s=2]", "mine[a=1,b=2]", "one")], []
    )  # fmt: skip


def test_the_undefended_run_has_one_strength_and_is_compared_where_it_is_named(section):
    assert compared(section, asked("weak", "matched", "none")) == ([("weak[s=2]", "none")], [])


def test_other_seeds_of_tuning_compare_other_strengths(tmp_path):
    turned = {s: {"mine[a=1,b=2]": ROWS["mine[a=2,b=2]"], "mine[a=2,b=2]": ROWS["mine[a=1,b=2]"]} for s in TUNING}
    found = section_of(Tuning(tmp_path / "results", of_seed=turned))
    assert compared(found, asked("one", "matched", "mine")) == ([("one", "mine[a=2,b=2]")], [])
    assert judge([found], asked("one", "matched", "mine")).verdict == YES  # told on the reported seeds: there it leaks


@pytest.mark.parametrize(
    ("predicate", "lack"),
    [
        (asked("late", "matched"), ("no strength within 1 pp on the tuning seeds:", "late")),
        (asked("one", "matched", "late"), ("no other defense has a strength within 1 pp on the tuning seeds", "")),
        (asked("absent", "matched"), ("no tuned defense", "absent")),
        (asked("one", "best", "absent"), ("no tuned defense", "absent")),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_said(section, predicate, lack):
    found = judge([section], predicate)
    assert found.verdict == NONE and [(k.why, k.what) for k in found.lacks] == [lack]


def test_without_tuning_seeds_or_all_their_scores_nothing_is_chosen(tmp_path):
    none = section_of(Tuning(tmp_path / "none", tuning=()))
    assert compared(none, asked("weak", "best")) == ([], [("no records of tuning seeds", "")])
    some = section_of(Tuning(tmp_path / "some", without={("one", 101)}))
    pairs, lacks = compared(some, asked("mine", "matched"))
    assert pairs == [("mine[a=1,b=2]", "weak[s=2]")] and lacks == [("not all scores on the tuning seeds of", "one")]
    bare = section_of(Tuning(tmp_path / "bare", without={("none", 100), ("none", 101)}))
    assert compared(bare, asked("one", "matched"))[1] == [
        ("no undefended run on the tuning seeds, so nothing is matched:", "one")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("holds", "message"),
    [
        ("lower: {measure: worst-auc, row: a, than: {tuned: true}}", "say under chosen which one is compared"),
        ("lower: {measure: worst-auc, row: a, chosen: best, than: {section: {view: client}}}", "with rows, or with tuned"),
        ("lower: {measure: worst-auc, row: a, chosen: first, than: {tuned: true}}", "chosen: expected 'matched' or 'best'"),
        ("undominated: {measure: accuracy, row: a, than: {rows: [b]}}", "measure accuracy is no leak"),
        ("undominated: {measure: auc, attack: x, row: a, than: {attacks: [y]}}", "rows dominate rows"),
        ("undominated: {measure: worst-auc, row: a, than: {rows: [b]}, slack: 0.1}", "takes no slack"),
        ("below: {measure: last-loss, row: a, analysis: x, name: clean, value: 1}", "is of clean members, clean inside"),
        ("below: {measure: last-loss, row: a, analysis: x, name: clean members, minus: y, value: 1}", "found 'y'"),
        ("below: {measure: fact, row: a, name: x, minus: y, value: 1}", "measure fact takes no minus: only finding"),
    ],
)  # fmt: skip
def test_a_mistake_of_the_new_words_is_said(tmp_path, holds, message):
    paper = paper_of({"below": {"measure": "accuracy", "row": "a", "value": 1}}).model_dump_json(exclude_none=True)
    path = tmp_path / "demo.yaml"
    path.write_text(paper.replace('{"below":{"measure":"accuracy","row":"a","value":1.0}}', f"{{{holds}}}"))
    with pytest.raises(UserError) as error:
        load_paper(path)
    assert message in str(error.value) and "demo.yaml:1:" in str(error.value)


# -- who is on the front -----------------------------------------------------------------------------------------------------


def found_of(mean, p):
    return Found(Interval(mean, abs(mean) / 2, 5, between=True), p)


@pytest.mark.parametrize(
    ("leak", "accuracy", "decides", "p"),
    [
        ((-0.1, 0.01), (-5.0, 0.001), "leak", 0.01), ((0.1, 0.01), (5.0, 0.02), "accuracy", 0.02),
        ((-0.1, 0.01), (5.0, 0.02), "leak", 0.02), ((-0.1, 0.04), (5.0, 0.03), "accuracy", 0.06),
        ((0.1, 0.01), (-5.0, 0.2), "accuracy", 0.2), ((0.1, 0.03), (-5.0, 0.01), "leak", 0.03),
        ((-0.1, 0.7), (5.0, 0.9), "leak", 1.0), ((0.1, 0.01), (0.0, 1.0), "accuracy", 1.0),
    ],
)  # fmt: skip
def test_one_good_side_keeps_a_row_on_the_front_and_two_bad_ones_take_it_off(leak, accuracy, decides, p):
    by_accuracy, told = undominated(found_of(*leak), found_of(*accuracy))
    assert ("accuracy" if by_accuracy else "leak", told.p) == (decides, pytest.approx(p))
    assert told.interval.mean == (accuracy if by_accuracy else leak)[0]


# -- the shipped ones ----------------------------------------------------------------------------------------------------------


def tuned_board(root, cofedmid, rival, settings=SETTINGS):
    """Two tuned defenses beside an undefended run of .8; each (leak, accuracy)."""
    rows = {(NOBODY, "none"): (2.5, 0.8), ("half", "cofedmid[m_max=0.5]"): cofedmid, ("half", "hamp[gamma=0.5]"): rival}
    return Claimed(
        root, "tuned_baselines", dict.fromkeys(settings, rows), ("loss-series",), seeds=range(4), n_ofl=60, tuning=(100, 101)
    )


@pytest.mark.parametrize(
    ("cofedmid", "rival", "front", "private"),
    [
        ((0.0, 0.797), (1.5, 0.799), YES, YES), ((1.5, 0.797), (0.0, 0.799), NO, NO), ((1.5, 0.799), (0.0, 0.795), YES, NO),
        ((1.0, 0.797), (1.0, 0.797), OPEN, OPEN), ((0.0, 0.75), (1.5, 0.799), NONE, NONE), ((0.0, 0.797), (1.5, 0.7), NONE, NONE),
    ],
)  # fmt: skip
def test_a_tuned_rival_at_matched_accuracy(tmp_path, cofedmid, rival, front, private):
    """Where CoFedMID, or every rival, has no strength within reach nothing is tested."""
    folder = tuned_board(tmp_path / "results", cofedmid, rival)
    assert verdict(folder, FRONT) == front and verdict(folder, PRIVATE) == private


@pytest.mark.parametrize(
    ("cofedmid", "rival", "front", "private"),
    [
        ((0.0, 0.7), (1.5, 0.75), YES, YES), ((1.5, 0.7), (0.0, 0.75), NO, NO), ((1.5, 0.79), (0.0, 0.6), YES, NO),
        ((1.0, 0.7), (1.0, 0.7), OPEN, OPEN),
    ],
)  # fmt: skip
def test_a_tuned_rival_at_its_best(tmp_path, cofedmid, rival, front, private):
    folder = tuned_board(tmp_path / "results", cofedmid, rival)
    assert verdict(folder, FRONT_BEST) == front and verdict(folder, PRIVATE_BEST) == private


def test_a_board_without_one_of_the_settings_is_not_enough(tmp_path):
    folder = tuned_board(tmp_path / "results", (0.0, 0.797), (1.5, 0.799), SETTINGS[:2])
    assert verdict(folder, FRONT) == verdict(folder, PRIVATE_BEST) == NONE
