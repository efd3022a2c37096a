"""Claimed results run again here: what is drawn, how it is compared, and how a board shows it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from boards import Folder, rows_of, sections_of
from bundles import (
    array_of,
    edited,
    exported,
    files_of,
    levels,
    packed,
    pick,
    rekeyed,
    rescored,
    scores_of,
    unscored,
)
from fake_packages import install
from running import suite

from fedbench.core import Number
from fedbench.core.cli.main import main
from fedbench.core.store.reading import Candidates, load_records, read_run
from fedbench.core.store.record import RecordedFindings, RoundRow
from fedbench.core.store.scores import DecisionScores, RoundScores
from fedbench.leaderboard.board import summary
from fedbench.leaderboard.comparison.intervals import Pairing, half_widths
from fedbench.leaderboard.comparison.measures import values_of
from fedbench.leaderboard.document import document, source_of
from fedbench.leaderboard.markdown import render
from fedbench.leaderboard.site.data import board_of
from fedbench.leaderboard.submissions import trust
from fedbench.leaderboard.submissions.comparing import Compared, compare
from fedbench.leaderboard.submissions.reproducing import Draw, sampled
from fedbench.leaderboard.submissions.trust import pip_command
from fedbench.leaderboard.tables.answer import answer
from fedbench.leaderboard.tables.tradeoffs import trade_off


@pytest.fixture(scope="module")
def bundle(finished, tmp_path_factory):
    """One attack on two rows with one seed each; read-only."""
    return exported(finished, tmp_path_factory.mktemp("bundle"), "--only", "attack=loss-series")


@pytest.fixture
def claims(bundle, tmp_path):
    assert main(["import", str(bundle), "-o", str(tmp_path / "claims")]) == 0
    return tmp_path / "claims"


def changed(loaded, **fields):
    """The same record with other fields."""
    return type(loaded)(loaded.record.model_copy(update=fields), loaded.path, loaded.arrays)


# --- the sample -----------------------------------------------------------------------------------


def test_the_sample_has_runs_of_every_row_and_is_drawn_evenly(claims):
    records = load_records(claims)
    assert sampled(records, Draw(share=0.1, seed=0)) == records
    assert sampled(records[::-1], Draw(share=0.1, seed=0)) == records[::-1]
    # that something failed is no result
    assert sampled([changed(records[0], outcome="failed")], Draw(share=1, seed=0)) == []
    many = [changed(records[0], run_key=f"{i:064x}", seed=i) for i in range(10)]
    assert [len(sampled(many, Draw(share=share, seed=0))) for share in (0.01, 0.3, 0.31, 1.0)] == [
        1,
        3,
        4,
        10,
    ]
    counts = np.zeros(10)
    for seed in range(1000):
        counts[[r.record.seed for r in sampled(many, Draw(share=0.3, seed=seed))]] += 1
    assert np.abs(counts - 300).max() < 5 * np.sqrt(1000 * 0.3 * 0.7)


@pytest.mark.slow
def test_a_dry_run_shows_the_plan_and_the_draw_is_remembered(claims, call):
    status, words = call("reproduce", claims, "--dry-run", "--seed", 3)
    assert status == 0
    assert "2 cells in the sample (a share of 0.1 with seed 3), 2 runs with 2 cells" in words
    assert set(levels(claims).values()) == {"claimed"}
    assert "with seed 3)" in call("reproduce", claims, "--dry-run")[1]
    (claims / "reproduced.json").write_text('{"share": 2}')
    status, words = call("reproduce", claims, "--dry-run")
    assert (status, "reproduced.json: not the draw of a sample" in words) == (2, True)
    status, words = call("reproduce", claims, "--dry-run", "--sample", "nan")
    assert (status, "Invalid value for '--sample'" in words) == (2, True)


# --- the comparison -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shift", "noise", "floor", "verdict", "how"),
    [
        (0, 0.2, 0.005, "within tolerance", "(its paired interval)"),
        (0, 0.2, 0.1, "within tolerance", "tolerance 0.1000 (its floor)"),
        (2, 0, 0.005, "not reproduced", "the same bits were to be expected"),
    ],
)
def test_scores_are_compared_by_their_paired_interval(
    bundle, tmp_path, monkeypatch, shift, noise, floor, verdict, how
):
    files = files_of(bundle)
    name = pick(files, "loss-series")
    scores, member = array_of(files, name, "t0_scores"), array_of(files, name, "t0_kind") == 0
    change = scores.std() * (
        shift * member + noise * np.random.default_rng(0).normal(size=len(scores))
    )
    for folder, own in {
        "claimed": files,
        "again": rescored(files, name, t0_scores=scores + change),
    }.items():
        (tmp_path / folder).mkdir()
        for part in (name, scores_of(files, name)):
            (tmp_path / folder / Path(part).name).write_bytes(own[part])
    monkeypatch.setattr("fedbench.leaderboard.submissions.comparing.FLOOR", floor)
    said = compare(
        *(read_run(tmp_path / folder / Path(name).name)[0] for folder in ("claimed", "again"))
    )
    assert said.verdict == verdict
    assert how in said.how


FOUND = {value: {"a": RecordedFindings(numbers={"n": Number(value)})} for value in (0.1, 0.9)}
FORGED = {
    "epsilon": (
        {"facts": {"epsilon": 54.38}},
        {"facts": {"epsilon": 0.5438}},
        "facts.epsilon ([0.5438] and [54.38])",
    ),
    "delta": ({"facts": {"delta": 1e-5}}, {"facts": {"delta": 1e-7}}, "facts.delta"),
    "text": ({"facts": {"unit": "client"}}, {"facts": {"unit": "example"}}, "facts.unit"),
    "left out": ({"facts": {"rows removed": 3}}, {}, "facts.rows removed"),
    "history": (
        {},
        {"history": [RoundRow(round=r, accuracy=0.99, train_loss=None) for r in (2, 4)]},
        "test accuracy of the model: 0.9900 claimed",
    ),
    "findings": ({"analyses": FOUND[0.9]}, {"analyses": FOUND[0.1]}, "analyses.a.numbers.n.value"),
    "honest": (
        {"facts": {"epsilon": 54.38, "draws": [4, 4, 6], "says": "9 of 10"}},
        {"facts": {"epsilon": 54.37, "draws": [5, 3, 6], "says": "8 of 10"}},
        None,
    ),
}


@pytest.mark.parametrize(("true", "forged", "field"), FORGED.values(), ids=FORGED)
def test_what_no_scores_decide_is_compared_where_scores_differ(claims, true, forged, field):
    first, *_ = load_records(claims)
    nudged = changed(first, digests={**first.record.digests, "scores": "0" * 64}, **forged)
    compared = compare(nudged, changed(first, **true))
    assert compared.verdict == ("not reproduced" if field else "within tolerance")
    assert (field or "tolerance") in compared.how


def test_a_cell_within_tolerance_has_a_mark_below_reproduced(claims, monkeypatch):
    for verdict, mark in {
        "bit for bit": "reproduced",
        "within tolerance": "within tolerance",
    }.items():
        monkeypatch.setattr(
            trust, "judged", lambda one, other, verdict=verdict: Compared(verdict, "")
        )
        monkeypatch.setattr(
            trust, "reproductions", lambda root: {r.record.key: r for r in load_records(claims)[:1]}
        )
        assert sorted(levels(claims).values()) == ["claimed", mark]


@pytest.mark.parametrize("part", ["rounds", "decision", "maximum"])
def test_forged_single_rounds_and_decisions_are_not_reproduced(claims, part):
    first, *_ = load_records(claims)
    rounds = dict.fromkeys(RoundScores.model_fields, 0.7) | {"best_round": 2}
    decision = dict.fromkeys(DecisionScores.model_fields, 0.7) | {"best_round": 2}
    true = {
        "rounds": RoundScores(**rounds),
        "decision": DecisionScores(**decision),
        "maximum": first.record.targets[0].maximum,
    }
    name = {"rounds": "best_auc", "decision": "calibrated_recall", "maximum": "advantage"}[part]
    false = true[part].model_copy(update={name: 0.1 if part != "maximum" else 0.9})
    honest, forged = (
        [t.model_copy(update=true | own) for t in first.record.targets]
        for own in ({}, {part: false})
    )
    nudged = changed(first, digests={**first.record.digests, "scores": "0" * 64}, targets=forged)
    assert compare(nudged, changed(first, targets=honest)).how.startswith(
        f"the scores are within tolerance, but not targets.{part}.{name}"
    )


def test_ties_at_the_top_are_outside_the_tolerance_of_tf01():
    rng = np.random.default_rng(0)
    kind = np.repeat([0, 1], (1000, 2500)).astype(np.int8)
    scores = rng.normal(size=3500) + 0.9 * (kind == 0)
    tied = np.minimum(scores, np.quantile(scores, 0.97))
    flags = np.zeros(3500, bool)

    def compared(again):
        old, new = (
            values_of({0: [Candidates(s, kind, np.arange(3500), ~flags, flags)]}, ["tf01:ofl"])
            for s in (scores, again)
        )
        pairing = Pairing(old=[old["tf01:ofl"][0]], new=[new["tf01:ofl"][0]])
        (width,) = half_widths([pairing], 0.003)
        return abs(pairing.change) <= max(0.5, width)

    assert not compared(tied)
    assert compared(scores + 1e-3 * rng.normal(size=3500))


def test_outcomes_are_compared_and_a_divergence_may_read_differently(claims):
    first, *_ = load_records(claims)
    one, other = (
        changed(first, outcome="diverged", targets=[], pooled={}, reason=reason)
        for reason in ("round 3", "round 4")
    )
    failed = changed(first, outcome="failed", reason="no luck")
    found = {
        name: compare(a, b)
        for name, (a, b) in {
            "same": (one, one),
            "near": (one, other),
            "other": (first, failed),
        }.items()
    }
    verdicts = {name: said.verdict for name, said in found.items()}
    assert verdicts == {
        "same": "bit for bit",
        "near": "within tolerance",
        "other": "not reproduced",
    }
    assert found["other"].how == "'ok' claimed, 'failed' here: no luck"


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_forged_scores_that_agree_are_claimed_but_not_reproduced(finished, tmp_path, call):
    """The scores and numbers of another attack, and a number called skipped that its author does
    not like.
    """
    assert call("export", finished, "-o", tmp_path / "b.zip")[0] == 0
    files = files_of(tmp_path / "b.zip")
    name, other, gone = pick(files, "loss-series"), pick(files), pick(files, "loss-series", "none")
    theirs = json.loads(files[other])["cells"][other.cell]
    numbers = [(part, theirs[part]) for part in ("targets", "pooled")]
    skipped = [
        ("outcome", "skipped"),
        ("reason", "x"),
        ("targets", []),
        ("pooled", {}),
        ("digests/scores", ...),
    ]
    parts = [f"t{t}_{part}" for t in (0, 1) for part in ("scores", "null_auc", "null_advantage")]
    scores = {name: array_of(files, other, name) for name in parts}
    files = edited(rescored(files, name, **scores), name, *numbers)
    files = edited(unscored(files, gone), gone, *skipped)
    (tmp_path / "b.zip").write_bytes(packed(files))
    assert call("reproduce", tmp_path / "b.zip")[0] == 2
    assert call("import", tmp_path / "b.zip", "-o", tmp_path / "in")[0] == 0
    status, words = call("reproduce", tmp_path / "in")
    assert (status, "2 cells bit for bit; 2 cells not reproduced" in words) == (1, True), words
    assert "'skipped' claimed, 'ok' here" in words
    assert call("leaderboard", tmp_path / "in", "--no-plots")[0] == 0
    board = (tmp_path / "in" / "leaderboard" / "board.md").read_text()
    assert {row["trust"] for row in rows_of(board, "**At a glance**")} == {
        "refuted: 1 of 2 cells not reproduced"
    }


def test_a_refuted_row_has_no_rank_and_the_others_rank_as_if_it_were_not_there(tmp_path):
    leak = {"none": 2.0, "mixup": 1.2, "grad-sparse": 0.4}
    honest = sections_of(Folder(tmp_path / "honest", leak).fill())[0]
    Folder(tmp_path / "r" / "imported" / "b", {**leak, "forged": 0.0}).fill()
    Folder(tmp_path / "r" / "reproduced", {"forged": 2.0}, ("fedmia-ii",)).fill()
    source = source_of(tmp_path / "r")
    (section,), refuted = source.sections, "refuted: 3 of 3 cells not reproduced, stale"
    assert (
        honest.comparison.pairwise.ranks["grad-sparse"] == (1, 1)
        and section.comparison.pairwise.ranks == honest.comparison.pairwise.ranks
    )
    assert (
        section.comparison.pairwise.leader("loss-series")
        == "grad-sparse"
        == answer(section).defense.label
    )
    assert (
        section.comparison.pairwise.against("none").keys() == {"mixup", "grad-sparse"}
        and "forged" not in trade_off(section).points
    )
    table = summary(source.sections, source.trust)
    shown = {row[1]: (row[0], row[table.headers.index("trust")]) for row in table.rows}
    front = {
        row["defense"]: row
        for row in rows_of(render(document(source, plots=False)), "**At a glance**")
    }
    page = {row.label: row for row in board_of(source, "b", "").rows}
    assert shown["forged"] == ("–", refuted) == (front["forged"]["#"], front["forged"]["trust"])  # noqa: RUF001
    assert shown["grad-sparse"] == ("1", "claimed, stale") and front["grad-sparse"][
        "worst case AUC"
    ].startswith("**")
    assert "**" not in front["forged"]["worst case AUC"]
    assert (page["forged"].rank, page["forged"].trust, page["grad-sparse"].rank) == (
        None,
        refuted,
        (1, 1),
    )


def test_nothing_is_compared_with_an_undefended_run_that_is_refuted(tmp_path):
    Folder(tmp_path / "r" / "imported" / "b", {"none": 2.0, "mixup": 1.2, "placebo": 2.0}).fill()
    Folder(tmp_path / "r" / "reproduced", {"none": 0.0, "placebo": 0.0}).fill()
    (section,) = source_of(tmp_path / "r").sections
    assert section.base is section.plain is None and answer(section).outcome == "no undefended run"


@pytest.mark.slow
@pytest.mark.nightly
def test_a_reproduced_folder_is_claimed_again_elsewhere_and_measured_here_when_rerun(
    claims, tmp_path, call
):
    assert "2 cells bit for bit" in call("reproduce", claims)[1]
    assert set(levels(claims).values()) == {"reproduced"}
    assert call("export", claims, "-o", tmp_path / "again.zip")[0] == 0
    assert call("import", tmp_path / "again.zip", "-o", tmp_path / "elsewhere")[0] == 0
    assert set(levels(tmp_path / "elsewhere").values()) == {"claimed"}
    suite = next(p for p in (claims / "suites").glob("*.yaml") if "given" not in p.name)
    assert (
        call(
            "run",
            suite,
            "--results",
            claims,
            "--no-plots",
            "--rerun",
            "always",
            "--only",
            "defense=none",
        )[0]
        == 0
    )
    assert {d: level for (d, _), level in levels(claims).items()} == {
        "none": "measured here",
        "grad-noise": "reproduced",
    }


UNREPEATABLE = """
    import os
    import numpy as np
    from fedbench.core import Attack, Component, hookimpl

    class ByProcess(Attack):
        '''Another score in another process.'''
        needs = frozenset({"loss"})

        def score(self, observations, audit):
            return np.random.default_rng(os.getpid()).normal(size=len(audit.ids))

    @hookimpl
    def fedbench_attacks():
        yield Component("by-process", "unrepeatable:ByProcess", "noise of its process")
