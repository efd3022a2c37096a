"""Facts that a defense reports and findings of an analysis, from a plugin through the engine into
records and boards.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from boards import Folder, board, rows_of
from fake_packages import install
from running import invoke, records, suite

from fedbench.core import Number
from fedbench.core.metrics import t_interval
from fedbench.core.store.reading import load_records
from fedbench.core.store.record import RecordedFindings
from fedbench.leaderboard.board import FullBoard

PACKAGE = """
import os

import numpy as np
from fedbench.core import Analysis, Component, Defense, Findings, Number, hookimpl
from fedbench.core.report import Note, Numbers

class Teller(Defense):
    def protect(self, update, ctx):
        ctx.memory["sent"] = ctx.memory.get("sent", 0) + 4 * len(update)
        return update
    def report(self, ctx):
        sent = sum(m["sent"] for m in ctx.of_member.values())
        return {"bytes sent": sent, "members": list(ctx.members), "unit": "client"}

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
        numbers = {"spread": Number(spread, unit="logits"), "best": Number(best and float(best))}
        numbers["facts seen"] = Number(facts)
        return Findings(numbers, {"by round": np.arange(len(run.rounds))}, {"by round": "rounds"})

class Raises(Analysis):
    def analyse(self, run, judgement):
        raise RuntimeError("out of ideas")
    def draw(self, section, label):
        yield Note("first")
        raise ValueError("no <b>luck</b>")

class Quits(Analysis):
    def analyse(self, run, judgement):
        raise SystemExit(3)
    def draw(self, section, label):
        raise SystemExit(4)

class Leaves(Analysis):
    def analyse(self, run, judgement):
        os._exit(7)

class Odd(Analysis):
    def analyse(self, run, judgement):
        return Findings({}, {"square": np.zeros((2, 2))})
    def draw(self, section, label):
        return ["text"]

class Nan(Analysis):
    def analyse(self, run, judgement):
        return Findings({"x": Number(float("nan"))})
    def draw(self, section, label):
        yield Note("own words of " + label)
        yield Numbers(label)

@hookimpl
def fedbench_defenses():
    yield Component("teller", "told:Teller", "counts what it sends")
    yield Component("liar", "told:Liar", "a fact that is no number")

@hookimpl
def fedbench_analyses():
    for cls in (Spread, Raises, Quits, Leaves, Odd, Nan):
        yield Component(cls.__name__.lower(), f"told:{cls.__name__}", "for the test")
