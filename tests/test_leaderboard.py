"""The board from small results folders: what a row's numbers are made of, which section has it,
what is shown and refused.
"""

from __future__ import annotations

import gc
import re
import weakref
from itertools import product

import numpy as np
import pytest
from boards import (
    ACCURACY,
    ACTIVE,
    LEAK,
    MEMBERS,
    N_IFL,
    N_MEMBERS,
    N_OFL,
    N_TEST,
    PROVENANCE,
    RULES,
    Folder,
    Poisoned,
    board,
    row_of,
    rows_of,
    sections_of,
)
from claim_boards import Cells, pairs

import fedbench
from fedbench.core import UserError
from fedbench.core.metrics import combined_interval, hypervolume, score_groups, t_interval
from fedbench.core.report import Fold, Note, Words
from fedbench.core.store.reading import load_records
from fedbench.core.store.record import Costs, RoundRow, Utility, remark_note
from fedbench.core.store.results import write_marker
from fedbench.core.store.scores import TargetScores
from fedbench.leaderboard.audit_blocks import audit_blocks
from fedbench.leaderboard.board import FullBoard, MarkdownBoard
from fedbench.leaderboard.comparison.cells import Key
from fedbench.leaderboard.document import MOST_LINES, document, source_of
from fedbench.leaderboard.gate.ceilings import ceilings_of
from fedbench.leaderboard.gate.file import snapshot_in
from fedbench.leaderboard.markdown import inline, render
from fedbench.leaderboard.site.data import board_of
from fedbench.leaderboard.site.pages import pages
from fedbench.leaderboard.statistics.intervals import accuracy_error, smallest_shown
from fedbench.leaderboard.tables.answer import answer, sentences
from fedbench.leaderboard.tables.tradeoffs import on_front, trade_off
from fedbench.plugins.analyses.strengths import Tuned

