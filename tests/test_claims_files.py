"""The files of claims: what is wrong in one is said with its place, and what the shipped ones name exists."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path

import pytest

from fedbench.core import UserError
from fedbench.core.registry.components import Registry
from fedbench.core.spec.resolve import load_and_check
from fedbench.core.spec.shipped import shipped_suites
from fedbench.leaderboard.claims.load import load_paper, load_papers, shipped_papers
from fedbench.leaderboard.claims.schema import MEASURES
from fedbench.leaderboard.statistics import rules
from fedbench.leaderboard.statistics.sweeps import family

LEADERBOARD = Path(__file__).parents[1] / "leaderboard"
BOARDS = LEADERBOARD / "boards"
GOOD = """paper: Demo
sections:
  here: {suite: demo, setting: iid, coalition: pair, view: server}
differs:
  demo: everything.
claims:
  - id: so
    text: It is so.
    place: Table 1
    where: [here]
    holds:
      - lower: {measure: worst-auc, row: mixup, than: {rows: [none]}}
"""
HOLDS = "lower: {measure: worst-auc, row: mixup, than: {rows: [none]}}"


def written(folder: Path, text: str, name: str = "demo.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_good_file_is_read(tmp_path):
    paper = load_paper(written(tmp_path, GOOD))
    (claim,) = paper.claims
    assert (claim.id, paper.suites(claim), paper.places(claim)[0].setting) == ("so", ["demo"], "iid")
    assert claim.holds[0].direction == -1 and claim.holds[0].asked.than.rows == ["none"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (HOLDS, "lowest: {measure: worst-auc}", "12:9: claims[0].holds[0].lowest: unknown field - did you mean 'lower'?"),
        (HOLDS, "{}", "claims[0].holds[0]: takes one of below, above, lower, higher, undominated; found none"),
        (HOLDS, HOLDS + "\n        above: {measure: accuracy, row: mixup, value: 1}", "found above, lower"),
        ("worst-auc", "worst-acu", "did you mean 'worst-auc'?"),
        ("row: mixup, ", "", "row: required field is missing"),
        ("rows: [none]", "rows: []", "than.rows: must not be empty"),
        ("rows: [none]", "row: none", "than.row: unknown field - did you mean 'rows'?"),
        ("rows: [none]", "rows: [none], groups: [a]", "takes one of rows, tuned, attacks, groups, section; found rows, groups"),
        ("rows: [none]", "rows: [mixup]", "'mixup' is compared with itself"),
        ("rows: [none]", "attacks: [a]", "measure worst-auc is of no single attack"),
        ("rows: [none]", "groups: [a]", "names no group that others could be compared with"),
        ("rows: [none]", "section: {attack: a}", "names no other section: give a setting, a coalition or a view"),
        ("measure: worst-auc", "measure: auc", "measure auc needs attack"),
        ("measure: worst-auc", "measure: worst-auc, attack: a", "measure worst-auc takes no attack: only auc, tf01"),
        ("measure: worst-auc", "measure: finding, name: x", "measure finding needs analysis"),
        ("row: mixup", "row: mixup, slack: -1", "lower.slack: expected a number"),
        ("[here]", "[hree]", "10:13: claims[0].where[0]: no section 'hree' - did you mean 'here'?"),
        ("  demo: everything.", "  other: everything.", "nothing under differs says what suite demo differs in"),
        ("It is so.", '"It is\\u202eso."', "has a character that cannot be seen"),
        ("id: so", "id: So!", "id: expected lower-case letters and digits"),
        ("paper: Demo", "- paper", "not valid YAML"),
        ("It is so.", "!!python/object/apply:os.system [ls]", "not valid YAML"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_its_place(tmp_path, old, new, message):
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(UserError) as error:
        load_paper(path)
    assert re.search(rf"{re.escape(str(path))}:\d+:\d+: ", str(error.value)) and message in str(error.value)


def test_an_id_belongs_to_one_claim(tmp_path):
    twice = GOOD + GOOD[GOOD.index("  - id") :]
    with pytest.raises(UserError, match=r"claims\[1\]\.id: the id 'so' is taken by claims\[0\]"):
        load_paper(written(tmp_path, twice))
    written(tmp_path, GOOD)
    written(tmp_path, GOOD, "other.yaml")
    with pytest.raises(UserError, match=r"other\.yaml: the id 'so' is one of demo\.yaml, too"):
        load_papers(tmp_path)


# -- the shipped ones --------------------------------------------------------------------------------------------------


CLAIMS = [(paper, claim) for paper in shipped_papers().values() for claim in paper.claims]


def test_there_are_at_least_forty_claims_of_five_papers():
    assert set(shipped_papers()) == {"cofedmid", "fedmia", "fedpoisonmia", "ifca_mir", "membershield"}
    assert len(CLAIMS) >= 40 and len({claim.id for _, claim in CLAIMS}) == len(CLAIMS)


def test_every_measure_that_a_claim_may_have_but_findings_of_none_is_used():
    used = {predicate.asked.measure for _, claim in CLAIMS for predicate in claim.holds}
    assert used == set(MEASURES) - {"worst-tf01"}


@cache
def shipped(name):
    """Setting -> (coalitions, rows, attack -> view) of a shipped suite, a paper's or another."""
    ref = next(ref for ref in shipped_suites() if ref.rpartition("/")[2] == name)
    _, resolved = load_and_check(ref, Registry.discover())
    found = {}
    for setting in resolved.settings:
        mine = setting.spec.defenses, setting.spec.attacks
        rows, attacks = (
            [u for u in uses if own is None or u.label in own]
            for own, uses in zip(mine, (resolved.defenses, resolved.attacks), strict=True)
        )
        # where nobody defends, the one section is that of no coalition
        coalitions = {c.name for c in setting.coalitions} if {u.label for u in rows} > {"none"} else {"none"}
        found[setting.spec.name] = coalitions, {u.label for u in rows}, {u.label: u.make()[0].view for u in attacks}
    return found