"""


@pytest.fixture
def told(site):
    """The package, installed."""
    return install(site, "told", PACKAGE)


@pytest.mark.slow
def test_facts_and_findings_reach_records_and_boards_and_change_nothing_else(
    tmp_path, told, finished
):
    twice = ["spread", {"name": "spread", "label": "again"}]  # what the first spoils is its own
    path = suite(
        tmp_path,
        defenses=["none", "teller", "liar"],
        analyses=twice,
    )
    said = invoke(path, "--results", tmp_path / "r")
    loaded = {r.record.defense.label: r for r in load_records(tmp_path / "r")}
    facts = loaded["teller"].record.facts
    assert (
        facts["members"] == [0, 1]
        and facts["unit"] == "client"
        and loaded["none"].record.facts == {}
    )
    params = facts["bytes sent"] // (2 * 4 * 4)  # members, rounds, bytes a number
    assert facts["bytes sent"] == params * 2 * 4 * 4 > 0
    liar = loaded["liar"].record
    (complaint,) = liar.complaints  # a fact that cannot be recorded costs no training and is named
    assert (
        liar.outcome == "ok"
        and liar.facts == {}
        and all("'epsilon' is float nan" in text for text in (complaint, said))
    )
    assert (
        "Liar.report (after the last round) returned dict; expected a mapping from short names to "
        "finite" in complaint
    )

    found = {label: r.record.analyses["spread"] for label, r in loaded.items()}
    assert all(found[label] == r.record.analyses["again"] for label, r in loaded.items())
    numbers = found["teller"].numbers
    assert (
        numbers["spread"].unit == "logits"
        and numbers["spread"].value > 0
        and numbers["facts seen"].value == 3
    )
    assert np.array_equal(loaded["teller"].array("spread", "by round"), [0, 1])
    assert numbers["best"].value == max(loaded["teller"].candidates(t).scores.max() for t in (0, 1))
    (alone,) = (
        r
        for r in load_records(finished)
        if (r.record.defense.label, r.record.attack.label) == ("none", "loss-series")
    )
    assert [t.model_dump() for t in alone.record.targets] == [
        t.model_dump() for t in loaded["none"].record.targets
    ]
    for stored, mine in zip(
        vars(alone.candidates(0)).values(), vars(loaded["none"].candidates(0)).values(), strict=True
    ):
        assert np.array_equal(stored, mine)
    text = FullBoard().write(tmp_path / "r", plots=False).read_text()
    assert (
        "**Facts that the defenses report**" in text
        and f"{facts['bytes sent']:,}" in text
        and "spread (logits)" in text
    )


@pytest.mark.slow
def test_an_analysis_that_fails_costs_its_own_findings_and_says_so(tmp_path, told):
    reasons = {
        "raises": "RuntimeError: out of ideas",
        "quits": "it called sys.exit(3)",
        "odd": "shape [2, 2]",
        "nan": "finite",
        "leaves": "it ended the process with status 7",
    }
    invoke(suite(tmp_path, analyses=[*reasons, "spread"]), "--results", tmp_path / "r")
    (record,) = records(tmp_path / "r").values()
    assert record["outcome"] == "ok" and list(record["analyses"]) == ["spread"]
    said = "\n".join(record["complaints"])
    missing = [
        name
        for name, reason in reasons.items()
        if f"the analysis '{name}' failed" not in said or reason not in said
    ]
    assert missing == [] and len(record["complaints"]) == len(reasons)
    json.dumps(record, allow_nan=False)


# --- drawings of third parties --------------------------------------------------------------------


@pytest.fixture
def measured(tmp_path):
    """A folder of records with findings of ``mine``, equal for all attacks, and of ``by-attack``,
    not equal.
    """

    class WithFindings(Folder):
        def add(self, defense, attack, seed, outcome="ok", **change):
            mine = {"epsilon|": Number(2.0 + seed, 0.5, "per client"), "none": Number(None)}
            own = {
                "mine": RecordedFindings(numbers=mine),
                "by-attack": RecordedFindings(numbers={"n": Number(float(len(attack)))}),
            }
            return super().add(defense, attack, seed, outcome, **{"analyses": own, **change})

    return WithFindings(tmp_path / "r", {"none": 1.0, "mixup": 0.5}).fill(seeds=range(5))


def found_of(text, label):
    return rows_of(text, f"**Findings of the analysis** {label}, means over seeds")


def test_findings_of_an_analysis_that_is_not_installed_are_shown_by_the_generic_table(measured):
    text = board(measured)
    half = t_interval([2.0, 3, 4, 5, 6]).half_width
    assert found_of(text, "mine")[0] == {
        "defense": "mixup",
        r"epsilon\| (per client)": f"4.000 ± {half:.3f}",
        "none": "n/a",
    }
    assert [(r["defense"], r["attack"], r["n"]) for r in found_of(text, "by-attack")][:2] == [
        ("mixup", "fedmia-ii", "9.0"),
        ("mixup", "loss-series", "11.0"),
    ]
    assert (
        "The analysis mine could not be drawn, so its bare numbers are shown: unknown analysis "
        "'mine'" in text
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", "ValueError: no &lt;b&gt;luck"),
        ("odd", "TypeError: it drew a str"),
        ("quits", "it called sys.exit(4)"),
    ],
)
def test_an_analysis_that_fails_to_draw_costs_its_own_drawing_and_the_board_says_so(
    measured, told, name, why
):
    text = board(
        measured,
        analyses=[
            {"name": name, "label": "mine"},
            {"name": "nan", "label": "by-attack", "params": {}},
        ],
    )
    assert (
        f"The analysis mine could not be drawn, so its bare numbers are shown: {why}"
        in text.replace("\\_", "_")
    )
    assert found_of(text, "mine") and "first" not in text.splitlines()
    assert "own words of by-attack" in text and found_of(text, "by-attack")