"""


def test_verify_trains_runs_a_second_time_and_the_board_marks_rows_that_are_not_repeatable(
    tmp_path, site, call
):
    install(site, "unrepeatable", UNREPEATABLE)
    path = suite(tmp_path, attacks=["loss-series", "by-process"])
    status, words = call("run", path, "--results", tmp_path / "r", "--verify", 1, "--no-plots")
    mark = "not repeatable: 1 of 2 cells run twice"
    assert (status, "1 cells bit for bit; 1 cells not repeatable" in words, mark in words) == (
        1,
        True,
        True,
    ), words
    source = source_of(tmp_path / "r")
    (front,), (page,) = (
        rows_of(render(document(source, plots=False)), "**At a glance**"),
        board_of(source, "b", "").rows,
    )
    assert front["trust"] == page.trust == mark
    status, words = call(
        "run",
        path,
        "--results",
        tmp_path / "r",
        "--verify",
        9,
        "--no-plots",
        "--only",
        "attack=loss-series",
    )
    assert (status, "1 cells bit for bit" in words) == (0, True), words


# --- what is installed ----------------------------------------------------------------------------


@pytest.fixture
def of_another(bundle, tmp_path):
    """Imports the claims with another defense or engine."""

    def made(change):
        files = files_of(bundle)
        for name in [n for n in files if n.startswith("records/") and n.endswith(".json")]:
            files = rekeyed(files, name, lambda identity: change(identity["run"]))
        (tmp_path / "other.zip").write_bytes(packed(files, ("cells", [])))
        assert main(["import", str(tmp_path / "other.zip"), "-o", str(tmp_path / "other")]) == 0
        return tmp_path / "other"

    return made


def test_a_missing_package_is_named_with_the_command_that_installs_it(of_another, call):
    status, words = call(
        "reproduce", of_another(lambda run: run["defense"].update(distribution="their-package 1.2"))
    )
    assert (status, "not installed here: their-package 1.2" in words) == (2, True)
    assert "pip install 'their-package==1.2'" in words
    assert (
        pip_command({"$(rm -rf /)": "1", "good": "1.0", "x": "1; ls", "--index-url": "2"})
        == "pip install 'good==1.0'"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda run: run["digests"].update(engine="x"), "the engine's code changed"),
        (
            lambda run: run["defense"].update(distribution="fedbench-privacy 0.0.1"),
            "is of fedbench-privacy 0.0.1, here ",
        ),
        (
            lambda run: run["provenance"].update(scikit_learn="1.0.1"),
            ": pip install 'scikit-learn==1.0.1'",
        ),
    ],
    ids=["engine", "version", "library"],
)
def test_a_cell_of_other_code_is_stale_and_explained(of_another, change, reason, call):
    status, words = call("reproduce", of_another(change))
    assert (status, "2 cells stale" in words) == (1, True)
    assert reason in words
