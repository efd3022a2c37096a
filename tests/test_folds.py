"""Folds of a board: what is in them, summaries that stay text, reports that know none; and tables of nothing in a line."""

from __future__ import annotations

import re

import pytest
from boards import LEAK, Folder, blocks_of, board, rows_of, sections_of

from fedbench.core import Bullets, Column, Fold, Heading, Image, Note, Numbers, Quote, Shortfall, Table, Value, Words, opened
from fedbench.leaderboard.analyses import Drawer, drawn
from fedbench.leaderboard.figures.easel import Easel
from fedbench.leaderboard.markdown.render import render
from fedbench.leaderboard.tables.folds import fold, folded, in_words

EVIL = "</summary><script>x</script> **b** [c](d) `e` | _f_\n\n# g"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("folds") / "results", LEAK).fill()


def words(text):
    """A text as it reads."""
    return "".join(map(words, text)) if isinstance(text, tuple) else text if isinstance(text, str) else text.text


def test_a_report_that_knows_no_folds_gets_every_block_and_none(folder):
    flat, folds = blocks_of(folder), blocks_of(folder, folds=True)
    assert opened(folds) == flat and not any(isinstance(b, Fold) for b in flat) and any(isinstance(b, Fold) for b in folds)
    inner = Fold("b", (Note("2"), Fold("c", (Note("3"),))))
    assert opened([Note("1"), inner, Note("4")]) == [Note(str(i)) for i in (1, 2, 3, 4)]


def test_a_fold_is_html_around_markdown_and_its_summary_stays_text():
    block = Fold((Words("Ours: "), EVIL, Words("c", "code")), (Note("one"), Fold(EVIL, (Bullets(("two",)),))))
    text = render([block, Note("after")])
    start, summary, rest = text.split("\n", 2)
    assert start == "<details>" and rest.startswith("\none\n\n<details>\n<summary>")
    assert text.endswith("</details>\n\nafter\n")
    assert summary.startswith("<summary>Ours: &#60;/summary&#62;&#60;script&#62;x")
    assert summary.endswith("<code>c</code></summary>")
    assert re.findall(r"<[^>]*>", text) == [
        "<details>", "<summary>", "<code>", "</code>", "</summary>", "<details>", "<summary>", "</summary>",
        "</details>", "</details>",
    ]  # fmt: skip
    inside = summary.removeprefix("<summary>").removesuffix("<code>c</code></summary>")
    assert not re.search(r"[*`|_\[\]#]", re.sub(r"&#\d+;", "", inside))


def test_hostile_names_stay_text_on_a_whole_board(tmp_path):
    made = Folder(tmp_path / "r", {"none": 1.0, EVIL: 0.2}, attacks=("a|<b>",)).fill(range(2), setting=EVIL)
    text = board(made)
    assert "<script" not in text and "<b>" not in text
    assert set(re.findall(r"</?\w+>", text)) == {"<details>", "</details>", "<summary>", "</summary>"}
    glance = rows_of(text, "**At a glance**")
    assert len(glance) == 2 and len({len(row) for row in glance}) == 1


def test_a_quote_in_a_summary_is_cut_and_a_long_list_of_tables_counted():
    assert len(render([Fold(Quote("x" * 900, 50), ())]).splitlines()[1]) < 80
    tables = [Table(title=f"T{i}", columns=(Column(name="c"),), rows=((Words("1"),),)) for i in range(10)]
    (made,) = fold("Lead", tables)
    assert words(made.summary) == "Lead: T0; T1; T2; T3; T4; T5; T6; T7; 2 more tables" and fold("Lead", []) == []
    blocks = folded([Heading(2, "h"), Note("n"), Note("m"), Heading(3, "i"), tables[0]])
    assert [type(b) for b in blocks] == [Heading, Fold, Heading, Fold] and words(blocks[3].summary) == "i: T0"


def test_figures_inside_folds_are_drawn(folder):
    images = [b for b in opened(blocks_of(folder, plots=True, folds=True)) if isinstance(b, Image)]
    assert len(images) == 2 and all(image.files for image in images)
    assert not any(isinstance(b, Image) for b in blocks_of(folder, plots=True, folds=True))  # no figure on the first screen


def test_an_analysis_may_fold_what_it_draws_and_a_bad_one_costs_itself(folder):
    (section,) = sections_of(folder)

    class Own:
        place = "attacks"
        blocks = (Fold("mine", (Note("n"), Numbers("nothing"))),)

        def draw(self, section, label):
            return self.blocks

    drawer = Drawer(label="own", analysis=Own())
    assert drawn(drawer, section, Easel()) == [Fold("mine", (Note("n"),))]  # there is nothing under that label
    for bad in (Fold(3, ()), Fold("x", (Note(3),)), Fold("x", (Image("a", {}),))):
        Own.blocks = (bad,)
        (note,) = drawn(drawer, section, Easel())
        assert "could not be drawn" in words(note.text)


# ---------------------------------------------------------------- tables of nothing


def table_of_nothing(content, **more):
    columns = (Column(name="defense", align="left"), Column(name="a"), Column(name="b"))
    return Table(title="T", columns=columns, rows=(("x", content, None), ("y", None, "")), **more)


def test_a_table_without_a_number_is_a_line_that_says_why():
    nothing = table_of_nothing(Value(mean=None), empty="nobody asked")
    assert render(in_words([nothing])) == "**T**: n/a throughout, since nobody asked.\n"
    (made,) = in_words([Fold("f", (table_of_nothing(None),))])
    assert render([made]).count("n/a throughout, since no record has what it needs") == 1


FAILED = Value(mean=None, outcomes=(Shortfall("failed", 1, 3),))


@pytest.mark.parametrize("content", [Value(mean=0.0), FAILED, Words("no"), "told"])
def test_a_table_that_says_anything_stays(content):
    table = table_of_nothing(content)
    assert in_words([table]) == [table]


def test_a_section_without_a_leak_has_no_empty_tables(tmp_path):
    made = Folder(tmp_path / "r", {"none": 0.0, "a": 0.0}).fill()
    text = board(made)
    assert "**AUC by group of non-members**: n/a throughout, since no attack beats chance on the undefended run." in text
    assert "No attack beats chance on the undefended federation: there is no leak for a defense to stop." in text