NO_RANK = "–"  # noqa: RUF001


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Four defenses, two attacks, three seeds, all complete; read-only."""
    return Folder(tmp_path_factory.mktemp("template") / "results", LEAK).fill()


@pytest.fixture
def folder(tmp_path):
    """The same, to be changed."""
    return Folder(tmp_path / "results", LEAK).fill()


def of_defense(text, table):
    return {r["defense"]: r for r in rows_of(text, table)}


def luck(share, seeds=3):
    """Test accuracy of each seed where that share of the samples is classified correctly."""
    return [np.mean(np.random.default_rng(seed).random(N_TEST) < share) for seed in range(seeds)]


# ---------------------------------------------------------------- what a row's numbers are made of


def test_a_defense_at_several_strengths_is_a_sweep_of_tf01_and_test_error(tmp_path):
    leak = {"none": 2, "noise-0.1": 1, "noise-0.5": 0.5, "mixup": 1}
    (section,) = sections_of(
        Folder(tmp_path / "results", leak, attacks=("fedmia-ii",), n_ofl=1000).fill()
    )
    (sweep,) = section.sweeps()
    point = {
        d: (
            section.comparison.leaks.of(d, "fedmia-ii").tf01.mean / 100,
            1 - row_of(section, d).accuracy.mean,
        )
        for d in leak
    }
    rows = ["noise-0.5", "noise-0.1"]
    assert (
        sweep.family == "noise"
        and list(sweep.labels) == rows
        and point["none"] > point["noise-0.1"] > (0, 0)
    )
    assert sweep.points["fedmia-ii"] == pytest.approx(np.array([point[d] for d in rows]))
    assert sweep.undefended["fedmia-ii"] == pytest.approx(np.array([point["none"]]))
    assert sweep.hypervolumes["fedmia-ii"] == pytest.approx(
        hypervolume(np.array([point[d] for d in ["none", *rows]]))
    )


def test_intervals_are_over_seeds_and_targets_and_costs_are_paired_with_the_undefended_run(
    template,
):
    (section,) = sections_of(template)
    entry, compared = row_of(section, "mixup").entries["fedmia-ii"], section.summaries["mixup"]
    units = entry.units("ofl")
    assert list(units) == [(s, t) for s in (0, 1, 2) for t in MEMBERS]
    values, errors = (
        [s.value("auc") for s in units.values()],
        [s.error("auc") for s in units.values()],
    )
    widths = [
        combined_interval(values, errors).half_width,
        t_interval(np.reshape(values, (3, 2)).mean(axis=1)).half_width,
    ]
    found = entry.interval("auc", "ofl")
    assert (found.mean, found.half_width) == pytest.approx((np.mean(values), max(widths)))
    differences = np.subtract(luck(0.75), luck(0.8))
    assert compared.delta_accuracy.mean == pytest.approx(differences.mean())
    assert section.smallest_difference == pytest.approx(
        smallest_shown([np.std(differences, ddof=1)], 3)
    )


def test_floors_have_no_rank_and_the_members_share_is_above_the_free_riders_accuracy(tmp_path):
    rows = pairs("none 1.5 0.8, mixup 0.8 0.75, lazy 0.0 0.6, free-rider 0.0 0.6, placebo 1.5 0.8")
    of_seed = {seed: {"mixup": (0.8, 0.75 + 0.01 * seed)} for seed in range(3)}
    (section,) = sections_of(Cells(tmp_path / "r", {"s": rows}, seeds=range(3), of_seed=of_seed))
    assert (
        set(section.comparison.pairwise.ranks)
        == set(trade_off(section))
        == {"none", "mixup", "lazy"}
    )
    assert section.comparison.pairwise.leader("loss-series") == "lazy"  # free-rider is as low
    found, expected = section.summaries["mixup"].contribution, [0.15, 0.16, 0.17]
    assert (
        found.mean == pytest.approx(0.16)
        and found.half_width >= t_interval(expected).half_width * 0.999
    )
    assert (
        section.summaries["lazy"].contribution.mean == 0
        and section.summaries["free-rider"].contribution is None
    )
    assert not section.comparison.pairwise.against("free-rider")["lazy"].shown


@pytest.mark.parametrize(("rounds", "below"), [(range(1, 6), 0.03), ((1, 2), 0.015), ((1,), 0.0)])
def test_accuracy_is_the_mean_over_the_last_three_audited_rounds_everywhere(
    tmp_path, rounds, below, words_of
):
    """The last round of ``mixup`` is a spike of 3 points more a round; a mean of three is 3 points
    below it.
    """
    folder = Folder(tmp_path / "r", {"none": 1.0, "mixup": 0.3, "noise-1": 0.2, "noise-2": 0.1})
    folder.spike = dict.fromkeys(("mixup", "noise-1"), 0.03)
    folder.fill(history=[RoundRow(round=r, accuracy=0.5, train_loss=None) for r in rounds])
    write_marker(folder.root, {"suite": "demo", "cells": []})
    (section,) = sections_of(folder)
    expected = {
        "none": np.mean(luck(0.8)),
        "mixup": np.mean(luck(0.75)) - below,
        "noise-2": np.mean(luck(0.75)),
    }
    assert {label: row_of(section, label).accuracy.mean for label in expected} == pytest.approx(
        expected
    )
    delta = expected["mixup"] - expected["none"]
    assert section.summaries["mixup"].delta_accuracy.mean == pytest.approx(delta)
    assert section.differences([("noise-2", "mixup")])[0].accuracy.mean == pytest.approx(below)
    assert trade_off(section)["mixup"][1] == pytest.approx(1 - expected["mixup"])
    loaded = fedbench.load(folder.root)
    shown = {row["defense"]: row for row in loaded.rows.to_dict("records")}
    assert (shown["mixup"]["accuracy"], shown["mixup"]["delta"]) == pytest.approx(
        (expected["mixup"], delta), abs=5e-5
    )
    for cells in (loaded.cells, loaded.board()["runs"]["accuracy"]):
        found = cells if isinstance(cells, list) else cells.query("defense == 'mixup'").accuracy
        assert min(found) == pytest.approx(min(luck(0.75)) - below, abs=5e-5)
    gate = snapshot_in(folder.root).cells[Key("iid", "pair", "mixup", "", "")].values["accuracy"]
    assert [value.mean for value in gate.values()] == pytest.approx(
        np.subtract(luck(0.75), below), abs=1e-5
    )
    said = words_of("show", folder.root, "mixup--fedmia-ii--s0")
    assert (
        f"test accuracy {luck(0.75)[0] - below:.4f} ({luck(0.75)[0]:.4f} after the last round, "
        f"n={N_TEST})" in said
    )
    assert "the mean over the last three audited rounds" in board(folder)


def test_the_interval_of_a_delta_accuracy_is_that_of_the_means_over_rounds(tmp_path):
    """``mixup`` is less accurate before the last round of one seed; the last rounds alone hardly
    differ between seeds.
    """
    folder, spikes = (
        Folder(tmp_path / "r", {"none": 1.0, "mixup": 0.3}, ("fedmia-ii",)),
        (0.0, 0.0, 0.15),
    )
    for seed, spike in enumerate(spikes):
        folder.spike = {"mixup": spike}
        folder.fill([seed])
    found = sections_of(folder)[0].summaries["mixup"]
    differences = np.subtract(luck(0.75), luck(0.8)) - spikes
    assert (found.delta_accuracy.mean, found.deviation) == pytest.approx(
        (np.mean(differences), np.std(differences, ddof=1))
    )
    assert found.delta_accuracy.half_width == pytest.approx(t_interval(differences).half_width)


def test_one_seed_prints_no_interval(tmp_path):
    """Its intervals would leave out the variance of training."""
    folder = Folder(tmp_path / "r", {"none": 1.5, "mixup": 0.3}, n_ofl=1000).fill((0,))
    text = board(folder)
    for table in ("**At a glance**", "**Ranking**", "**AUC by attack**"):
        cells = [cell for row in rows_of(text, table) for cell in row.values()]
        assert not [cell for cell in cells if "±" in cell or "[" in cell]
    assert "±" in board(folder.fill((1,)))  # two seeds do
    (row, *_) = board_of(
        source_of(Folder(tmp_path / "one", {"none": 1.5}).fill((0,)).root), "demo", ""
    ).rows
    assert row.numbers["worst"][0] > 0.5
    shown = [row.numbers[key] for key in ("worst", "mean", "accuracy")]
    assert [interval[1:] for interval in [*shown, row.entries[0].auc]] == [(None, None)] * 4
    assert "One seed: no intervals" in text


def test_intervals_of_auc_and_accuracy_end_at_0_and_1_where_they_are_shown(tmp_path):
    wobble = {seed: {"mixup": (9.0 if seed else 0.2, 0.999 if seed else 0.9)} for seed in range(3)}
    folder = Cells(
        tmp_path / "r",
        {"iid": pairs("none 9.0 0.8, mixup 2.0 0.99")},
        seeds=range(3),
        of_seed=wobble,
    )
    (section,) = sections_of(folder)
    assert (
        section.comparison.worst_cases.of("mixup").worst.interval.high > 1
    )  # a test uses it whole
    row = next(r for r in board_of(source_of(folder.root), "demo", "").rows if r.label == "mixup")
    shown = [row.numbers[key] for key in ("worst", "mean", "accuracy")]
    assert [interval[2] for interval in [*shown, row.entries[0].auc]] == [1] * 4
    shown = of_defense(board(folder), "**AUC by attack**")["mixup"]["loss-series"]
    assert (
        shown.endswith(r", 1.000\]")
        and r", 1.000\] " in of_defense(board(folder), "**Ranking**")["mixup"]["worst case AUC"]
    )


def test_what_changes_the_reading_stands_above_the_first_table_and_the_answer_before_its_own(
    tmp_path,
):
    rows = pairs("none 0.3 0.9, a 0.22 0.8, b 0.14 0.7, c 0.07 0.6, d 0.0 0.5")
    folder = CanaryCells(tmp_path / "r", {"iid": rows}, seeds=range(3))
    (section,), text = sections_of(folder), board(folder)
    clean, every = (
        c.worst_cases.of("none").worst.interval.mean
        for c in (section.comparison.by_kind[0], section.comparison)
    )
    where = "iid, coalition pair, server view"
    aucs = f"{every:.3f}, {clean:.3f} ({where}: 5 % canaries)"
    leak = f"undefended worst case AUC on all, on clean ones {aucs}"
    summaries = [section.summaries[label] for label in rows]
    alike = np.corrcoef([s.worst.mean for s in summaries], [s.accuracy.mean for s in summaries])[
        0, 1
    ]
    both = f"correlation of worst case AUC and accuracy over rows {alike:.2f} ({where})"
    above, table = text.split("**At a glance**", 1)
    assert leak in above and both in above and alike > 0.8 and every - clean > 0.03
    assert (
        "On another type of CPU ranks may move by a place." in above
        and "CPU type A CPU (AVX2)" in table
    )
    assert "The undefended federation leaks" in above
    assert [leak in note for note in board_of(source_of(folder.root), "demo", "").notes] == [
        True,
        False,
    ]
    calm = board(
        Cells(
            tmp_path / "calm",
            {"iid": rows | pairs("a 0.0 0.9, d 0.3 0.5, c 0.05 0.9")},
            seeds=range(3),
        )
    )
    assert "carry much of the leak" not in calm and "nearly one thing" not in calm


class CanaryCells(Cells):
    """Mislabelled members score far higher, undefended or not."""

    def _measured(self, defense, attack, seed, targets, ids_from):
        arrays, _, correct = super()._measured(defense, attack, seed, targets, ids_from)
        scored = []
        for t in targets:
            kind, canary = arrays[f"t{t}_kind"], arrays[f"t{t}_canary"]
            arrays[f"t{t}_scores"] = (
                arrays[f"t{t}_scores"] + 9.0 * (canary & (kind == 0)) - 9.0 * (canary & (kind == 1))
            )
            groups = score_groups(arrays[f"t{t}_scores"], kind, canary, np.random.default_rng(0))
            scored.append(TargetScores(target=t, groups=groups))
        return arrays, scored, correct


def test_no_comparison_outlives_its_board(template):
    source = source_of(template.root)
    document(source, plots=False)
    made = [
        weakref.ref(comparison)
        for s in source.sections
        for comparison in (s.comparison, *s.comparison.by_kind)
    ]
    del source
    gc.collect()
    assert len(made) == 3 and [ref() for ref in made] == [None] * 3


def timed(tmp_path, walls, away):
    """A folder of runs with these wall times by seed; CPU time is at most 2 s, and another CPU's
    for the row ``away``.
    """
    folder = Folder(tmp_path / "r", dict.fromkeys(walls, 0.5), attacks=("fedmia-ii",))
    for label, seconds in walls.items():
        for seed, wall in enumerate(seconds):
            measured = Costs(
                started="2026-03-01T10:00:00+00:00",
                wall_s=9,
                cpu_s=9,
                attack_cpu_s=0,
                signals_cpu_s=0,
                train_cpu_s=min(wall, 2),
                train_wall_s=wall,
                peak_memory_mb=9,
            )
            machine = {**PROVENANCE, "cpu": "another"} if label == away else PROVENANCE
            folder.add(label, "fedmia-ii", seed, measured=measured, provenance=machine)
    return folder


@pytest.mark.parametrize(
    ("placebo", "away", "over", "shown"),
    [
        (
            [2, 2, 2],
            "",
            "placebo",
            {"none": "0.50 ± 0.00", "mixup": "0.75 ± 0.12", "placebo": "1"},
        ),
        # busy once
        (
            [2, 3, 2],
            "",
            "placebo",
            {"none": "0.50 ± 0.00", "mixup": "0.75 ± 0.64", "placebo": "1"},
        ),
        ([2, 3, 3], "", "none", {"none": "1", "mixup": "1.50 ± 0.25", "placebo": "n/a"}),
        ([2], "", "none", {"none": "1", "mixup": "1.50 ± 0.25", "placebo": "2.00"}),
        ([2, 2, 2], "placebo", "none", {"none": "1", "mixup": "1.50 ± 0.25", "placebo": "n/a"}),
        ([], "", "none", {"none": "1", "mixup": "1.50 ± 0.25"}),
    ],
)
def test_runtime_is_over_the_placebo_where_its_times_can_be_compared(
    tmp_path, placebo, away, over, shown
):
    walls = {"none": [1] * 3, "mixup": [1.4, 1.5, 1.6], **({"placebo": placebo} if placebo else {})}
    folder = timed(tmp_path, walls, away)
    text, (section,) = board(folder), sections_of(folder)
    for table in ("**At a glance**", "**Ranking**"):
        assert {
            label.split()[0]: r["runtime (x)"] for label, r in of_defense(text, table).items()
        } == shown
    assert text.count(f"Runtime: training CPU time over that of {over}, seed by seed.") == 2
    assert ("Records of several types of CPU" in text) == (away == "placebo")
    page = {
        row.label: row.numbers["runtime"]
        for row in board_of(source_of(folder.root), "demo", "").rows
    }
    assert (
        [label for label, interval in page.items() if interval == (1, 1, 1)]
        == [over]
        == [section.plain.label]
    )


def test_an_attack_that_finds_nothing_undefended_counts_nowhere_and_is_named(tmp_path):
    folder = Folder(tmp_path / "r", {"none": 1.5, "mixup": 0.3}, ("fedmia-ii",)).fill()
    for seed in range(3):
        folder.add("none", "loss-series", seed, "skipped")
        folder.add("mixup", "loss-series", seed)
    folder.leak, folder.attacks = {"none": 0.0, "mixup": 3.0}, ("guess",)
    (section,), text = sections_of(folder.fill()), board(folder)
    assert (
        section.comparison.worst_cases.of("mixup").worst.attack == "fedmia-ii"
        and section.comparison.leaks.of("mixup", "guess").auc.mean > 0.9
    )
    assert (
        "No better than chance on the undefended run, and so in no mean, worst case or rank: guess."
        in text
    )
    assert (
        "Without a score on the undefended run, and so in no mean, worst case or rank: loss-series."
        in text
    )


# ---------------------------------------------------------------- which defense to use


# accuracy from seed to seed
WOBBLE = {seed: {"shield": (0.3, 0.795 + 0.02 * (-1) ** seed)} for seed in range(3)}


@pytest.mark.parametrize(
    ("rows", "more", "outcome", "label", "tied", "said"),
    [
        (
            "none 2.0 0.8, dear 0.0 0.7, shield 0.3 0.795, mixup 1.0 0.8, free-rider 0.0 0.8",
            {},
            "found",
            "shield",
            (),
            "at a change of accuracy of -0.5 ± ",
        ),
        (
            "none 2.0 0.8, shield 0.3 0.795",
            {"of_seed": WOBBLE},
            "found",
            "shield",
            (),
            "points, which 3 seeds do not distinguish from one point.",
        ),
        (
            "none 2.0 0.8, a 0.3 0.8, b 0.3 0.8, far 1.5 0.8, dear 0.3 0.7",
            {},
            "found",
            "a",
            ("b",),
            "; statistically tied with b.",
        ),
        (
            "none 2.0 0.8, idle 2.0 0.8",
            {},
            "none lower",
            "idle",
            (),
            "is shown to leak less than none",
        ),
        (
            "none 2.0 0.8, shield 0.0 0.8",
            {"seeds": [0]},
            "none lower",
            "shield",
            (),
            "one seed shows no differences",
        ),
        (
            "none 2.0 0.8, dear 0.0 0.5, less 0.5 0.785",
            {},
            "none within",
            "less",
            (),
            "accuracy of -1.5",
        ),
        (
            "none 0.0 0.8, a 0.0 0.8",
            {},
            "nothing leaks",
            None,
            (),
            "No attack beats chance on the undefended",
        ),
        (
            "none 2.0 0.8, a 0.0 0.8",
            {"seeds": [0], "n_ofl": 1},
            "no errors",
            None,
            (),
            "what the undefended federation leaks is not known",
        ),
        (
            "none 2.0 0.8, free-rider 0.0 0.8",
            {},
            "none here",
            None,
            (),
            "No defense with all its scores",
        ),
        (
            "none 2.0 0.8, gone 0.0 0.8, mixup 0.5 0.8",
            {"without": {("gone", 2)}},
            "found",
            "mixup",
            (),
            "mixup",
        ),
    ],
)
def test_the_answer_is_the_strongest_within_one_point_that_is_told_from_none(
    tmp_path, rows, more, outcome, label, tied, said
):
    (section,) = sections_of(
        Cells(tmp_path / "r", {"s": pairs(rows)}, **{"seeds": range(3), **more})
    )
    found = answer(section)
    assert (found.outcome, found.defense and found.defense.label, found.tied) == (
        outcome,
        label,
        tied,
    )
    assert found.unsure == ("of_seed" in more or outcome == "none within")
    assert said in inline(sentences(section)[0]).replace("\\", "")


def test_a_utility_that_is_better_when_lower_is_read_so_and_named_with_its_unit(tmp_path):
    rows = pairs("none 2.0 0.8, better 0.3 0.7, worse 0.0 0.9")
    (section,) = sections_of(Cells(tmp_path / "r", {"s": rows}, seeds=range(3)))
    section.__dict__["utility"] = Utility(
        accuracy=0.8, n_test=100, name="error", unit="m", direction="lower", high=9.0
    )
    best = answer(section)
    assert (best.outcome, best.within) == ("found", ("better",))
    assert on_front(section) == {"none": False, "better": True, "worse": True}
    text = " ".join(map(inline, sentences(section)))
    assert "within 1 % of the undefended error is better" in text
    assert "a change of error of -0.1000 ± 0.0130 m" in text


def test_a_page_of_sections_with_other_utilities_is_refused(tmp_path):
    rows = pairs("none 2.0 0.8, mixup 0.3 0.7")
    cells = Cells(tmp_path / "r", {"a": rows, "b": rows}, seeds=range(2))
    write_marker(cells.root, {"suite": "demo"})
    source = source_of(cells.root)
    board_of(source, "demo", "")
    error = Utility(accuracy=0.8, n_test=100, name="error", direction="lower", high=9.0)
    source.sections[0].__dict__["utility"] = error
    with pytest.raises(UserError, match=r"measure (error, accuracy|accuracy, error), and a page"):
        board_of(source, "demo", "")


def test_an_address_in_a_record_is_no_link():
    text = inline("see https://evil.example/a and www.evil.example, 3:4")
    assert text == "see https\\://evil.example/a and www\\.evil.example, 3:4"


class Lossy(Folder):
    """A folder of a task without classes: what is measured is a loss of each test sample."""

    def _measured(self, *cell):
        arrays, scored, losses = super()._measured(*cell)
        losses = losses.astype(float)
        return {**arrays, "test_correct": losses}, scored, losses


def test_a_loss_is_a_loss_in_sweeps_on_the_page_in_show_and_no_measure_of_strengths(
    tmp_path, words_of
):
    leaks = {"none": 2.0, "noise-1": 0.5, "noise-2": 0.3}
    loss = {"name": "error", "unit": "m", "direction": "lower", "high": 9.0}
    folder = Lossy(tmp_path / "r", leaks, attacks=("seqmia",), n_ofl=1000).fill(utility=loss)
    write_marker(folder.root, {"suite": "demo"})
    section = next(s for s in sections_of(folder) if s.row("noise-1"))
    (sweep,) = section.sweeps()
    for label, (_, error) in zip(sweep.labels, sweep.points["seqmia"], strict=True):
        assert error == section.row(label).accuracy.mean
    text = words_of("show", folder.root, "noise-1--seqmia--s0")
    assert re.search(r" test error 0\.\d{4} m \(", text)
    page = pages([board_of(source_of(folder.root), "demo", "")])["demo.html"].decode()
    assert "within 1 % of the undefended error" in page and "Down: more useful" in page
    assert "one point" not in page
    (note,) = Tuned().draw(section, "tuned")
    assert "Strengths are chosen by accuracy" in inline(note.text)


# ---------------------------------------------------------------- cells without a score, and which
# records count


def test_failed_and_missing_cells_are_visible_and_cost_the_row_its_rank(folder):
    folder.add("cofedmid", "fedmia-ii", 1, "failed", reason="exploded | <b>badly</b>\nat once")
    for seed in range(3):
        folder.add("grad-sparse", "fedmia-ii", seed, "diverged", reason="NaN", view="client")
    folder.remove("mixup", "loss-series", 2)
    text = board(folder)
    rows = of_defense(text, "**AUC by attack**")
    assert rows["cofedmid"]["fedmia-ii"].endswith("(n=4), failed (1/3)")
    assert rows["grad-sparse"]["fedmia-ii"] == "diverged (3/3)" and "client view" not in text
    assert rows["mixup"]["loss-series"].endswith("(n=4), missing (1/3)")
    assert [r["#"] for r in rows.values()] == ["1", NO_RANK, NO_RANK, NO_RANK]
    listed = [
        " ".join((r["defense"], r["outcome"], r["seeds"], r["reason"]))
        for r in rows_of(text, "## Cells without a score")
    ]
    assert listed == [
        r"cofedmid failed 1 exploded \| &lt;b&gt;badly&lt;/b&gt; at once",
        "grad-sparse diverged 0, 1, 2 NaN",
        "mixup missing 2 no record; run the suite again to compute it",
    ]


@pytest.mark.parametrize("rows", [["none", "mixup", "cofedmid", "grad-sparse"], ["mixup"]])
def test_a_broken_attack_costs_its_own_cells_only_and_is_named(folder, template, rows):
    """Ranks and worst cases are those of a board without it, wherever it failed."""
    folder.attacks = ("broken",)
    folder.leak = dict.fromkeys(LEAK, 3.0)
    folder.fill()
    for row in rows:
        folder.add(row, "broken", 1, "failed", reason="x")
    folder.add(
        "late", "fedmia-ii", 0, "failed", reason="a row without a whole attack makes none broken"
    )
    (section,), (before,) = sections_of(folder), sections_of(template)
    assert section.left_out == ["broken"] and set(section.attacks) == {
        "broken",
        "fedmia-ii",
        "loss-series",
    }
    for label in LEAK:
        assert section.summaries[label] == before.summaries[label]
    assert section.comparison.pairwise.ranks == before.comparison.pairwise.ranks and set(
        before.comparison.pairwise.ranks
    ) == set(LEAK)
    text = board(folder)
    assert (
        f"In no mean, worst case or rank: broken, which lacks scores of {', '.join(sorted(rows))}"
        in text.replace("\\", "")
    )
    shown = of_defense(text, "**AUC by attack**")["mixup"]["broken (not in every row)"]
    assert shown.endswith("failed (1/3)")


def test_no_attack_is_said_to_leak_nothing_beside_one_that_is_left_out_and_leaks(tmp_path):
    leaks = {"none": 0.0, "mixup": 0.0}
    folder = Folder(tmp_path / "r", leaks, attacks=("fedmia-ii", "loss-series")).fill()
    folder.attacks, folder.leak = ("broken",), dict.fromkeys(leaks, 3.0)
    folder.fill()
    folder.add("mixup", "broken", 1, "failed", reason="x")
    write_marker(folder.root, {"suite": "demo"})
    (section,) = sections_of(folder)
    assert section.comparison.leaks.of("none", "broken").auc.low > 0.9
    assert section.comparison.worst_cases.eligible == ()
    audit = render(audit_blocks(source_of(folder.root)))
    assert "**is leaked** without a defense: by " in audit and "No leak was shown" not in audit
    assert "No attack that counts beats chance, so each row has" in audit
    text = board(folder)
    assert "No attack that counts beats chance on the undefended federation" in text
    assert "No attack that counts beats chance on the undefended run" in text
    assert "no attack beats chance" not in (text + audit).lower()


def test_an_auditors_page_says_that_one_training_without_errors_shows_nothing(tmp_path):
    cells = Cells(tmp_path / "r", {"s": pairs("none 2.0 0.8, a 0.0 0.8")}, seeds=[0], n_ofl=1)
    write_marker(cells.root, {"suite": "demo"})
    audit = render(audit_blocks(source_of(cells.root)))
    assert "**What is leaked is not known** without a defense" in audit
    assert "No leak was shown" not in audit and "is not excluded" not in audit


def test_an_attack_that_scores_a_floor_alone_takes_no_rank_from_other_rows(tmp_path):
    folder = Folder(tmp_path / "r", {"mixup": 1.5, "cofedmid": 0.3, "free-rider": 0.0}).fill()
    for label, seed in product(("mixup", "cofedmid"), range(3)):
        folder.add(label, "loss-series", seed, "skipped", reason="no shadow models")
    (section,) = sections_of(folder)
    assert section.comparison.pairwise.ranks == {"cofedmid": (1, 1), "mixup": (2, 2)}


def test_a_row_that_an_attack_skips_has_no_rank_and_is_named(tmp_path):
    """Under the other attack alone it would be the first."""
    folder = Folder(tmp_path / "r", {"none": 1.5, "mixup": 0.8, "immune": 0.3}).fill()
    for seed in range(3):
        folder.add("immune", "loss-series", seed, "skipped", reason="no shadow models")
    (section,) = sections_of(folder)
    assert set(section.comparison.worst_cases.eligible) == {"fedmia-ii", "loss-series"}
    assert section.comparison.pairwise.ranks.keys() == {"mixup", "none"}
    assert answer(section).defense.label == "mixup"
    assert trade_off(section).keys() == {"mixup", "none"}
    assert section.comparison.pairwise.against("none").keys() == {"mixup"}
    assert not section.summaries["immune"].complete
    assert [row.label for row in section.rows] == ["mixup", "none", "immune"]
    text = board(folder).replace("\\", "")
    note = "Without a rank, since its worst case does not count loss-series: immune."
    assert text.count(note) == 2
    write_marker(folder.root, {"suite": "demo"})
    ceilings = ceilings_of(folder.root, {"worst_auc": 0.99})
    outcomes = {ceiling.defense: ceiling.verdict for ceiling in ceilings}
    assert outcomes == {"mixup": "below", "immune": "not known"}


def test_an_attack_that_no_row_has_costs_no_rank_without_an_undefended_run(tmp_path):
    folder = Folder(tmp_path / "r", {"mixup": 1.5, "cofedmid": 0.3}).fill()
    for label in folder.leak:
        for seed in range(3):
            folder.add(label, "loss-series", seed, "skipped", reason="no shadow models")
    (section,) = sections_of(folder)
    assert section.comparison.pairwise.ranks.keys() == {"mixup", "cofedmid"}


def test_only_the_latest_of_two_records_of_one_cell_and_the_last_plan_count(folder, template):
    folder.add_outdated("mixup", "fedmia-ii", 0)
    shown = board(folder)
    assert (
        "failed" not in shown
        and "1 records of earlier code, parameters or plans are not shown." in shown
    )
    assert rows_of(shown, "**Ranking**") == rows_of(board(template), "**Ranking**")
    plan = [r.stem for r in load_records(folder.root) if r.record.defense.name != "mixup"]
    write_marker(folder.root, {"suite": "demo", "cells": plan})
    last = MarkdownBoard().write(folder.root, plots=False).read_text()
    assert (
        "mixup" not in last
        and "7 records of earlier code, parameters or plans are not shown." in last
    )


def test_records_whose_candidates_differ_are_not_paired(folder):
    folder.add("mixup", "fedmia-ii", 0, ids_from=7)
    with pytest.raises(
        UserError,
        match=r"cofedmid--fedmia-ii--s0--.* and .*mixup--fedmia-ii--s0--.*: .*other candidates",
    ):
        board(folder)


# ---------------------------------------------------------------- sections


def test_a_board_without_an_undefended_run_counts_every_attack(tmp_path):
    text = board(
        Folder(tmp_path / "r", {k: v for k, v in LEAK.items() if k != "none"}).fill(seeds=(0, 1))
    )
    assert (
        "No undefended run to compare with: every attack counts" in text
        and "Worst case compared" not in text
    )
    assert {r["delta-accuracy (pp)"] for r in rows_of(text, "**Ranking**")} == {"n/a"}


def test_coalitions_and_views_have_sections_of_their_own(folder):
    folder.leak = {**LEAK, "median": 0.5}
    for attack in folder.attacks:
        folder.add("median", attack, 0, coalition="none", members=[])
        folder.add("mixup", attack, 0, coalition="none", members=[], stem=f"mixup-none-{attack}")
    for defense in LEAK:
        folder.add(defense, "blackbox", 0, view="external")
    tables = {
        (t.coalition, t.view): ({r.label for r in t.rows}, t.attacks) for t in sections_of(folder)
    }
    known = ("fedmia-ii", "loss-series")
    assert tables == {
        ("none", "server"): ({"none", "mixup", "median"}, known),
        ("pair", "server"): ({"none", "median", *LEAK}, known),
        ("none", "external"): ({"none"}, ("blackbox",)),
        ("pair", "external"): (set(LEAK), ("blackbox",)),
    }


class ServerRules(Folder):
    """No client defends: every row is the server's."""

    def parties(self, defense):
        return "none", (), (0, 1)


