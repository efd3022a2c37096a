"""Claimed results run again here: what is drawn, how it is compared, and how a board shows it."""

from __future__ import annotations

import inspect
import json

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
    records_in,
    rekeyed,
    rescored,
    scores_of,
    unscored,
)
from fake_packages import install
from running import suite

from fedbench.core import Number
from fedbench.core.metrics.rounds import DecisionScores, RoundScores
from fedbench.core.store.reading import Candidates, load_records, read_run
from fedbench.core.store.record import RecordedFindings, RoundRow
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
def claims(bundle, tmp_path, words_of):
    words_of("import", bundle, "-o", tmp_path / "claims")
    return tmp_path / "claims"


@pytest.fixture
def first(claims):
    """The record of one cell."""
    return load_records(claims)[0]


def changed(loaded, **fields):
    """The same record with other fields."""
    return type(loaded)(loaded.record.model_copy(update=fields), loaded.path, loaded.arrays)


def rescored_slightly(loaded, **fields):
    """The record with other fields, and of scores that are not equal."""
    return changed(loaded, digests={**loaded.record.digests, "scores": "0" * 64}, **fields)


# --- the sample -----------------------------------------------------------------------------------


def test_the_sample_has_runs_of_every_row_and_is_drawn_evenly(claims):
    records = load_records(claims)
    assert sampled(records, Draw(share=0.1, seed=0)) == records
    assert sampled(records[::-1], Draw(share=0.1, seed=0)) == records[::-1]
    # that something failed is no result
    assert sampled([changed(records[0], outcome="failed")], Draw(share=1, seed=0)) == []
    many = [changed(records[0], run_key=f"{i:064x}", seed=i) for i in range(10)]
    sizes = {0.01: 1, 0.3: 3, 0.31: 4, 1.0: 10}
    assert {share: len(sampled(many, Draw(share=share, seed=0))) for share in sizes} == sizes
    counts = np.zeros(10)
    for seed in range(1000):
        counts[[r.record.seed for r in sampled(many, Draw(share=0.3, seed=seed))]] += 1
    assert np.abs(counts - 300).max() < 5 * np.sqrt(1000 * 0.3 * 0.7)


@pytest.mark.slow
def test_a_dry_run_shows_the_plan_and_the_draw_is_remembered(claims, words_of):
    command = ("reproduce", claims, "--dry-run")
    words = words_of(*command, "--seed", 3)
    assert "2 cells in the sample (a share of 0.1 with seed 3), 2 runs with 2 cells" in words
    assert set(levels(claims).values()) == {"claimed"}
    assert "with seed 3)" in words_of(*command)
    (claims / "reproduced.json").write_text('{"share": 2}')
    assert "reproduced.json: not the draw of a sample" in words_of(*command, status=2)
    words = words_of(*command, "--sample", "nan", status=2)
    assert "Invalid value for '--sample'" in words


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
    scores = array_of(files, name, "t0_scores")
    member = array_of(files, name, "t0_kind") == 0
    change = shift * member + noise * np.random.default_rng(0).normal(size=len(scores))
    again = rescored(files, name, t0_scores=scores + scores.std() * change)
    records = []
    for folder, content in (("claimed", files), ("again", again)):
        for part in (name, scores_of(files, name)):
            path = tmp_path / folder / part
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content[part])
        records.append(read_run(tmp_path / folder / name)[0])
    monkeypatch.setattr("fedbench.leaderboard.submissions.comparing.FLOOR", floor)
    compared = compare(*records)
    assert compared.verdict == verdict
    assert how in compared.how


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
def test_what_no_scores_decide_is_compared_where_scores_differ(first, true, forged, field):
    compared = compare(rescored_slightly(first, **forged), changed(first, **true))
    assert compared.verdict == ("not reproduced" if field else "within tolerance")
    assert (field or "tolerance") in compared.how