def strangers(paper, claim):
    """What a claim names and its suites do not have."""
    for place in paper.places(claim):
        coalitions, rows, attacks = shipped(place.suite)[place.setting]
        if place.coalition not in coalitions or place.view not in attacks.values():
            yield f"section {place}"
        for predicate in claim.holds:
            asked = predicate.asked
            than = getattr(asked, "than", None)
            named = [asked.row, *((than.rows or ()) if than else ())]
            known = rows if asked.chosen is None else {"none", *map(family, rows)}
            yield from (f"row {row}" for row in named if row not in known)
            own = [a for a in (asked.attack, *((than.attacks or ()) if than else ())) if a is not None]
            yield from (f"attack {a} in the {place.view} view" for a in own if attacks.get(a) != place.view)
            if than and than.section:
                given = {k: v for k in ("setting", "coalition", "view") if (v := getattr(than.section, k)) is not None}
                other = place.model_copy(update=given)
                coalitions, rows, seen = shipped(other.suite)[other.setting]
                if other.coalition not in coalitions or other.view not in seen.values() or asked.row not in rows:
                    yield f"section {other}"
                if than.section.attack is not None and seen.get(than.section.attack) != other.view:
                    yield f"attack {than.section.attack} in the {other.view} view"


@pytest.mark.parametrize("name", sorted(shipped_papers()))
def test_whatever_a_claim_names_is_in_its_suites(name):
    paper = shipped_papers()[name]
    assert {claim.id: found for claim in paper.claims if (found := list(strangers(paper, claim)))} == {}


def test_a_name_that_is_in_no_suite_is_seen():
    paper = shipped_papers()["ifca_mir"]
    claim = next(c for c in paper.claims if c.id == "ifca-raises-the-risk").model_copy(update={"where": ["mnist-15"]})
    bound = {"below": {"measure": "auc", "row": "hamp", "attack": "seqmia", "value": 1}}
    wrong = claim.model_copy(update={"holds": [type(claim.holds[0]).model_validate(bound)]})
    assert list(strangers(paper, wrong)) == ["row hamp", "attack seqmia in the external view"]


def test_committed_boards_judge_no_claim_that_is_gone():
    ids = {claim.id for _, claim in CLAIMS}
    for path in BOARDS.glob("*.md"):
        _, _, tables = path.read_text().partition("\n## Claims of the papers\n")
        shown = set(re.findall(r"^\| ([a-z0-9-]+) +\| ", tables.partition("\n## ")[0], re.MULTILINE)) - {"id"}
        assert shown <= ids, path.name


def test_another_claim_is_another_rule_of_a_board(tmp_path, monkeypatch):
    for folder in ("claims", "statistics", "tables"):
        shutil.copytree(LEADERBOARD / folder, tmp_path / folder)
    monkeypatch.setattr(rules, "__file__", str(tmp_path / "statistics" / "rules.py"))
    before = rules.rules_digest.__wrapped__()
    path = tmp_path / "claims" / "fedmia.yaml"
    path.write_text(path.read_text().replace("section 4.2", "section 4.3", 1))
    assert rules.rules_digest.__wrapped__() != before
