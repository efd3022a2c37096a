"""Reports by name, what the terminal shows of a board, `fedbench show`, and its figures."""

from __future__ import annotations

import subprocess
import sys

import pytest
from boards import Folder, blocks_of
from claim_boards import STRENGTHS, TUNING, Cells
from fake_packages import install

import fedbench
from fedbench.core.cli.main import main
from fedbench.core.report import Image, opened
from fedbench.core.store.reading import load_records
from fedbench.core.store.results import write_marker
from fedbench.leaderboard.board import MarkdownBoard

LONG = "a-defense-of-a-name-that-is-far-too-long-for-a-table-" + "x" * 60 + "-end"

REPORT = """
    from fedbench.core import Component, Report, Summary, hookimpl
    from fedbench.core.report import Table, opened
    from fedbench.leaderboard.document import document, source_of

    class Page(Report):
        def write(self, results, plots=True):
            path = results / "leaderboard" / "index.html"
            path.parent.mkdir(exist_ok=True)
            blocks = opened(document(source_of(results), plots))
            path.write_text("".join(f"<h2>{b.title}</h2>" for b in blocks if isinstance(b, Table)))
            return path

        def summary(self, results):
            return Summary(["pages"], [["x" * 150]])

    @hookimpl
    def fedbench_reports():
        yield Component("NAME", "my_report:Page", "a page")
"""


@pytest.fixture
def results(tmp_path):
    """Rows of long names, one of them with a failure, and the folder's marker."""
    folder = Folder(
        tmp_path / "results", {"none": 1.0, LONG: 0.2, f"{LONG}2": 0.9, "free-rider": 0.0}
    ).fill((0, 1))
    folder.add(
        f"{LONG}2", folder.attacks[0], 0, "failed", reason="ValueError: " + "out of ideas " * 40
    )
    write_marker(folder.root, {"suite": "demo", "cells": [], "title": "T"})
    return folder.root


@pytest.fixture
def provide(tmp_path, monkeypatch):
    def provided(name, old="", new=""):
        monkeypatch.delitem(sys.modules, "my_report", raising=False)  # another test's
        source = REPORT.replace("NAME", name).replace(old or "NAME", new)
        monkeypatch.syspath_prepend(str(install(tmp_path / "site", "my_report", source)))

    return provided


# ---------------------------------------------------------------- reports


def test_a_report_of_another_package_is_called_by_its_name_beside_ours(results, provide, words_of):
    provide("html")
    reports = ("--report", "html", "--report", "board")
    said = words_of("leaderboard", results, *reports, "--no-plots")
    assert "html: " in said and f"board: {results / 'leaderboard' / 'board.md'}" in said
    assert "pages " + "x" * 150 in said and "worst AUC" in said
    page = (results / "leaderboard" / "index.html").read_text()
    assert page.startswith("<h2>At a glance</h2><h2>Ranking</h2>")
    board = (results / "leaderboard" / "board.md").read_text()
    assert board.startswith("# T\n")
    assert "placebo" not in board + said  # it has none


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        ("board", "board", "report 'board' is claimed by"),
        (
            "html",
            "htlm",
            "unknown report 'htlm' - did you mean 'html'?; the reports are html, audit, board",
        ),
    ],
)
def test_a_report_that_cannot_be_told_is_refused_before_anything_is_written(
    results, provide, words_of, name, asked, said
):
    provide(name)
    output = words_of("leaderboard", results, "--report", asked, status=2)
    assert said in output and not (results / "leaderboard").exists()
    assert (f"fedbench-privacy {fedbench.__version__}" in output and "my_report 1.0" in output) == (
        name == "board"
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("return path", "return None", "write returned NoneType"),
        ("path = results", "raise SystemExit(3); path = results", "it called sys.exit(3)"),
    ],
)
def test_a_report_that_fails_costs_itself_alone(results, provide, words_of, old, new, why):
    provide("html", old, new)
    reports = ("--report", "html", "--report", "board")
    said = words_of("leaderboard", results, *reports, "--no-plots", status=2)
    assert "report 'html' (" in said and why in said and "board: " in said


@pytest.mark.slow
def test_a_board_is_made_without_torch(results):
    code = f"""
import sys
from pathlib import Path
from fedbench.core.store.results import write_marker
from fedbench.core.store.reading import load_records
from fedbench.leaderboard.board import MarkdownBoard
MarkdownBoard().write(Path({str(results)!r}), plots=False)
assert "torch" not in sys.modules, "torch"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------- in a terminal


def test_a_summary_has_every_number_and_name_in_a_pipe(results, capsys):
    summary = MarkdownBoard().summary(results)
    assert main(["leaderboard", str(results), "--no-plots"]) == 0
    lines = [
        line for line in capsys.readouterr().out.splitlines() if not line.startswith("board: ")
    ]
    assert LONG in "".join(lines) and LONG in (results / "leaderboard" / "board.md").read_text()
    for row, line in zip(summary.rows, lines[2:], strict=False):
        numbers = [
            cell
            for name, cell in zip(summary.headers, row, strict=True)
            if name not in ("defense", "by", "no score")
        ]
        assert all(cell in line for cell in numbers), (numbers, line)
    assert any("1 failed" in line for line in lines)


def test_show_lists_cells_with_the_key_of_each_and_one_record_in_full(results, words_of):
    said = words_of("show", results)
    loaded = load_records(results)
    assert all(r.stem[-12:] in said for r in loaded) and "ValueError: out" in said
    (failed,) = (r.stem for r in loaded if r.record.outcome == "failed")
    assert words_of("show", results, failed).count("out of ideas") == 40


# ---------------------------------------------------------------- figures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "made"),
    [
        ("tuned", lambda root: Cells(root, {"iid": STRENGTHS}, tuning=TUNING)),
        (
            "sweep",
            lambda root: Folder(
                root, {"none": 1.0, "mixup-1": 0.8, "mixup-2": 0.3}, n_ofl=400
            ).fill(),
        ),
    ],
)
def test_the_figures_of_a_board_are_drawn(own, made, tmp_path):
    blocks = opened(blocks_of(made(tmp_path / "r"), plots=True, analyses=["tuned", "sweep"]))
    assert {min(b.files).partition("-")[0] for b in blocks if isinstance(b, Image)} == {
        "roc",
        "tradeoff",
        own,
    }
