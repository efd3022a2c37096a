"""What a board says of a paper's claim: supported, contradicted, not decided, not tested; and how sure it must be for that."""

from __future__ import annotations

import numpy as np
import pytest
from boards import Clustered, Folder, Poisoned, board, rows_of, sections_of
from claiming import judge, paper_of, section_of

from fedbench.leaderboard.markdown.render import render
from fedbench.leaderboard.statistics.claims_measures import contrasted, measured, separate
from fedbench.leaderboard.statistics.rivals import differences, told_apart
from fedbench.leaderboard.tables.claims import claims_blocks

YES, NO, OPEN, NONE = "supported", "contradicted", "not decided by these intervals", "not tested at this scale"
WIGGLE = np.array([-0.01, 0.0, 0.01, -0.005, 0.005])
ROWS = ("none", "weak", "strong", "noisy")


@pytest.fixture(scope="module")
def section():
    """Undefended .8, weak .7, strong .55; one about which seeds disagree, around .7. The second attack finds half of it."""
    noisy = 0.7 + 12 * WIGGLE
    first = [0.8 + WIGGLE, 0.7 - WIGGLE, 0.55 + WIGGLE[::-1], noisy]
    return section_of(np.array([[row, 0.5 + (row - 0.5) / 2] for row in first]), ROWS)


def lower(row, than, measure="worst-auc", **more):
    return {"lower": {"measure": measure, "row": row, "than": {"rows": list(than)}, **more}}


def higher(row, than, measure="worst-auc", **more):
    return {"higher": {"measure": measure, "row": row, "than": {"rows": list(than)}, **more}}


def below(row, value, measure="worst-auc", **more):
    return {"below": {"measure": measure, "row": row, "value": value, **more}}


@pytest.mark.parametrize("measure", ["worst-auc", "mean-auc"])
@pytest.mark.parametrize(
    ("row", "than", "verdict"),
    [
        ("strong", ["none", "weak"], YES), ("weak", ["none"], YES), ("weak", ["none", "strong"], NO), ("none", ["weak"], NO),
        ("weak", ["noisy"], OPEN), ("weak", ["none", "noisy"], OPEN),
    ],
)  # fmt: skip
def test_a_row_against_rows(section, measure, row, than, verdict):
    assert judge([section], lower(row, than, measure)).verdict == verdict
    turned = {YES: NO, NO: YES}.get(verdict, verdict)
    if len(than) == 1:
        assert judge([section], higher(row, than, measure)).verdict == turned


@pytest.mark.parametrize(
    ("predicate", "value", "verdict"),
    [("below", 0.65, YES), ("below", 0.5, NO), ("below", 0.551, OPEN), ("above", 0.5, YES), ("above", 0.65, NO),
     ("above", 0.549, OPEN)],
)  # fmt: skip
def test_a_row_against_the_papers_number(section, predicate, value, verdict):
    asked = {predicate: {"measure": "auc", "row": "strong", "attack": "attack0", "value": value}}
    assert judge([section], asked).verdict == verdict


def test_an_attack_against_attacks(section):
    def asked(attack, other):
        return {"higher": {"measure": "auc", "row": "none", "attack": attack, "than": {"attacks": [other]}}}

    assert judge([section], asked("attack0", "attack1")).verdict == YES
    assert judge([section], asked("attack1", "attack0")).verdict == NO


@pytest.mark.parametrize(("slack", "verdict"), [(0.0, NO), (0.1, NO), (0.15, OPEN), (0.2, YES)])
def test_slack_is_how_far_on_the_wrong_side_still_counts(section, slack, verdict):
    assert judge([section], lower("weak", ["strong"], slack=slack)).verdict == verdict  # .15 above
    assert judge([section], higher("strong", ["weak"], slack=slack)).verdict == verdict


