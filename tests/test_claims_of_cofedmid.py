"""CoFedMID's Tables 4 and 12 and Figures 4, 6 and 7 as claims: made-up records bring out every verdict."""

from __future__ import annotations

import numpy as np
import pytest
from boards import board, rows_of, sections_of
from claim_boards import NOBODY, Analysed, Claimed, verdict
from claiming import paper_of, section_of

from fedbench.leaderboard.statistics.claims_measures import measured

YES, NO, OPEN, NONE = "supported", "contradicted", "not decided by these intervals", "not tested at this scale"
SKEWS = ("cifar100-iid", "cifar100-beta10", "cifar100-beta1", "cifar100-beta0-5")
ATTACKS = ("fedmia-ii", "seqmia")
WIGGLE = np.array([-0.004, 0.0, 0.004, -0.002, 0.002])


def said(shown, claim):
    return verdict(shown, f"cofedmid-{claim}")


# -- Table 4: skewed labels --------------------------------------------------------------------------------------------


def skewed(root, undefended, defended, settings=SKEWS):
    """Leaks of one setting after the other."""
    rows = zip(settings, undefended, defended, strict=True)
    cells = {s: {(NOBODY, "none"): (a, 0.8), ("pair", "cofedmid-cifar100"): (b, 0.8)} for s, a, b in rows}
    return Claimed(root, "cofedmid_table4", cells, ATTACKS)


@pytest.mark.parametrize(
    ("undefended", "defended", "protects", "costs", "rate"),
    [
        ((3.0, 3.0, 3.0, 3.0), (0.0, 0.0, 0.0, 0.0), YES, YES, YES),
        ((2.5, 2.5, 2.5, 1.0), (0.0, 0.0, 0.0, 2.0), NO, NO, NO),
        ((0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.2), OPEN, OPEN, YES),
    ],
)  # fmt: skip
def test_skewed_labels(tmp_path, undefended, defended, protects, costs, rate):
    found = skewed(tmp_path / "results", undefended, defended)
    assert said(found, "protects-skewed-clients") == protects
    assert said(found, "skew-costs-little") == costs and said(found, "skewed-tf01-below-4") == rate


@pytest.mark.parametrize(("plain", "most", "expected"), [(1.0, 2.0, YES), (2.0, 1.0, NO), (1.0, 1.0, OPEN)])
def test_undefended_clients_with_skewed_labels(tmp_path, plain, most, expected):
    ends = SKEWS[0], SKEWS[3]
    assert verdict(skewed(tmp_path / "results", (plain, most), (0.0, 0.0), ends), "skew-helps-attacks") == expected


def test_a_board_of_fewer_skews_tests_no_claim_of_all(tmp_path):
    found = skewed(tmp_path / "results", (3.0, 3.0), (0.0, 0.0), (SKEWS[0], SKEWS[3]))
    assert said(found, "protects-skewed-clients") == said(found, "skewed-tf01-below-4") == NONE
    assert verdict(skewed(tmp_path / "one", (3.0,), (0.0,), SKEWS[:1]), "skew-helps-attacks") == NONE


# -- Figures 4 and 6: AUCs of two attacks ----------------------------------------------------------------------------------


def aucs_of(suite, setting, coalition, rows):
    """A section in which both attacks have these AUCs: label -> AUC, on which seeds disagree."""
    made = np.array([[auc + np.roll(WIGGLE, i), auc - np.roll(WIGGLE, i)[::-1]] for i, auc in enumerate(rows.values())])
    return section_of(made, rows, setting, coalition, suite, ATTACKS)


def sized(coalition, cofedmid):
    """Sections of as many clients as are named: number -> AUC of CoFedMID beside .8 undefended."""
    names = {n: "half-of-5" if (n, coalition) == (5, "half") else coalition for n in cofedmid}
    return [
        aucs_of("cofedmid_figure4", f"clients{n}", names[n], {"none": 0.8, "cofedmid": auc}) for n, auc in cofedmid.items()
    ]  # fmt: skip


