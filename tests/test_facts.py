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
        best = max((t.scores.max() for t in judgement.targets), default=None) if judgement else None
        margin[:] = 0                                   # its own copy
        run.predicted[:] = 0
        return Findings(
            {"spread": Number(spread, unit="logits"), "best score": Number(best and float(best)),
             "facts seen": Number(len(run.facts))},
            {"by round": np.arange(len(run.rounds))}, {"by round": "rounds"},
        )

class Raises(Analysis):
    def analyse(self, run, judgement):
        raise RuntimeError("out of ideas")

class Quits(Analysis):
    def analyse(self, run, judgement):
        raise SystemExit(3)

class Odd(Analysis):
    def analyse(self, run, judgement):
        return Findings({}, {"square": np.zeros((2, 2))})

class NotANumber(Analysis):
    def analyse(self, run, judgement):
        return Findings({"x": Number(float("nan"))})

@hookimpl
def fedbench_defenses():
    yield Component("teller", "told:Teller", "counts what it sends")
    yield Component("liar", "told:Liar", "a fact that is no number")

@hookimpl
def fedbench_analyses():
    for name, cls in (("spread", "Spread"), ("raises", "Raises"), ("quits", "Quits"), ("odd", "Odd"), ("nan", "NotANumber")):
        yield Component(name, f"told:{cls}", "for the test")
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


def test_a_fact_that_cannot_be_recorded_fails_its_run_with_the_reason(tmp_path, told):
    path = suite(tmp_path, defenses=["liar"])
    invoke(path, "--results", tmp_path / "r", status=1)
    reason = records(tmp_path / "r")["liar", "loss-series", 0]["reason"]
    assert "Liar.report (after the last round) returned dict; expected a mapping from names to finite numbers" in reason
    assert "'epsilon' is float nan" in reason


def test_findings_are_stored_with_units_and_vectors_and_change_nothing_else(tmp_path, told):
    plain, path = suite(tmp_path, analyses=[]), tmp_path / "r"
    invoke(plain, "--results", tmp_path / "plain")
    invoke(suite(tmp_path, defenses=["none", "teller"], analyses=["spread"]), "--results", path)
    loaded = {r.record.defense.label: r for r in load_records(path)}
    found = loaded["teller"].record.analyses["spread"]
    assert found.numbers["spread"].unit == "logits" and found.numbers["spread"].value > 0
    assert found.numbers["facts seen"].value == 3 and found.arrays == {"by round": "rounds"}
    assert np.array_equal(loaded["teller"].array("spread", "by round"), [0, 1])
    (alone,) = load_records(tmp_path / "plain")
    assert alone.record.analyses == {}
    assert [t.model_dump() for t in alone.record.targets] == [t.model_dump() for t in loaded["none"].record.targets]
    assert found.numbers["best score"].value == loaded["teller"].candidates(0).scores.max().clip(
        min=loaded["teller"].candidates(1).scores.max()
    )
    text = MarkdownBoard().write(path, plots=False).read_text()
    assert "spread (logits)" in text


def test_an_analysis_that_fails_costs_its_own_findings_and_says_so(tmp_path, told):
    names = ["raises", "quits", "odd", "nan", "spread"]
    invoke(suite(tmp_path, analyses=names), "--results", tmp_path / "r")
    (record,) = records(tmp_path / "r").values()
    assert record["outcome"] == "ok" and list(record["analyses"]) == ["spread"]
    said = "\n".join(record["notes"])
    for name, why in (("raises", "RuntimeError: out of ideas"), ("quits", "it called sys.exit(3)"), ("odd", "shape [2, 2]"),
                      ("nan", "finite")):  # fmt: skip
        assert f"the analysis '{name}' failed" in said and why in said
    json.dumps(record, allow_nan=False)


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
