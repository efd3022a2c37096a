"""No method harms another: whoever shares a run with it gets the same bits as alone."""

from __future__ import annotations

import json

import pytest
from faults import FATAL, suite_of_neighbours
from hostile_methods import SHOWN, STATE, install_harms, names
from running import fingerprint, invoke, records


@pytest.fixture
def harms(site):
    return install_harms(site)


def of(folder, *words):
    """Those of a folder's files whose names hold all the words, byte by byte."""
    return {name: content for name, content in fingerprint(folder).items() if all(w in name for w in words)}


@pytest.mark.slow
def test_an_attack_harms_no_other(tmp_path, harms):
    hostile = names("a", STATE | SHOWN)
    neighbours = ["loss-series", "neighbour", "rmia"]
    attacks = [*neighbours[:1], *hostile, *neighbours[1:]]
    invoke(suite_of_neighbours(tmp_path, attacks=attacks), "--results", tmp_path / "company", status=1)
    invoke(suite_of_neighbours(tmp_path, attacks=neighbours), "--results", tmp_path / "alone")
    alone = fingerprint(tmp_path / "alone")
    assert len(alone) == 2 * len(neighbours)
    assert {name: of(tmp_path / "company", name)[name] for name in alone} == alone
    found = {attack: r["outcome"] for (_, attack, _), r in records(tmp_path / "company").items()}
    assert found.keys() == set(attacks)
    assert {f"a-{kind}" for kind in FATAL} <= {attack for attack, outcome in found.items() if outcome == "failed"}
    assert {found[n] for n in neighbours} == {"ok"}


@pytest.mark.slow
def test_a_defense_harms_no_other_run_and_no_attack_on_its_own(tmp_path, harms):
    hostile = names("d", STATE)
    invoke(suite_of_neighbours(tmp_path, defenses=["none", *hostile]), "--results", tmp_path / "company", status=1)
    invoke(suite_of_neighbours(tmp_path), "--results", tmp_path / "alone")
    alone = fingerprint(tmp_path / "alone")
    assert {name: of(tmp_path / "company", name)[name] for name in alone} == alone
    found = {defense: r for (defense, _, _), r in records(tmp_path / "company").items()}
    assert found.keys() == {"none", *hostile}
    assert all(found[f"d-{kind}"]["outcome"] == "failed" for kind in FATAL)


@pytest.mark.slow
def test_an_analysis_harms_no_other_and_no_score(tmp_path, harms):
    hostile = names("n", STATE)
    invoke(suite_of_neighbours(tmp_path, analyses=[*hostile, "counts"]), "--results", tmp_path / "company")
    invoke(suite_of_neighbours(tmp_path, analyses=["counts"]), "--results", tmp_path / "alone")
    ((company,), (alone,)) = (records(tmp_path / name).values() for name in ("company", "alone"))
    assert company["outcome"] == "ok" and company["analyses"]["counts"] == alone["analyses"]["counts"]
    assert company["targets"] == alone["targets"] and company["pooled"] == alone["pooled"]
    said = "\n".join(company["complaints"])
    assert all(f"the analysis 'n-{kind}' failed" in said for kind in FATAL)
    json.dumps(company, allow_nan=False)