@pytest.mark.parametrize(
    ("failed", "ranked"),
    [
        ([("krum", 0), ("krum", 1)], {"none", "mixup"}),
        # the second seed names no target, and still lacks all scores
        ([("krum", 1), ("none", 1), ("mixup", 1)], set()),
    ],
)
def test_where_no_client_defends_a_row_without_its_scores_is_incomplete(tmp_path, failed, ranked):
    folder = ServerRules(tmp_path / "r", {"none": 1.0, "krum": 0.5, "mixup": 0.2}).fill((0, 1))
    for row, seed in failed:
        for attack in folder.attacks:
            folder.add(row, attack, seed, "failed", reason="x")
    (section,) = sections_of(folder)
    assert (
        {r.label for r in section.rows if r.complete}
        == set(section.comparison.pairwise.ranks)
        == ranked
    )


# ---------------------------------------------------------------- rules of the server and attacks
# from inside


@pytest.fixture(scope="module")
def poison_template(tmp_path_factory):
    return Poisoned(tmp_path_factory.mktemp("poison") / "results").fill()


def test_accuracy_is_that_of_the_passive_runs_and_those_with_an_adversary_stand_apart(
    poison_template,
):
    (section,), text = sections_of(poison_template), board(poison_template)
    assert section.coalition == "none" and section.base.label == "none"
    shares = {d: np.mean(luck(0.8 - 0.1 * (d != "none"))) for d in RULES}
    assert {d: row_of(section, d).accuracy.mean for d in RULES} == pytest.approx(shares)
    assert section.summaries["median"].delta_accuracy.mean == pytest.approx(
        shares["median"] - shares["none"]
    )
    under = of_defense(text, "**Accuracy (%) with the active adversary")
    assert set(under["median"]) == {"defense", *ACTIVE}
    assert (
        under["atm"]["gradient-ascent"]
        == f"{100 * np.mean(luck(ACCURACY['gradient-ascent'] - 0.1)):.1f}"
    )


