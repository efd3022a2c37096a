"""Ceilings of `fedbench compare`: upper ends against them, what is not known, and JUnit XML."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from boards import Folder
from site_boards import marked

from fedbench.core.words import DOCS
from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.gate.ceilings import DOUBTFUL, NAMES, ceilings_of
from fedbench.leaderboard.statistics.rows import DefenseRow

LEAKS = {"none": 1.0, "mixup": 0.6, "hamp": 0.1}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two defenses and the undefended row, two attacks, three seeds; read-only."""
    return marked(Folder(tmp_path_factory.mktemp("ceilings") / "results", LEAKS).fill())


def verdicts(root, **most):
    """(row, name) -> verdict."""
    return {(c.defense, c.name): c.verdict for c in ceilings_of(root, most)}


def test_the_upper_end_of_the_interval_is_held_against_the_ceiling(results):
    (section,) = source_of(results).sections
    worst = section.comparison.worst_cases.of
    ends = {name: worst(name).worst.interval.high for name in ("mixup", "hamp")}
    for end in ends.values():
        for most in (end - 1e-4, end + 1e-4):
            assert verdicts(results, worst_auc=most) == {
                (name, "worst_auc"): "below" if high < most else "above"
                for name, high in ends.items()
            }


def test_what_has_no_upper_end_is_not_known_and_says_why(tmp_path, results):
    reasons = {c.name: c.reason for c in ceilings_of(results, {"tf01": 100, "epsilon_lower": 9})}
    assert reasons == {
        "tf01": f"too few seeds or outside non-members ({DOCS}/method.md#tf01)",
        "epsilon_lower": f"the seeds share no pool of data ({DOCS}/auditing.md)",
    }
    single = Folder(tmp_path / "single", LEAKS).fill(seeds=(0,)).root
    assert set(verdicts(single, worst_auc=1).values()) == {"not known"}
    failed = Folder(tmp_path / "failed", LEAKS).fill()
    failed.add("hamp", "loss-series", 1, outcome="failed", reason="no memory")
    hamp, mixup = ceilings_of(failed.root, {"worst_auc": 1})
    assert {hamp.verdict, mixup.verdict} == {"not known"}
    assert "no number counts loss-series" in mixup.reason


def test_no_ceiling_is_met_by_a_doubtful_recording(results, monkeypatch):
    remark = f"{DOUBTFUL}: in 1 of 2 rounds"
    monkeypatch.setattr(DefenseRow, "remarks", [remark])
    outcomes = {(c.verdict, c.reason) for c in ceilings_of(results, {"worst_auc": 1})}
    assert outcomes == {("not known", remark)}


def test_without_a_leak_the_highest_attack_is_held_against_the_ceiling(tmp_path):
    root = Folder(tmp_path / "r", {"none": 0.0, "mixup": 0.0}).fill(seeds=range(4)).root
    (ceiling,) = ceilings_of(root, {"worst_auc": 0.7})
    assert (ceiling.verdict, "no attack beats chance" in ceiling.reason) == ("below", True)
    (section,) = source_of(root).sections
    ends = [section.comparison.leaks.of("mixup", attack).auc.high for attack in section.attacks]
    assert ceiling.high == max(ends) > 0.5


def test_without_a_defense_the_undefended_row_is_judged(tmp_path):
    root = Folder(tmp_path / "r", {"none": 1.0, "free-rider": 0.0}).fill().root
    assert verdicts(root, worst_auc=0.5, mean_auc=1) == {
        ("none", "worst_auc"): "above",
        ("none", "mean_auc"): "below",
    }


def test_junit_has_a_case_a_row_and_ceiling_and_one_a_compared_cell(results, tmp_path, words_of):
    path, baseline = tmp_path / "gate.xml", tmp_path / "baseline.json"
    words_of("compare", results, "--max", "worst_auc=1", "--junit", path)
    suites = ElementTree.parse(path).getroot()
    assert [s.attrib for s in suites] == [{"name": "ceilings", "tests": "2", "failures": "0"}]
    words_of("baseline", results, "-o", baseline)
    options = ("--max", "worst_auc=0.5", "--max", "tf01=2", "--junit", path)
    words = words_of("compare", results, baseline, *options, status=1)
    assert "The ceilings **failed**: 4 of 4" in words
    ceilings, cells = ElementTree.parse(path).getroot()
    assert (ceilings.get("tests"), ceilings.get("failures")) == ("4", "4")
    messages = [failure.get("message") for failure in ceilings.iter("failure")]
    assert sum("above: worst_auc 0." in message for message in messages) == 2
    assert sum(", ceiling 0.5;" in f"{message};" for message in messages) == 2
    assert sum(", ceiling 2 %" in message for message in messages) == 2
    content = json.loads(words_of("compare", results, *options[:4], "--json", status=1))
    units = {ceiling["name"]: ceiling["unit"] for ceiling in content["ceilings"]}
    assert units == {"worst_auc": "", "tf01": "%"}
    # three defenses, each with two attacks and a run
    assert (cells.get("tests"), cells.get("failures")) == ("9", "0")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "nothing to compare RESULTS with: name a BASELINE, or a ceiling"),
        (("--max", "auc=0.6"), f"'auc' is none of {', '.join(NAMES)}"),
        (("--max", "tf01=low"), "'tf01=low' is not NAME=NUMBER, like worst_auc=0.6"),
    ],
)
def test_a_mistaken_ceiling_is_explained(results, options, message, words_of):
    assert message in words_of("compare", results, *options, status=2)


def test_the_help_names_every_ceiling(words_of):
    words = words_of("compare", "--help")
    assert [name for name in NAMES if name not in words] == []
