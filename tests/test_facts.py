"""Facts that a defense reports and findings of an analysis, from a plugin through the engine into records and boards."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fake_packages import install
from running import fingerprint, invoke, records, suite

from fedbench.core.store.reading import load_records
from fedbench.leaderboard.board import MarkdownBoard

PACKAGE = """
import os

import numpy as np
from fedbench.core import Analysis, Component, Defense, Findings, Number, hookimpl

class Teller(Defense):
    def protect(self, update, ctx):
        ctx.memory["sent"] = ctx.memory.get("sent", 0) + 4 * len(update)
        return update
    def report(self, ctx):
        return {"bytes sent": sum(m["sent"] for m in ctx.of_member.values()), "members": list(ctx.members), "unit": "client"}

class Liar(Teller):
    def report(self, ctx):
        return {"epsilon": float("nan")}

class Spread(Analysis):
    needs = frozenset({"margin"})                       # no attack of the suite asks for it
    def analyse(self, run, judgement):
        margin = run.signals["margin"]
        spread = float(np.nanstd(margin[-1]))
        facts = len(run.facts)
        best = max((t.scores.max() for t in judgement.targets), default=None) if judgement else None
        margin[:] = 0                                   # all of this is its own copy
        run.predicted[:] = 0
        run.facts.clear()
        for t in judgement.targets if judgement else ():
            t.scores[:], t.kind[:], t.owner[:] = 0, 1, 3
        return Findings(
            {"spread": Number(spread, unit="logits"), "best score": Number(best and float(best)),
             "facts seen": Number(facts)},
            {"by round": np.arange(len(run.rounds))}, {"by round": "rounds"},
        )

class Width(Analysis):
    needs, view = frozenset({"loss"}), "client"
    def analyse(self, run, judgement):
        return Findings({"rows": Number(len(run.rows)), "mean": Number(float(run.signals["loss"].mean()))})

class Raises(Analysis):
    def analyse(self, run, judgement):
        raise RuntimeError("out of ideas")

class Quits(Analysis):
    def analyse(self, run, judgement):
        raise SystemExit(3)

class Leaves(Analysis):
    def analyse(self, run, judgement):
        os._exit(7)

class Odd(Analysis):
    def analyse(self, run, judgement):
        return Findings({}, {"square": np.zeros((2, 2))})

class Nan(Analysis):
    def analyse(self, run, judgement):
        return Findings({"x": Number(float("nan"))})

@hookimpl
def fedbench_defenses():
    yield Component("teller", "told:Teller", "counts what it sends")
    yield Component("liar", "told:Liar", "a fact that is no number")

@hookimpl
def fedbench_analyses():
    for cls in (Spread, Width, Raises, Quits, Leaves, Odd, Nan):
        yield Component(cls.__name__.lower(), f"told:{cls.__name__}", "for the test")