@pytest.mark.parametrize(("at_30", "expected"), [(0.55, YES), (0.9, NO), (0.8, OPEN)])
def test_a_pair_among_more_clients_is_protected(at_30, expected):
    assert said(sized("pair", {5: 0.6, 30: at_30}), "pair-protects-at-any-size") == expected


@pytest.mark.parametrize(("at_30", "expected"), [(0.552, YES), (0.65, NO), (0.51, NO), (0.58, OPEN)])
def test_a_half_of_more_clients_is_protected_alike(at_30, expected):
    found = sized("half", {**dict.fromkeys((5, 10, 15, 20, 25), 0.55), 30: at_30})
    assert said(found, "half-alike-at-any-size") == expected


def test_other_numbers_of_clients_are_not_tested():
    found = sized("half", {5: 0.55, 10: 0.55})
    assert said(found, "half-alike-at-any-size") == said(found, "pair-protects-at-any-size") == NONE


def costing(root, coalition, accuracies):
    """Number of clients -> CoFedMID's accuracy, beside .8 undefended."""
    names = {n: "half-of-5" if (n, coalition) == (5, "half") else coalition for n in accuracies}
    cells = {
        f"clients{n}": {(NOBODY, "none"): (1.0, 0.8), (names[n], "cofedmid"): (0.0, a)} for n, a in accuracies.items()
    }  # fmt: skip
    return Claimed(root, "cofedmid_figure4", cells, ("seqmia",), seeds=range(3), n_ofl=60)


@pytest.mark.parametrize(("at_5", "at_30", "expected"), [(0.6, 0.79, YES), (0.79, 0.6, NO), (0.75, 0.75, OPEN)])
def test_a_pair_costs_less_among_more_clients(tmp_path, at_5, at_30, expected):
    assert said(costing(tmp_path / "results", "pair", {5: at_5, 30: at_30}), "pair-cheaper-among-more") == expected


@pytest.mark.parametrize(("at_30", "expected"), [(0.701, YES), (0.72, NO), (0.68, NO), (0.71, OPEN)])
def test_a_half_costs_alike_whatever_the_clients(tmp_path, at_30, expected):
    found = costing(tmp_path / "results", "half", {**dict.fromkeys((5, 10, 15, 20, 25), 0.7), 30: at_30})
    assert said(found, "half-costs-alike-at-any-size") == expected


FIGURE_6 = {  # suite, setting, suffix of the claims, rows: strong and weak noise, much and little of it
    "digits": ("cofedmid_ablations", "digits", "", ("cofedmid", "sigma-0.05", "cofedmid", "ratio-0.1")),
    "cifar100": ("cofedmid_figure6", "cifar100", "-cifar100",
                 ("cofedmid[sigma=0.1]", "cofedmid[sigma=0.05]", "cofedmid[ratio=0.25]", "cofedmid[ratio=0.1]")),
}  # fmt: skip


@pytest.mark.parametrize("where", FIGURE_6)
@pytest.mark.parametrize(
    ("other", "strength", "ratio"), [(0.65, YES, NO), (0.5, NO, NO), (0.551, OPEN, YES), (0.58, YES, OPEN)]
)
def test_strength_and_ratio_of_the_noise(where, other, strength, ratio):
    suite, setting, suffix, (strong, weak, much, little) = FIGURE_6[where]
    found = [aucs_of(suite, setting, "half", {"none": 0.8, **{strong: 0.55, much: 0.55}, weak: other, little: other})]
    assert said(found, f"noise-strength-protects{suffix}") == strength
    assert said(found, f"noise-ratio-is-minor{suffix}") == ratio


def test_noise_of_one_strength_tests_no_claim_of_two():
    found = [aucs_of("cofedmid_ablations", "digits", "half", {"none": 0.8, "cofedmid": 0.55})]
    assert said(found, "noise-strength-protects") == said(found, "noise-ratio-is-minor") == NONE


# -- Figure 7 and Table 12: what analyses found ----------------------------------------------------------------------------

USED, LOSS, CLASSES = "data-usage", "loss-trajectories", "tf01-by-class"