def test_a_row_of_active_runs_only_is_compared_under_the_same_attack(tmp_path):
    poisoned = Poisoned(tmp_path / "r").fill()
    poisoned.remove("median", "passive")
    (section,) = sections_of(poisoned)
    under = {shift: np.mean(luck(ACCURACY["fedpoisonmia"] - shift)) for shift in (0, 0.1)}
    assert row_of(section, "median").accuracy.mean == pytest.approx(under[0.1])
    assert section.summaries["median"].delta_accuracy.mean == pytest.approx(under[0.1] - under[0])
    assert (
        "compared with the undefended run under the same attack: median (fedpoisonmia)."
        in board(poisoned)
    )


def test_attack_accuracy_is_the_last_rounds_with_an_interval_of_seeds_or_of_the_candidates(
    poison_template,
):
    entry = row_of(sections_of(poison_template)[0], "atm").entries["fedpoisonmia"]
    said = [r.record.targets[0].decision for r in entry.records.values()]
    ses = [accuracy_error(d.last_accuracy, d.last_recall, N_MEMBERS, N_OFL + N_IFL) for d in said]
    between, found = t_interval([d.last_accuracy for d in said]), entry.attack_accuracy()
    half = max(1.96 * np.linalg.norm(ses) / 3, between.half_width)
    assert (found.mean, found.half_width) == (between.mean, pytest.approx(half, rel=1e-3))
    assert entry.attack_accuracy(best=True).mean == pytest.approx(
        np.mean([d.best_accuracy for d in said])
    )