def test_all_comparisons_of_a_claim_are_adjusted_together():
    """A difference that one comparison shows is not shown as the one of eight."""
    rng = np.random.default_rng(0)
    base = 0.7 + 0.02 * rng.normal(size=5)
    rows = [base] + [base + 0.02 + 0.012 * rng.permutation([-1, -0.5, 0, 0.5, 1]) for _ in range(8)]
    labels = ["none", *(f"row{i}" for i in range(8))]
    section = section_of(np.array([[row] for row in rows]), labels)
    alone = [judge([section], lower("none", [label])).verdict for label in labels[1:]]
    assert alone == [YES] * 8
    assert judge([section], lower("none", labels[1:])).verdict == OPEN
    assert judge([section], *(lower("none", [label]) for label in labels[1:])).verdict == OPEN


def test_a_claim_must_hold_in_every_section_that_it_names(section):
    flipped = section_of(np.array([[0.6 + WIGGLE, 0.55 + WIGGLE / 2], [0.8 + WIGGLE, 0.65 + WIGGLE / 2]]), ROWS[:2], "other")
    places = {"here": {}, "there": {"setting": "other"}, "nowhere": {"setting": "gone"}}

    def verdict(*where):
        return judge([section, flipped], lower("weak", ["none"]), sections=places, where=where)

    assert [verdict(name).verdict for name in places] == [YES, NO, NONE]
    assert verdict("here", "there").verdict == NO and verdict("here", "nowhere").verdict == NONE
    assert verdict("there", "nowhere").verdict == NO
    assert [(k.place.setting, k.why) for k in verdict("here", "nowhere").lacks] == [("gone", "no such section on this board")]


