"""Figures of documents come out of committed boards and simulations (``docs/make.py``), and what sentences say of them holds."""

from __future__ import annotations

import importlib.util
import re
from itertools import islice
from pathlib import Path

import pytest

from fedbench.leaderboard.claims.load import load_papers
from fedbench.leaderboard.simulations import accuracy, gate, ranks, tf01, tf01_small, worst_case

DOCS = Path(__file__).parent.parent / "docs"
BOARD = """# A board
## Setting iid
### Coalition pair, server view

**AUC by attack** against outsiders

| #   | defense           |              a |     b (finds nothing) | accuracy (%) |
|:----|:------------------|---------------:|----------------------:|-------------:|
| 1-2 | none (undefended) | **0.812 ± 0.015** |         0.500 ± 0.000 |   88.0 ± 1.0 |
| 1-2 | mix\\_up           | 0.100 \\[0.05, 0.30\\] turned | n/a |         87.5 |

rank correlation 0.80
"""


@pytest.fixture
def make(tmp_path):
    spec = importlib.util.spec_from_file_location("make", DOCS / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.BOARDS = tmp_path
    (tmp_path / "demo.md").write_text(BOARD)
    return module


FROM = "<!-- from: demo | iid | pair | server | AUC by attack -->\n"


def test_the_committed_documents_are_what_their_templates_and_the_boards_say(make, monkeypatch, capsys):
    make.BOARDS = DOCS.parent / "leaderboard" / "boards"
    monkeypatch.setattr("sys.argv", ["make.py", "--check"])
    assert make.main() == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{demo | iid | pair | server | AUC by attack | none | a}}", ".812"),
        (FROM + "{{none | a | ±}} {{mix_up | a | ±}} {{mix_up | a}}", ".812 ± .015 .100 [0.05, 0.30] .100"),
        (FROM + "{{none | b}} {{none | accuracy}} {{none | # | text}}", ".500 88.0 1-2"),
        (FROM + "<!-- holds: {{none | a}} > {{none | b}} -->\nkept", "kept"),
        ("{{said: demo | rank correlation ([\\d.]+)}}", "0.80"),
    ],
)
def test_numbers_come_from_the_board(make, template, text):
    assert make.rendered(template, "x.md.in") == text + "\n"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (FROM + "{{none | c}}", "x.md.in:2: demo.md, AUC by attack has no column 'c'; it has #, defense, a, b, accuracy"),
        (FROM + "{{hamp | a}}", "has no row 'hamp'; it has none, mix_up"),
        (FROM + "{{mix_up | b}}", "'n/a' holds no number"),
        (FROM + "{{mix_up | accuracy | ±}}", "has no interval"),
        (FROM + "<!-- holds: {{none | a}} < {{none | b}} -->", "no longer true: .812 < .500"),
        (FROM + "<!-- holds: {{none | a}} = 3 -->", "is no comparison"),
        ("{{demo | iid | pair | client | AUC by attack | none | a}}", "demo.md has no table 'AUC by attack' under iid / pair"),
        ("{{gone | iid | pair | server | AUC by attack | none | a}}", "there is no committed board gone.md; there are demo"),
        ("{{none | a}}", "2 parts of board"),
        ("{{said: demo | hypervolume (.*)}}", "nothing in demo.md"),
    ],
)
def test_a_mistake_is_said_with_file_and_line(make, template, problem):
    with pytest.raises(make.Mistake) as error:
        make.rendered(template, "x.md.in")
    assert problem in str(error.value) and str(error.value).startswith("x.md.in:")


PAPER = """paper: Demo
sections:
  here: {suite: demo, setting: iid, coalition: pair, view: server}
  there: {suite: later, setting: iid, coalition: pair, view: server}
differs: {demo: "all | of_it.", later: most of it.}
claims:
  - id: so
    text: It is *so*.
    place: Table 1
    where: [here, there]
    holds: [{below: {measure: worst-auc, row: mixup, value: 0.6}}]
"""
JUDGED = """
## Claims of the papers

**Claims of Demo**

| id   | claim | place   | verdict      | found            |
|:-----|:------|:--------|:-------------|:-----------------|
| so   | old   | Table 1 | contradicted | a \\| b .7 \\_ c |
"""


