"""The summary of a run and `fedbench show` in a hundred columns, whatever things are called."""

from __future__ import annotations

import json
import re
import sys

import pytest
from boards import Folder
from click.testing import CliRunner
from fake_packages import install
from hypothesis import given
from hypothesis import strategies as st

from fedbench.core.cli import table
from fedbench.core.cli.main import cli, main
from fedbench.core.words.narrow import columns, wrapped
from fedbench.leaderboard.board import MarkdownBoard

LONG = "a-defense-of-a-name-that-nobody-would-ever-write-into-a-table-" + "x" * 60 + "-end"
WIDE = "\u6f22\u5b57" * 40


@pytest.fixture
def results(tmp_path):
    """Rows of long names, one of them with failures."""
    leak = {"none": 1.0, LONG: 0.2, WIDE: 0.4, f"{LONG}2": 0.9, "dp": 0.1, "free-rider": 0.0}
    folder = Folder(tmp_path / "results", leak).fill(seeds=(0, 1))
    folder.add(f"{LONG}2", folder.attacks[0], 0, "failed", reason="ValueError: " + "out of ideas " * 40)
    (folder.root / "fedbench.json").write_text(json.dumps({"schema_version": 2, "suite": "demo", "cells": [], "title": "T"}))
    return folder


def test_a_summary_fits_a_hundred_columns_and_numbers_stay_whole(results, capsys):
    assert main(["leaderboard", str(results.root), "--no-plots"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("board: ")]
    assert max(map(columns, lines)) <= 100
    heading, header, *rows = lines
    assert re.fullmatch(r"\S+, coalition \S+, view server", heading)
    wanted = ["#", "defense", "worst AUC", "by", "mean AUC", "TF01 %", "delta-acc", "runtime", "no score"]
    assert re.split(r" {2,}", header) == wanted
    summary = MarkdownBoard().summary(results.root)
    for row, line in zip(summary.rows, rows, strict=False):
        numbers = [cell for name, cell in zip(summary.headers, row, strict=True) if name not in ("defense", "by", "no score")]
        assert all(cell in line for cell in numbers), (numbers, line)
    assert sum("a-def" in line and "\u2026" in line for line in rows) == 2
    assert any("1 failed" in line for line in rows)
    assert LONG in (results.root / "leaderboard" / "board.md").read_text()


def test_on_a_wide_terminal_names_are_whole(results, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "400")
    table.show_fitted(["defense", "AUC"], [[LONG, "0.5"]], ["one"])
    assert capsys.readouterr().out.splitlines()[2] == f"{LONG}  0.5"


def test_rows_of_several_headings_stand_below_each_in_the_same_columns(capsys):
    table.show_fitted(["defense", "AUC"], [["a", "0.5"], ["a-long-one", "0.6"], ["c", "0.7"]], ["one", "one", "two"])
    assert capsys.readouterr().out == (
        "one\ndefense     AUC\na           0.5\na-long-one  0.6\n\ntwo\ndefense     AUC\nc           0.7\n"
    )


OLDER = """
    from pathlib import Path
    from fedbench.core import Component, Report, Summary, hookimpl

    class Page(Report):
        def write(self, results, plots=True):
            path = results / "page.txt"
            path.write_text("")
            return path

        def summary(self, results):
            return SUMMARY

    @hookimpl
    def fedbench_reports():
        yield Component("page", "my_page:Page", "a page")
"""


@pytest.mark.parametrize(("summary", "status", "said"), [
    ('Summary(["pages"], [["x" * 150]])', 0, "pages\n" + "x" * 150 + "\n"),
    ('Summary(headers=["a", "b"], rows=[["1", "2"]])', 0, "a  b\n1  2\n"),
    ('Summary(["name"], [["x" * 150]], headings=["h"], notes=["n " * 60])', 0,
     "h\nname\n" + "x" * 50 + "\u2026" + "x" * 49 + "\n" + "n " * 49 + "n\n  n"),
    ('Summary(["name"], [["x"]], headings=["h", "i"])', 2, "its summary has 1 rows and 2 headings, expected one a row"),
])  # fmt: skip
def test_reports_of_others_have_a_summary_as_before_or_with_headings(results, tmp_path, monkeypatch, summary, status, said):
    monkeypatch.delitem(sys.modules, "my_page", raising=False)
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", "my_page", OLDER.replace("SUMMARY", summary))))
    result = CliRunner().invoke(cli, ["leaderboard", str(results.root), "--report", "page"])
    assert result.exit_code == status and said in result.output, result.output


def test_show_lists_cells_in_a_hundred_columns_with_the_key_of_each(results):
    output = CliRunner().invoke(cli, ["show", str(results.root)]).output
    header, *rows = output.splitlines()
    assert header.split() == ["outcome", "AUC", "TF01", "%", "cell", "reason"] and max(map(columns, output.splitlines())) <= 100
    stems = sorted(p.stem for p in (results.root / "records").glob("*.json"))
    assert len(rows) == len(stems)
    for row, stem in zip(rows, stems, strict=True):
        assert stem[-12:] in row
    assert sum(row.startswith("ok ") for row in rows) == len(rows) - 1 and "ValueError: out" in output
    without = CliRunner().invoke(cli, ["show", str(results.root), "none-"]).output.splitlines()
    assert "reason" not in without[0] and len(without) > 2


def test_show_of_one_record_breaks_long_lines(results):
    (failed,) = (p.stem for p in (results.root / "records").glob("*.json") if json.loads(p.read_text())["outcome"] == "failed")
    lines = CliRunner().invoke(cli, ["show", str(results.root), failed]).output.splitlines()
    assert max(map(columns, lines)) <= 100
    assert " ".join(line.strip() for line in lines).count("out of ideas") == 40


@given(st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs"))), st.integers(6, 40))
def test_wrapped_lines_fit_and_keep_every_letter(text, room):
    lines = wrapped(text, room)
    assert max(map(columns, lines)) <= room
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