@pytest.mark.parametrize(
    ("holds", "why", "what"),
    [
        (lower("absent", ["none"]), "no row", "absent"), (lower("weak", ["absent"]), "no row", "absent"),
        (below("weak", 1, "auc", attack="absent"), "no attack", "absent"),
        (below("weak", 2, "tf01", attack="attack0"), "too few non-members for TF01 of", "attack0"),
        ({"lower": {"measure": "worst-auc", "row": "weak", "than": {"section": {"coalition": "half"}}}},
         "no such section on this board", "coalition half"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_not_tested_and_said(section, holds, why, what):
    found = judge([section], holds)
    assert found.verdict == NONE and [(k.why, k.what) for k in found.lacks] == [(why, what)]


def test_a_lack_hides_no_contradiction(section):
    assert judge([section], lower("none", ["weak", "absent"])).verdict == NO


def test_without_an_attack_that_beats_chance_nothing_is_judged():
    section = section_of(np.array([[0.5 + WIGGLE], [0.5 - WIGGLE]]), ("none", "weak"))
    found = judge([section], lower("weak", ["none"]))
    assert found.verdict == NONE
    assert [k.why for k in found.lacks] == ["no attack beats chance on the undefended run, so none judges"]


def test_a_board_of_another_suite_has_no_such_claim(section):
    elsewhere = {"there": {"suite": "other"}}
    assert claims_blocks([section], {"demo": paper_of(below("weak", 1), sections=elsewhere, where=("there",))}) == []


# -- how sure --------------------------------------------------------------------------------------------------------


def test_a_margin_is_the_same_as_moving_one_of_the_rows(section):
    def apart(contest, margin):
        return told_apart(contest.parts, contest.cell_rival("weak", "attack0"), contest.cell_rival("strong", "attack0"), margin)

    second = 0.55 + WIGGLE
    moved = section_of(np.array([[0.55 + WIGGLE[::-1], second], [0.6 - WIGGLE, second]]), ("strong", "weak"))
    assert [apart(section.contest, margin)[0] for margin in (-0.1, 0.1)] == pytest.approx([0.25, 0.05])
    assert apart(section.contest, 0.1) == pytest.approx(apart(moved.contest, 0.0))


def test_means_over_attacks_are_compared_on_the_same_candidates(section):
    c = section.contest
    units = differences(c.parts, c.mean_rival("weak").picked, c.mean_rival("strong").picked)
    assert np.mean([m.value for m in units.values()]) == pytest.approx(c.mean("weak").mean - c.mean("strong").mean)


# -- other measures, from records --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = Folder(tmp_path_factory.mktemp("claims") / "results", {"none": 2.0, "mixup": 0.0}, ("seqmia",), n_ofl=400)
    for seed in range(5):
        for defense, share in (("none", 0.5), ("mixup", 0.1)):
            folder.add(defense, "seqmia", seed, facts={"share": share + 0.01 * seed, "who": "somebody"})
    (section,) = sections_of(folder)
    return section


@pytest.mark.parametrize(
    ("holds", "verdict"),
    [
        (below("mixup", 2, "tf01", attack="seqmia"), YES), (below("none", 2, "tf01", attack="seqmia"), NO),
        (below("mixup", 2, "worst-tf01"), YES), (below("mixup", 2, "mean-tf01"), YES), (below("none", 2, "mean-tf01"), NO),
        (lower("mixup", ["none"], "mean-tf01"), YES), (lower("none", ["mixup"], "tf01", attack="seqmia"), NO),
        (lower("mixup", ["none"], "worst-tf01"), YES),
        (lower("mixup", ["none"], "accuracy"), YES), (higher("mixup", ["none"], "accuracy"), NO),
        (higher("mixup", ["none"], "accuracy", slack=10), YES), (higher("mixup", ["none"], "accuracy", slack=5), OPEN),
        (below("mixup", -1, "delta-accuracy"), YES), (below("mixup", -10, "delta-accuracy"), NO),
        (below("mixup", 1.69, "runtime"), YES), (below("mixup", 1, "runtime"), NO),
        (lower("mixup", ["none"], "fact", name="share"), YES), (lower("none", ["mixup"], "fact", name="share"), NO),
        (below("mixup", 0.12, "fact", name="share"), OPEN), (below("mixup", 1, "fact", name="who"), NONE),
        (below("mixup", 1, "finding", analysis="absent", name="x"), NONE), (below("none", -1, "delta-accuracy"), NONE),
        (lower("mixup", ["none"], "runtime"), NONE),
    ],
)  # fmt: skip
def test_rates_costs_and_facts(records, holds, verdict):
    assert judge([records], holds).verdict == verdict


def test_missing_scores_are_not_judged(tmp_path):
    folder = Folder(tmp_path / "results", {"none": 2.0, "mixup": 0.0}, ("seqmia",)).fill(range(3))
    folder.add("mixup", "seqmia", 2, "failed", reason="out of memory")
    for holds, what in ((below("mixup", 0.6), "mixup"), (below("mixup", 0.6, "auc", attack="seqmia"), "mixup / seqmia")):
        found = judge(sections_of(folder), holds)
        assert found.verdict == NONE and [(k.why, k.what) for k in found.lacks] == [("scores are missing of", what)]


def test_groups_and_findings_are_compared_seed_by_seed(tmp_path):
    (section,) = sections_of(Clustered(tmp_path / "results").fill(range(4)))
    place = {"here": {"coalition": "uniform", "view": "external"}}

    def verdict(*holds):
        return judge([section], *holds, sections=place).verdict

    group = {"measure": "attack-accuracy", "row": "ifca", "attack": "shadow", "group": "minority"}
    group["than"] = {"groups": ["majority"]}
    assert verdict({"higher": group}) == YES and verdict({"lower": group}) == NO
    assert verdict({"higher": {**group, "than": {"groups": ["absent"]}}}) == NONE
    count = {"measure": "finding", "row": "ifca", "attack": "shadow", "analysis": "violations", "name": "violated"}
    assert verdict({"lower": {**count, "than": {"rows": ["none"]}}}) == OPEN  # the same on every seed
    assert verdict({"below": {**count, "value": 100}}) == YES
    q = paper_of({"below": {**count, "value": 100}}).claims[0].holds[0].asked
    assert measured(section, q).mean == pytest.approx(np.mean([0, 10, 20, 30]))
    accuracy = {"measure": "finding", "row": "ifca", "analysis": "group-fairness", "name": "accuracy:minority"}
    assert verdict({"higher": {**accuracy, "than": {"rows": ["none"]}, "slack": 1}}) == YES


def test_attack_accuracy_is_that_of_the_last_round(tmp_path):
    (section,) = sections_of(Poisoned(tmp_path / "results").fill(range(4)))
    place = {"here": {"coalition": "none", "view": "client"}}
    asked = {"measure": "attack-accuracy", "row": "atm", "attack": "fedpoisonmia", "than": {"rows": ["none", "median"]}}
    assert judge([section], {"lower": asked}, sections=place).verdict == YES
    assert judge([section], {"higher": asked}, sections=place).verdict == NO
    q = paper_of({"lower": asked}).claims[0].holds[0].asked
    atm = next(r for r in section.rows if r.label == "atm").entries["fedpoisonmia"]
    assert measured(section, q).mean == pytest.approx(atm.attack_accuracy().mean)


def test_two_sections_are_compared_by_their_intervals(section):
    weaker = section_of(np.array([[0.6 + WIGGLE, 0.55 + WIGGLE / 2]]), ("none",), coalition="half")
    asked = {"measure": "worst-auc", "row": "none", "than": {"section": {"coalition": "half"}}}
    assert judge([section, weaker], {"higher": asked}).verdict == YES
    assert judge([section, weaker], {"lower": asked}).verdict == NO
    q = paper_of({"higher": asked}).claims[0].holds[0].asked
    found = contrasted((section, q), (weaker, q)).interval
    assert found == separate(measured(section, q), measured(weaker, q))


# -- on the board ------------------------------------------------------------------------------------------------------


def test_the_table_of_a_board(section):
    holds = (lower("weak", ["none", "strong"]), below("weak", 0.9))
    text = render(claims_blocks([section], {"demo": paper_of(*holds, text="<b>It | is_so</b>")}))
    assert text.startswith("## Claims of the papers\n") and "Differs from the paper: size." in text
    assert "&lt;b&gt;It \\| is\\_so&lt;/b&gt;" in text
    (line,) = rows_of(text, "**Claims of Demo**")
    assert (line["id"], line["place"], line["verdict"]) == ("so", "Table 1", NO)
    assert line["found"].startswith("iid, pair: 2 of 3 as claimed, 1 the other way; most against it: weak 0.7")
    assert ", minus strong +0.150 ± 0." in line["found"]


def test_one_comparison_is_told_in_full_and_a_lack_is_named(section):
    text = render(claims_blocks([section], {"demo": paper_of(below("strong", 0.9), lower("strong", ["absent"]))}))
    (line,) = rows_of(text, "**Claims of Demo**")
    assert line["verdict"] == NONE
    assert line["found"].startswith("iid, pair: strong 0.55") and line["found"].endswith("(below 0.9 claimed); no row absent")


def test_a_board_of_a_papers_suite_has_the_shipped_claims(tmp_path):
    folder = Folder(tmp_path / "results", {"none": 1.5, "cofedmid": 0.0, "hamp": 0.0})
    text = board(folder.fill(suite="partial_defense", setting="digits"))
    assert text.index("### Coalition pair") < text.index("## Claims of the papers") < text.index("## Provenance")
    lines = {line["id"]: line for line in rows_of(text, "**Claims of CoFedMID**")}
    assert lines["cofedmid-lowest-mean-auc"]["verdict"] == OPEN
    assert "no row grad-sparse, grad-noise" in lines["cofedmid-lowest-mean-auc"]["found"]
    assert "Claims of IFCA-MIR" not in text
    assert "Claims of the papers" not in board(Folder(tmp_path / "other", {"none": 1.0, "mixup": 0.0}).fill())