FOLDED = """# A board

**At a glance**: an\\_iid, coalition pair, server view

| #   | defense           |   worst case AUC |
|:----|:------------------|-----------------:|
| 1   | none (undefended) | 0.700 ± 0.010 a  |

""" + BOARD.removeprefix("# A board\n").replace("**AUC by attack**", "<details>\n<summary>Attacks</summary>\n\n**AUC by attack**")


def test_the_first_screen_and_what_is_folded_behind_it_have_their_places(make, tmp_path):
    (tmp_path / "folded.md").write_text(FOLDED + "\n</details>\n")
    glance = "{{folded | an_iid | pair | server | At a glance | none | worst case AUC | ±}}"
    assert make.rendered(glance, "x.md.in") == ".700 ± .010\n"
    assert make.rendered("{{folded | iid | pair | server | AUC by attack | none | a}}", "x.md.in") == ".812\n"


@pytest.fixture
def claims(make, tmp_path, monkeypatch):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "demo.yaml").write_text(PAPER)
    monkeypatch.setattr(make, "shipped_papers", lambda: load_papers(tmp_path / "claims"))
    return make


def test_claims_are_a_table_with_the_verdicts_of_committed_boards(claims, tmp_path):
    (tmp_path / "demo.md").write_text(BOARD + JUDGED + "\n## Provenance\n\n| id | x |\n|----|---|\n| so | y |\n")
    lines = claims.rendered("before\n<!-- claims: demo -->\nafter\n", "x.md.in").splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert lines[1] == "1 claims; 2 verdicts: 1 contradicted, 1 no board yet."
    board = "[demo](../leaderboard/boards/demo.md)"
    assert f"| It is \\*so\\*. | Table 1 | {board} | contradicted | a \\| b .7 \\_ c |" in lines
    assert "| It is \\*so\\*. | Table 1 | later | no board yet |  |" in lines
    assert "* demo: all \\| of\\_it." in lines


def test_a_board_without_claims_is_none_yet(claims):
    assert "2 verdicts: 2 no board yet." in claims.rendered("<!-- claims: demo -->", "x.md.in")


def test_claims_of_nobody_are_a_mistake(claims):
    with pytest.raises(claims.Mistake, match=r"x\.md\.in:1: there are no claims of gone; there are some of demo"):
        claims.rendered("<!-- claims: gone -->", "x.md.in")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("module", "rows"), [(worst_case, 1), (ranks, 2), (accuracy, None), (tf01, 3), (tf01_small, 4)])
def test_the_committed_simulations_are_what_their_commands_print(module, rows):
    """The first ``rows`` of those that take minutes, up to the last digits, which another type of CPU may round otherwise."""
    old = committed(module).splitlines()
    end = None if rows is None else next(i for i, line in enumerate(old) if line.startswith("|--")) + 1 + rows
    new = list(islice(module.tables(module.REPETITIONS), end))
    assert len(new) == len(old[:end])
    agree("\n".join(new), "\n".join(old[:end]))


@pytest.mark.slow
def test_the_gates_quick_rows_are_what_its_command_prints():
    """Those of thousands of comparisons take minutes: `python -m fedbench.leaderboard.simulations.gate` prints them, too."""
    quick = tuple(f"| {design} |" for design in gate.QUICK_DESIGNS)
    rows = [line for line in gate.tables(gate.REPETITIONS, gate.QUICK_DESIGNS) if line.startswith(quick)]
    kept = [line for line in committed(gate).splitlines() if line.startswith(quick)]
    assert len(rows) == 30
    agree("\n".join(rows), "\n".join(kept))


def committed(module) -> str:
    """The page that holds what a simulation printed."""
    return (DOCS / "simulations" / f"{module.__name__.rpartition('.')[2]}.md").read_text()


def agree(printed: str, committed: str) -> None:
    """The words are the same, the numbers up to the last digits."""
    words = [re.split(r"([-+]?\d[\d,.]*)", text) for text in (printed, committed)]
    assert words[0][::2] == words[1][::2]
    new, old = ([float(w.replace(",", "").rstrip(".")) for w in of[1::2]] for of in words)
    assert new == pytest.approx(old, rel=0.02, abs=0.2)