@pytest.mark.parametrize(
    ("accuracy", "recall", "counts", "error"),
    [
        # plus one right and one wrong answer of each class
        (0.75, 0.9, (150, 100), 0.02728),
        (1.0, 1.0, (150, 150), 0.004637),
    ],
)
def test_the_error_of_an_attack_accuracy_is_the_binomial_one_and_not_zero_at_the_ends(
    accuracy, recall, counts, error
):
    assert accuracy_error(accuracy, recall, *counts) == pytest.approx(error, rel=2e-3)


# ---------------------------------------------------------------- texts of others, folds, figures


EVIL = "</summary><script>x</script>|a\n# b `c` [d](javascript:e) *f* <img src=x>"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The written board of a folder with markup in every text."""
    folder = Folder(
        tmp_path_factory.mktemp("hostile") / "r", {"none": 1.0, EVIL: 0.5}, attacks=("a|<b>",)
    )
    said = {
        "facts": {"remarks": EVIL, "word": EVIL},
        "notes": [remark_note(EVIL, EVIL, EVIL + "z" * 700)],
    }
    return FullBoard().write(
        folder.fill((0, 1), setting=EVIL, described={"dataset|": "<i>\n|"}, **said).root
    )


def test_markup_from_records_is_inert(hostile):
    text = hostile.read_text()
    assert set(re.findall(r"</?\w+", text)) == {"<details", "</details", "<summary", "</summary"}
    assert (
        not re.search(r"^# (b|<|&lt;)", text, re.M)
        and r"\# b \`c\` \[d\](javascript:e) \*f\*" in text
    )
    for table in ("**Ranking**", "**AUC by attack**", "**At a glance**"):
        assert len(rows_of(text, table)) == 2  # no cell breaks its row


def test_the_board_links_the_plots_it_writes_by_names_without_markup(hostile):
    links = re.findall(r"!\[(?:\\.|[^\]])*\]\(([^)]+)\)", hostile.read_text())
    assert len(links) == 2 and all(re.fullmatch(r"[a-z0-9-]+\.png", link) for link in links)
    assert all((hostile.parent / link).read_bytes()[:4] == b"\x89PNG" for link in links)
    assert all(
        (hostile.parent / link).with_suffix(".svg").read_bytes()[:5] == b"<?xml" for link in links
    )


def test_a_board_is_one_page_however_many_settings_and_rows(tmp_path):
    rows = {"none": (2.0, 0.9), **{f"d{i:02}": (1.0 - i / 30, 0.8) for i in range(12)}}
    folder = Cells(tmp_path / "r", {f"s{i:02}": rows for i in range(9)}, seeds=range(2))
    text = MarkdownBoard().write(folder.root, plots=False).read_text()
    assert (
        text.count("\n")
        <= MOST_LINES
        < FullBoard().write(folder.root, False).read_text().count("\n")
    )
    shown = text.count("**At a glance**")
    assert 1 < shown < 9
    assert f"{9 - shown} more settings and coalitions are in the full board." in text
    first = of_defense(text, "**At a glance**")
    assert len(first) == 4 and {"none (undefended)", "d11"} < set(first)
    assert "9 more rows are in the full board." in text


def test_a_fold_is_html_around_markdown():
    text = render(
        [Fold((Words("Ours: "), EVIL), (Note("one"), Fold(EVIL, (Note("two"),)))), Note("after")]
    )
    assert (
        re.findall(r"<[^>]*>", text)
        == ["<details>", "<summary>", "</summary>"] * 2 + ["</details>"] * 2
    )
    assert not re.search(r"[*`|_\[\]]", re.sub(r"&#\d+;", "", text))


def test_a_defense_that_claims_an_epsilon_on_every_seed_has_it_in_its_row(tmp_path):
    folder = Folder(
        tmp_path / "r", dict.fromkeys(("dp", "two", "half", "odd"), 0.5), ("fedmia-ii",)
    )
    for seed in range(2):
        unit = {"delta": 1e-5, "neighbours": "<b>|ex", "sampling": "shuffled"}
        said = {
            "dp": {"epsilon": 7.5 + seed / 2, "epsilon if replaced": 1029.0502, **unit},
            "two": {"A 1: epsilon": 2.0, "B 2: epsilon": [3.5, 1500.0], **unit},
            "half": {"epsilon": 1.0, "delta": 1e-5, **(unit if seed else {})},
            "odd": {"epsilon": "small", **unit},
        }
        for label, facts in said.items():
            folder.add(label, "fedmia-ii", seed, facts=facts)
    unit = "\u03b4 = 1e-05: &lt;b&gt;\\|ex, shuffled"
    assert {d: r["claims"] for d, r in of_defense(board(folder), "**Ranking**").items()} == {
        "half": "",
        "odd": "",
        "dp": f"\u03b5 \u2264 8 (1,030 if replaced), {unit}",
        "two": f"\u03b5 \u2264 2, {unit}; \u03b5 \u2264 1,500, {unit}",
    }