def analysed(root, **said):
    """What analyses found of the undefended row and of CoFedMID's."""
    return Analysed(root, said)


@pytest.mark.parametrize(
    ("undefended", "defended", "raises", "narrows"),
    [
        ((0.3, 1.0, 1.3), (2.8, 2.9, 3.0), YES, YES), ((2.0, 2.1, 2.2), (1.0, 2.0, 3.0), NO, NO),
        ((1.0, 1.1, 1.2), (1.0, 1.1, 1.2), OPEN, OPEN), ((1.0, 2.0, 3.0), None, NONE, NONE),
        ((0.3, 1.0, 1.3), (2.8, 3.6, 4.0), YES, NO),
    ],
)  # fmt: skip
def test_courses_of_the_loss(tmp_path, undefended, defended, raises, narrows):
    own = {LOSS: defended} if defended else {}
    found = analysed(tmp_path / "results", none={LOSS: undefended}, cofedmid=own)
    assert said(found, "raises-losses") == raises and said(found, "narrows-the-loss-gap") == narrows


@pytest.mark.parametrize(
    ("median", "least", "high", "low", "half", "every", "harder"),
    [
        (0.4, 0.1, 0.3, 0.2, YES, YES, YES), (0.7, -0.1, 0.2, 0.3, NO, NO, NO), (0.55, 0.0, 0.2, 0.2, OPEN, OPEN, OPEN),
    ],
)  # fmt: skip
def test_use_of_the_samples(tmp_path, median, least, high, low, half, every, harder):
    numbers = {"used, median": median, "protected, 10 %": least, "protected, high loss": high, "protected, low loss": low}
    found = analysed(tmp_path / "results", cofedmid={USED: numbers})
    assert said(found, "uses-samples-half-as-often") == half and said(found, "regularises-every-sample") == every
    assert said(found, "regularises-hard-samples-more") == harder


@pytest.mark.parametrize(("numbers", "expected"), [
    ({"lowest": 0.1, "highest": 1.0}, YES), ({"lowest": 0.0, "highest": 4.0}, NO), ({"lowest": 0.2, "highest": 1.47}, OPEN),
    ({"missing": 1499.0}, NONE), ({"highest": 1.0}, NONE),
])  # fmt: skip
def test_tf01_of_classes(tmp_path, numbers, expected):
    found = analysed(tmp_path / "results", cofedmid={CLASSES: numbers})
    assert said(found, "protects-classes-alike") == expected


def test_without_analyses_nothing_of_them_is_tested(tmp_path):
    found = analysed(tmp_path / "results")
    for claim in ("raises-losses", "narrows-the-loss-gap", "uses-samples-half-as-often", "protects-classes-alike"):
        assert said(found, claim) == NONE


# -- the two words that these claims brought into the language ---------------------------------------------------------------


def test_the_last_loss_is_that_of_the_sections_clients_in_the_last_round_that_has_one(tmp_path):
    folder = Analysed(tmp_path / "results", {"none": {LOSS: (0.5, 1.0, 2.0)}, "cofedmid": {LOSS: (3.0, 3.0, 3.0)}})
    (section,) = sections_of(folder)
    loss = {"measure": "last-loss", "row": "none", "analysis": LOSS, "name": "clean members", "value": 9}
    asked = paper_of({"below": loss}).claims[0].holds[0].asked
    assert measured(section, asked).mean == pytest.approx(0.5, abs=0.002)
    gap = paper_of({"below": {**loss, "name": "clean outside", "minus": "clean members"}}).claims[0].holds[0].asked
    assert measured(section, gap).mean == pytest.approx(1.5, abs=0.004)


def test_what_is_taken_off_is_named_on_the_board(tmp_path):
    folder = Analysed(tmp_path / "results", {"cofedmid": {CLASSES: {"lowest": 0.1, "highest": 1.0}}})
    line = next(x for x in rows_of(board(folder), "**Claims of CoFedMID**") if x["id"] == "cofedmid-protects-classes-alike")
    assert line["found"] == "digits, half: cofedmid / seqmia / highest minus lowest 0.900 ± 0.000 (below 1.27 claimed)"
