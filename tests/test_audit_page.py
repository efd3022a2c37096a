"""The auditor's page: numbers are the board's with their intervals, and it fits on two sheets."""

from __future__ import annotations

import re
import shutil

import pytest
from boards import Folder
from site_boards import marked

from fedbench.core.api import load
from fedbench.core.contract.board import Table
from fedbench.leaderboard.audit_blocks import audit_blocks
from fedbench.leaderboard.audit_page import BROWSERS
from fedbench.leaderboard.document import source_of

LEAKS = {"none": 1.0, "mixup": 0.6, "free-rider": 0.0}
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def results(tmp_path):
    """A defense, the undefended row and a control, two attacks, three seeds."""
    folder = Folder(tmp_path / "results", LEAKS).fill(setting=HOSTILE)
    return marked(folder, f"Audit {HOSTILE}")


@pytest.fixture
def without_browser(monkeypatch):
    monkeypatch.setenv("PATH", "")


def page_of(results):
    return (results / "leaderboard" / "audit.html").read_text()


def tables_of(results, **more):
    """Title -> table."""
    blocks = audit_blocks(source_of(results), **more)
    return {block.title: block for block in blocks if isinstance(block, Table)}


def test_numbers_are_the_boards_and_none_stands_without_its_interval(
    results, without_browser, words_of
):
    words = words_of("leaderboard", results, "--report", "audit", "--set", "records=3")
    assert "audit.html alone: no browser that prints a PDF" in words
    rows = load(results).rows
    rows = rows if isinstance(rows, list) else rows.to_dict("records")
    page = page_of(results)
    for row in rows:
        assert f"{row['worst']:.3f}" in page
    numbers = re.findall(r'<td class="right">(0\.\d+[^<]*)', page)
    assert len(numbers) == len(rows)
    assert [text for text in numbers if " ± " not in text and "[" not in text] == []
    assert "<strong>is leaked</strong> without a defense" in page
    assert "coalition view</td><td" in page and "<strong>no</strong>" in page
    assert HOSTILE not in page and "&lt;script&gt;alert(1)" in page


def test_a_single_training_is_said_to_be_one(finished, tmp_path, without_browser, words_of):
    results = shutil.copytree(finished, tmp_path / "r")
    words_of("leaderboard", results, "--report", "audit")
    page = page_of(results)
    assert "<strong>No leak was shown</strong> without a defense: of 2 attacks none" in page
    assert "cover candidates of one training alone (trainings: 1" in page
    assert "trainings (seeds): 0" in page


def test_a_paragraph_follows_a_table(tmp_path, without_browser, words_of):
    facts = {"epsilon": 2.0, "delta": 1e-5, "neighbours": "example without its gradient"}
    results = marked(Folder(tmp_path / "results", LEAKS).fill(facts=facts))
    words_of("leaderboard", results, "--report", "audit")
    note = r"</table>\s*<p>No lower bound on epsilon was computed"
    assert re.search(note, page_of(results))


def test_cells_without_scores_are_counted_over_all_rows(tmp_path):
    folder = Folder(tmp_path / "results", LEAKS).fill()
    for defense in ("mixup", "free-rider"):
        folder.add(defense, "loss-series", 0, "skipped", reason="no shadow models")
    results = marked(folder)
    assert "Cells without scores: 2 skipped." in str(audit_blocks(source_of(results)))


def test_narrower_intervals_are_promised_of_several_trainings_alone(tmp_path, results):
    single = marked(Folder(tmp_path / "single", LEAKS).fill(seeds=(0,)))
    pages = [str(audit_blocks(source_of(root))) for root in (single, results)]
    assert ["about half as wide" in page for page in pages] == [False, True]
    assert ["how far trainings differ is in no interval" in page for page in pages] == [True, False]


def test_exposed_records_are_those_above_most_non_members(results):
    table = tables_of(results, n_records=5)["Records"]
    section = max(source_of(results).sections, key=lambda s: s.view)
    row = section.base
    attack = section.comparison.worst_cases.of("none").worst.attack
    assert attack in table.caption[-2]
    below = {}
    for seed, targets in row.entries[attack].targets.items():
        for target, c in row.entries[attack].records[seed].candidates_of(targets).items():
            for sample, kind, score in zip(c.ids, c.kind, c.scores, strict=True):
                if kind == 0:
                    outside = c.scores[c.kind == 1]
                    counts = below.setdefault((f"client {target}", str(sample)), [])
                    counts += [score > value for value in outside]
    shares = {place: sum(counts) / len(counts) for place, counts in below.items()}
    for client, record, share, n, _ in table.rows:
        assert share.mean == pytest.approx(shares[client, record])
        assert int(n.replace(",", "")) == len(below[client, record])
        assert share.ends[0] <= share.mean <= share.ends[1]
    assert "leave out how far trainings differ" in str(table.caption)
    lows = [line[2].ends[0] for line in table.rows]
    assert lows == sorted(lows, reverse=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("records", "--set records: expected NAME=VALUE, like records=5"),
        ("records=99", "less than or equal to 20; the parameters of report 'audit'"),
        ("rows=1", "--set rows: Extra inputs are not permitted; the parameters of"),
    ],
)
def test_a_mistaken_parameter_is_explained(results, text, message, words_of):
    assert message in words_of("leaderboard", results, "--report", "audit", "--set", text, status=2)


@pytest.mark.slow
def test_the_longest_page_prints_on_two_sheets(tmp_path, words_of):
    if not any(map(shutil.which, BROWSERS)):
        pytest.skip("needs Chromium: apt-get install chromium")
    leaks = dict.fromkeys(["none", *(f"a-defense-with-a-name-{i}" for i in range(12))], 0.5)
    folder = Folder(tmp_path / "results", leaks)
    for setting in ("one", "two", "three", "four", "five", "six", "seven", "eight"):
        folder.fill(setting=setting)
    results = marked(folder)
    options = ("--report", "audit", "--set", "records=10")
    assert "audit.pdf" in words_of("leaderboard", results, *options)
    pdf = (results / "leaderboard" / "audit.pdf").read_bytes()
    assert len(re.findall(rb"/Type */Page\b", pdf)) == 2