"""


@pytest.fixture
def told(site):
    """The package, installed."""
    return install(site, "told", PACKAGE)


def test_facts_of_a_composition_are_those_of_its_parts_and_reach_the_board(tmp_path, told):
    path = suite(tmp_path, defenses=["none", "teller", ["teller", "grad-noise", "teller"]])
    invoke(path, "--results", tmp_path / "r")
    found = records(tmp_path / "r")
    facts = found["teller", "loss-series", 0]["facts"]
    assert facts["members"] == [0, 1] and facts["unit"] == "client" and found["none", "loss-series", 0]["facts"] == {}
    params = facts["bytes sent"] // (2 * 4 * 4)  # members, rounds, bytes a number
    assert facts["bytes sent"] == params * 2 * 4 * 4 > 0
    both = found["teller+grad-noise+teller", "loss-series", 0]["facts"]  # two parts say the same names
    assert both["Teller 1: bytes sent"] == both["Teller 3: bytes sent"] == facts["bytes sent"]
    board = MarkdownBoard().write(tmp_path / "r", plots=False).read_text()
    assert "**What the defenses say of their runs**" in board and f"{facts['bytes sent']:,}" in board


def test_a_fact_that_cannot_be_recorded_costs_no_training_and_is_named(tmp_path, told):
    path = suite(tmp_path, defenses=["liar"])
    said = invoke(path, "--results", tmp_path / "r")
    record = records(tmp_path / "r")["liar", "loss-series", 0]
    (complaint,) = record["complaints"]
    assert record["outcome"] == "ok" and record["facts"] == {}
    assert "Liar.report (after the last round) returned dict; expected a mapping from short names to finite numbers" in complaint
    assert "'epsilon' is float nan" in complaint and "cost no score" in said and "'epsilon' is float nan" in said


def test_findings_are_stored_with_units_and_vectors_and_change_nothing_else(tmp_path, told):
    path = tmp_path / "r"
    invoke(suite(tmp_path, analyses=[]), "--results", tmp_path / "plain")
    twice = ["spread", {"name": "spread", "label": "again"}]  # what the first spoils is its own
    attacks = ["fta", "loss-series"]
    invoke(suite(tmp_path, defenses=["none", "teller"], attacks=attacks, analyses=twice), "--results", path)
    loaded = {r.record.defense.label: r for r in load_records(path) if r.record.attack.label == "loss-series"}
    assert loaded["none"].record.analyses["spread"] == loaded["none"].record.analyses["again"]
    found = loaded["teller"].record.analyses["spread"]
    assert found.numbers["spread"].unit == "logits" and found.numbers["spread"].value > 0
    assert found.numbers["facts seen"].value == 3 and found.arrays == {"by round": "rounds"}
    assert np.array_equal(loaded["teller"].array("spread", "by round"), [0, 1])
    (alone,) = load_records(tmp_path / "plain")
    assert alone.record.analyses == {}
    assert [t.model_dump() for t in alone.record.targets] == [t.model_dump() for t in loaded["none"].record.targets]
    for stored, mine in zip(vars(alone.candidates(0)).values(), vars(loaded["none"].candidates(0)).values(), strict=True):
        assert np.array_equal(stored, mine)
    assert found.numbers["best score"].value == loaded["teller"].candidates(0).scores.max().clip(
        min=loaded["teller"].candidates(1).scores.max()
    )
    text = MarkdownBoard().write(path, plots=False).read_text()
    assert "spread (logits)" in text


def test_what_an_analysis_finds_does_not_depend_on_what_else_was_measured(tmp_path, told):
    found = []
    for i, attacks in enumerate((["loss-series"], ["avg-cosine", "fta", "loss-series"])):
        invoke(suite(tmp_path, attacks=attacks, analyses=["width"]), "--results", tmp_path / str(i))
        found.append(records(tmp_path / str(i))["none", "loss-series", 0])
    assert found[0]["analyses"] == found[1]["analyses"] and found[0]["key"] == found[1]["key"]
    assert found[0]["analyses"]["width"]["numbers"]["rows"]["value"] == 1


def test_an_analysis_by_another_label_is_asked_again_and_its_place_in_the_list_does_not_count(tmp_path, told):
    def left(*analyses):
        return invoke(suite(tmp_path, analyses=list(analyses)), "--results", tmp_path / "r").partition(" cells to compute")[0][-1]

    one = {"name": "width", "label": "one"}
    assert [left(one, "spread"), left("spread", one), left({**one, "label": "two"}, "spread")] == ["1", "0", "1"]
    assert left("spread", one, "sweep") == "0"  # it computes nothing, so no cell waits for it


def test_an_analysis_that_fails_costs_its_own_findings_and_says_so(tmp_path, told):
    names = ["raises", "quits", "odd", "nan", "spread"]
    invoke(suite(tmp_path, analyses=names), "--results", tmp_path / "r")
    (record,) = records(tmp_path / "r").values()
    assert record["outcome"] == "ok" and list(record["analyses"]) == ["spread"]
    said = "\n".join(record["complaints"])
    for name, why in (("raises", "RuntimeError: out of ideas"), ("quits", "it called sys.exit(3)"), ("odd", "shape [2, 2]"),
                      ("nan", "finite")):  # fmt: skip
        assert f"the analysis '{name}' failed" in said and why in said
    json.dumps(record, allow_nan=False)


def test_an_analysis_that_takes_its_process_with_it_costs_its_own_findings(tmp_path, told):
    invoke(suite(tmp_path, analyses=["leaves", "spread"]), "--results", tmp_path / "r")
    (record,) = records(tmp_path / "r").values()
    (said,) = record["complaints"]
    assert said == "the analysis 'leaves' failed: analysis 'leaves' (told 1.0): it ended the process with status 7"
    assert record["outcome"] == "ok" and list(record["analyses"]) == ["spread"]


def test_an_analysis_can_come_later_without_training_again(tmp_path, told):
    invoke(suite(tmp_path, attacks=["avg-cosine"], analyses=[]), "--results", tmp_path / "r")
    (cache,) = (tmp_path / "r" / "cache").glob("*.npz")
    before = cache.stat().st_mtime_ns
    changed = suite(tmp_path, attacks=["avg-cosine"], analyses=["raises"])  # needs no signal that was not measured
    assert "1 cells to compute" in invoke(changed, "--results", tmp_path / "r")
    assert cache.stat().st_mtime_ns == before
    assert "0 cells to compute" in invoke(changed, "--results", tmp_path / "r")


def test_the_same_command_gives_the_same_findings(tmp_path, told):
    path = suite(tmp_path, defenses=["teller"], analyses=["spread"])
    for name in ("a", "b"):
        invoke(path, "--results", tmp_path / name, "--workers", 1 + (name == "b"))
    assert fingerprint(tmp_path / "a") == fingerprint(tmp_path / "b")


def test_a_suite_with_a_bad_analysis_says_where(tmp_path, told):
    from fedbench.core import UserError

    with pytest.raises(UserError, match=r"tiny.yaml:\d+:\d+: analyses\[0\].*unknown analysis 'spraed' - did you mean 'spread'"):
        invoke(suite(tmp_path, analyses=["spraed"]), "--results", tmp_path / "r")
    with pytest.raises(UserError, match=r"the label 'spread' is already taken"):
        invoke(suite(tmp_path, analyses=["spread", "spread"]), "--results", tmp_path / "r")
