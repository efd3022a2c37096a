"""What a reader of a row must know stands under the ranking: remarks of defenses, from records alone."""

from __future__ import annotations

import re

from boards import Folder, blocks_of, board, sections_of, table_of

from fedbench.core import Table
from fedbench.core.store.remarks import remark_note, remarks_in
from fedbench.leaderboard.markdown.escape import inline
from fedbench.leaderboard.statistics.facts import claims
from fedbench.leaderboard.tables.ranking import LONGEST_REMARK, MAX_REMARKS

FACTS = "What the defenses say of their runs"


def folder_of(tmp_path, said, seeds=(0, 1, 2), leak=None, **more) -> Folder:
    """Rows none, a and b; ``said``: defense and seed -> what else its record says."""
    made = Folder(tmp_path, leak or {"none": 1.0, "a": 0.5, "b": 0.2})
    for seed in seeds:
        for defense in made.leak:
            for attack in made.attacks:
                made.add(defense, attack, seed, **said(defense, seed), **more)
    return made


def footnotes(folder) -> list[str]:
    """Those of the ranking that are led by a row."""
    return [inline(note) for note in table_of(folder, "Ranking").footnotes if isinstance(note, tuple)]


def test_a_remark_is_one_footnote_of_all_rows_that_it_is_made_of_over_all_seeds(tmp_path):
    def said(defense, seed):
        if defense == "none":
            return {"notes": ["a note of something else"]}
        notes = ["a note of something else", remark_note(defense, "iid", "30 rounds are few")]
        return {"notes": notes, "facts": {"remarks": [f"{defense} lost seed {seed // 2}"], "n": seed}}

    folder = folder_of(tmp_path, said)
    lost = [f"{d}: {d} lost seed {seed}" for d in "ba" for seed in (0, 1)]
    assert footnotes(folder) == ["b, a: 30 rounds are few", *lost]
    text = board(folder)
    assert text.count("30 rounds are few") == 1 and text.count("lost seed") == 4 and "something else" not in text
    assert [row[1] for row in table_of(folder, FACTS).rows] == ["n"]  # what both say; the remarks are no row of it
    assert text.index("a lost seed 1") < text.index(FACTS)


def test_a_row_with_many_remarks_has_a_few_and_the_number_of_the_others(tmp_path):
    def said(defense, seed):
        return {"facts": {"remarks": [f"sentence {i} of {seed}" for i in range(3)]} if defense == "a" else {}}

    folder = folder_of(tmp_path, said)
    expected = [f"a: sentence {i % 3} of {i // 3}" for i in range(MAX_REMARKS)]
    assert footnotes(folder) == [*expected, f"a: {9 - MAX_REMARKS} more of these, which `fedbench show` prints"]
    exactly = folder_of(tmp_path / "x", lambda d, s: {"facts": {"remarks": [f"s {i}" for i in range(MAX_REMARKS)]}})
    assert [note for note in footnotes(exactly) if "more of these" in note] == []


def test_nothing_said_is_no_footnote_and_no_table(tmp_path):
    folder = folder_of(tmp_path, lambda defense, seed: {"facts": {"remarks": []}})
    assert footnotes(folder) == [] and FACTS not in [b.title for b in blocks_of(folder) if isinstance(b, Table)]


def test_what_stands_in_a_record_is_text_and_nothing_else(tmp_path):
    evil = "<script>x</script> ![i](http://e) | **b** `c`\n# d" + "z" * 700

    def said(defense, seed):
        facts = {"a": evil, "b": [1.0, 2.0]}.get(defense)
        return {"facts": {} if facts is None else {"remarks": facts}, "notes": [remark_note(defense, "iid", evil)] * 2}

    folder = folder_of(tmp_path, said)
    (note,) = footnotes(folder)
    assert note.startswith("b, a, none: &lt;script&gt;") and len(note) < LONGEST_REMARK + 100 and "\n" not in note
    assert not re.search(r"<|(?<!\\)[*`\[|#]", note) and f"\n\n{note}\n\n" in board(folder)


def test_a_failed_seed_tells_what_was_known_before_it_was_trained(tmp_path):
    folder = Folder(tmp_path, {"none": 1.0, "a": 0.5}).fill((0, 1))
    for attack in folder.attacks:
        folder.add("a", attack, 2, outcome="failed", reason="x", notes=[remark_note("a", "iid", "P is not known")])
        folder.add("none", attack, 2)
    assert footnotes(folder) == ["a: P is not known"]


def test_a_note_on_another_row_or_setting_is_no_remark_of_this_one(tmp_path):
    def said(defense, seed):
        others = [remark_note(f"{defense}x", "iid", "1"), remark_note(defense, "iid2", "2")]
        return {"notes": [*others, f"defense '{defense}' (p 1): 3"]}

    folder = folder_of(tmp_path, said)
    assert footnotes(folder) == []
    (section,) = sections_of(folder)
    assert [remarks_in(loaded.record) for loaded in section.records[:2]] == [[], []]


def test_a_claim_of_coalitions_with_one_unit_of_privacy_is_that_of_each(tmp_path):
    def said(defense, seed):
        own = {"group 1: epsilon": 4.0, "group 2: epsilon": 8.0, "delta": 1e-5, "unit of privacy": "example"}
        return {"facts": own if defense == "a" else {}}

    (section,) = sections_of(folder_of(tmp_path, said))
    found = {row.label: claims(row) for row in section.rows}
    assert [(c.epsilon, c.delta, c.units) for c in found["a"]] == [
        ((4.0, 4.0), (1e-5, 1e-5), ("example",)), ((8.0, 8.0), (1e-5, 1e-5), ("example",)),
    ]  # fmt: skip
    assert found["b"] == []