@pytest.mark.parametrize(
    ("verdict", "mark"),
    [("bit for bit", "reproduced"), ("within tolerance", "within tolerance")],
)
def test_a_cell_within_tolerance_has_a_mark_below_reproduced(
    claims, first, monkeypatch, verdict, mark
):
    monkeypatch.setattr(trust, "judged", lambda one, other: Compared(verdict, ""))
    monkeypatch.setattr(trust, "reproductions", lambda root: {first.record.key: first})
    assert sorted(levels(claims).values()) == ["claimed", mark]


@pytest.mark.parametrize(
    ("part", "name", "forged"),
    [
        ("rounds", "best_auc", 0.1),
        ("decision", "calibrated_recall", 0.1),
        ("maximum", "advantage", 0.9),
    ],
)
def test_forged_single_rounds_and_decisions_are_not_reproduced(first, part, name, forged):
    def filled(cls):
        return cls(**dict.fromkeys(inspect.signature(cls).parameters, 0.7) | {"best_round": 2})

    honest = {
        "rounds": filled(RoundScores),
        "decision": filled(DecisionScores),
        "maximum": first.record.targets[0].maximum,
    }
    claimed = honest | {part: type(honest[part])(**vars(honest[part]) | {name: forged})}

    def targets(scores):
        return [target.model_copy(update=scores) for target in first.record.targets]

    compared = compare(
        rescored_slightly(first, targets=targets(claimed)), changed(first, targets=targets(honest))
    )
    assert compared.how.startswith(
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


def test_outcomes_are_compared_and_a_divergence_may_read_differently(first):
    one, other = (
        changed(first, outcome="diverged", targets=[], pooled={}, reason=reason)
        for reason in ("round 3", "round 4")
    )
    assert compare(one, one).verdict == "bit for bit"
    assert compare(one, other).verdict == "within tolerance"
    failed = compare(first, changed(first, outcome="failed", reason="no luck"))
    assert failed.verdict == "not reproduced"
    assert failed.how == "'ok' claimed, 'failed' here: no luck"


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_forged_scores_that_agree_are_claimed_but_not_reproduced(finished, tmp_path, words_of):
    """The scores and numbers of another attack, and a number called skipped that its author does
    not like.
    """
    files = files_of(exported(finished, tmp_path))
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
    words_of("reproduce", tmp_path / "b.zip", status=2)
    words_of("import", tmp_path / "b.zip", "-o", tmp_path / "in")
    words = words_of("reproduce", tmp_path / "in", status=1)
    assert "2 cells bit for bit; 2 cells not reproduced" in words
    assert "'skipped' claimed, 'ok' here" in words
    words_of("leaderboard", tmp_path / "in", "--no-plots")
    board = (tmp_path / "in" / "leaderboard" / "board.md").read_text()
    assert {row["trust"] for row in rows_of(board, "**At a glance**")} == {
        "refuted: 1 of 2 cells not reproduced"
    }


def test_a_refuted_row_has_no_rank_and_the_others_rank_as_if_it_were_not_there(tmp_path):
    leak = {"none": 2.0, "mixup": 1.2, "grad-sparse": 0.4}
    (honest,) = sections_of(Folder(tmp_path / "honest", leak).fill())
    Folder(tmp_path / "r" / "imported" / "b", {**leak, "forged": 0.0}).fill()
    Folder(tmp_path / "r" / "reproduced", {"forged": 2.0}, ("fedmia-ii",)).fill()
    source = source_of(tmp_path / "r")
    (section,), refuted = source.sections, "refuted: 3 of 3 cells not reproduced, stale"
    pairwise = section.comparison.pairwise
    assert pairwise.ranks["grad-sparse"] == (1, 1)
    assert pairwise.ranks == honest.comparison.pairwise.ranks
    assert pairwise.leader("loss-series") == answer(section).defense.label == "grad-sparse"
    assert pairwise.against("none").keys() == {"mixup", "grad-sparse"}
    assert "forged" not in trade_off(section)
    table = summary(source.sections, source.trust)
    shown = {row[1]: (row[0], row[table.headers.index("trust")]) for row in table.rows}
    glance = rows_of(render(document(source, plots=False)), "**At a glance**")
    front = {row["defense"]: row for row in glance}
    page = {row.label: (row.rank, row.trust) for row in board_of(source, "b", "").rows}
    assert shown["forged"] == ("–", refuted) == (front["forged"]["#"], front["forged"]["trust"])  # noqa: RUF001
    assert shown["grad-sparse"] == ("1", "claimed, stale")
    assert front["grad-sparse"]["worst case AUC"].startswith("**")
    assert "**" not in front["forged"]["worst case AUC"]
    assert page["forged"] == (None, refuted)
    assert page["grad-sparse"][0] == (1, 1)


def test_nothing_is_compared_with_an_undefended_run_that_is_refuted(tmp_path):
    Folder(tmp_path / "r" / "imported" / "b", {"none": 2.0, "mixup": 1.2, "placebo": 2.0}).fill()
    Folder(tmp_path / "r" / "reproduced", {"none": 0.0, "placebo": 0.0}).fill()
    (section,) = source_of(tmp_path / "r").sections
    assert section.base is section.plain is None and answer(section).outcome == "no undefended run"


@pytest.mark.slow
@pytest.mark.nightly
def test_a_reproduced_folder_is_claimed_again_elsewhere_and_measured_here_when_rerun(
    claims, tmp_path, words_of
):
    assert "2 cells bit for bit" in words_of("reproduce", claims)
    assert set(levels(claims).values()) == {"reproduced"}
    words_of("export", claims, "-o", tmp_path / "again.zip")
    words_of("import", tmp_path / "again.zip", "-o", tmp_path / "elsewhere")
    assert set(levels(tmp_path / "elsewhere").values()) == {"claimed"}
    suite = next(p for p in (claims / "suites").glob("*.yaml") if "given" not in p.name)
    part = ("--rerun", "always", "--only", "defense=none")
    words_of("run", suite, "--results", claims, "--no-plots", *part)
    assert {defense: level for (defense, _), level in levels(claims).items()} == {
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
    tmp_path, site, words_of
):
    install(site, "unrepeatable", UNREPEATABLE)
    path = suite(tmp_path, attacks=["loss-series", "by-process"])
    command = ("run", path, "--results", tmp_path / "r", "--no-plots", "--verify")
    words = words_of(*command, 1, status=1)
    mark = "not repeatable: 1 of 2 cells run twice"
    assert "1 cells bit for bit; 1 cells not repeatable" in words and mark in words
    source = source_of(tmp_path / "r")
    (front,) = rows_of(render(document(source, plots=False)), "**At a glance**")
    (page,) = board_of(source, "b", "").rows
    assert front["trust"] == page.trust == mark
    assert "1 cells bit for bit" in words_of(*command, 9, "--only", "attack=loss-series")


# --- what is installed ----------------------------------------------------------------------------


@pytest.fixture
def of_another(bundle, tmp_path, words_of):
    """Imports the claims with another defense or engine."""

    def claims(change):
        files = files_of(bundle)
        for name in records_in(files):
            files = rekeyed(files, name, lambda identity: change(identity["run"]))
        (tmp_path / "other.zip").write_bytes(packed(files, ("cells", [])))
        words_of("import", tmp_path / "other.zip", "-o", tmp_path / "other")
        return tmp_path / "other"

    return claims


def test_a_missing_package_is_named_with_the_command_that_installs_it(of_another, words_of):
    claims = of_another(lambda run: run["defense"].update(distribution="their-package 1.2"))
    words = words_of("reproduce", claims, status=2)
    assert "not installed here: their-package 1.2" in words
    assert "pip install 'their-package==1.2'" in words
    packages = {"$(rm -rf /)": "1", "good": "1.0", "x": "1; ls", "--index-url": "2"}
    assert pip_command(packages) == "pip install 'good==1.0'"


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
def test_a_cell_of_other_code_is_stale_and_explained(of_another, change, reason, words_of):
    words = words_of("reproduce", of_another(change), status=1)
    assert "2 cells stale" in words and reason in words
