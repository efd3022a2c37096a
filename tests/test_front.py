"""The first screen of a board: one table a section, two sentences that respect noise, everything else folded."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from boards import LEAK, Folder, blocks_of, board, rows_of, sections_of, worlds
from claim_boards import NOBODY, Claimed

from fedbench.core import Table
from fedbench.core.metrics import Interval
from fedbench.leaderboard.statistics.answer import WITHIN, Answer, answer, told_apart
from fedbench.leaderboard.statistics.rivals import Difference
from fedbench.leaderboard.statistics.standing import Standing
from fedbench.leaderboard.tables.front import MOST_NAMED, MOST_ROWS, TITLE, front_blocks, sentences


class Varied(Claimed):
    """``cells`` as in ``Claimed``; ``wobble``: label -> how far its accuracy goes up and down from seed to seed."""

    wobble: dict[str, float] = {}  # noqa: RUF012

    def _measured(self, defense, attack, seed, targets, ids_from):
        self.accuracy += self.wobble.get(defense, 0.0) * (-1) ** seed
        return super()._measured(defense, attack, seed, targets, ids_from)


def section_of(tmp_path, rows, seeds=range(5), wobble=None, n_ofl=60):
    """One section: label -> (leak, accuracy)."""
    made = type("Made", (Varied,), {"wobble": wobble or {}})
    cells = {"s": {(NOBODY if label == "none" else "pair", label): found for label, found in rows.items()}}
    (section,) = sections_of(made(tmp_path / "r", "demo", cells, ("fedmia-ii", "loss-series"), seeds=seeds, n_ofl=n_ofl))
    return section


def words(text):
    """A text as it reads."""
    return "".join(map(words, text)) if isinstance(text, tuple) else text if isinstance(text, str) else text.text


def said(found):
    return [words(sentence) for sentence in sentences(found)]


# ---------------------------------------------------------------- the answer


def test_the_strongest_within_one_point_is_not_the_strongest_of_all_and_no_floor(tmp_path):
    section = section_of(tmp_path, {
        "none": (2.0, 0.8), "dear": (0.0, 0.7), "shield": (0.3, 0.795), "mixup": (1.0, 0.8), "free-rider": (0.0, 0.8),
        "placebo": (0.0, 0.8),
    })  # fmt: skip
    found = answer(section)
    assert (found.outcome, found.defense.label, found.undefended.label) == ("found", "shield", "none")
    assert found.surely_within and found.tied == () and found.seeds == 5
    assert found.defense == section.standing("shield") and found.difference == section.contest.against("none")["shield"]
    first, second = said(found)
    worst, less = found.defense.worst, found.difference.found
    assert first == (
        f"The strongest defense within one point of the undefended accuracy is shield: worst case AUC of {worst.mean:.3f} ± "
        f"{worst.half_width:.3f} (loss-series), {-less.mean:.3f} ± {less.half_width:.3f} below the "
        f"undefended federation's, at a measured change of accuracy of -0.5 ± {_points(found):.1f} points."
    )  # fmt: skip
    assert second.startswith(f"The undefended federation leaks a worst case AUC of {found.undefended.worst.mean:.3f} ± ")


def _points(found):
    return 100 * found.defense.delta_accuracy.half_width


def test_a_cost_that_the_seeds_do_not_tell_from_more_than_a_point_is_said_so(tmp_path):
    section = section_of(tmp_path, {"none": (2.0, 0.8), "shield": (0.3, 0.795)}, wobble={"shield": 0.02})
    found = answer(section)
    assert found.outcome == "found" and not found.surely_within and found.defense.delta_accuracy.low < -WITHIN
    assert "points, which 5 seeds do not tell from a loss of more than one point." in said(found)[0]


def test_who_is_not_told_from_the_strongest_is_named_and_who_is_told_is_not(tmp_path):
    section = section_of(tmp_path, {"none": (2.0, 0.8), "a": (0.3, 0.8), "b": (0.3, 0.8), "far": (1.5, 0.8), "dear": (0.3, 0.7)})
    found = answer(section)
    first, other = (found.defense.label, *found.tied)
    assert {first, other} == {"a", "b"} and f"; not told apart from {other}." in said(found)[0]
    apart = told_apart(section.contest)
    assert {"a", "b"} not in apart and {"far", "a"} in apart
    assert section.contest.ranks[first] == (1, sum({first, r} not in apart for r in section.contest.ranked))


def test_no_defense_is_an_answer(tmp_path):
    alike = answer(section_of(tmp_path / "alike", {"none": (2.0, 0.8), "idle": (2.0, 0.8)}))
    assert (alike.outcome, alike.defense.label) == ("none told", "idle")
    assert "is shown to leak less than no defense: the lowest is idle with a worst case AUC" in said(alike)[0]
    assert "that is not told from the undefended federation's" in said(alike)[0]
    dear = answer(section_of(tmp_path / "dear", {"none": (2.0, 0.8), "dear": (0.0, 0.5), "less": (0.5, 0.75)}))
    assert (dear.outcome, dear.defense.label) == ("none within", "less")
    assert re.search(r"No defense is within one point .* the nearest, less, costs 5\.0 ± \d\.\d points", said(dear)[0])
    unsure = section_of(tmp_path / "unsure", {"none": (2.0, 0.8), "dear": (0.0, 0.785)}, wobble={"dear": 0.02})
    assert re.search(r"costs 1\.\d ± \d\.\d points, which 5 seeds do not tell from one point, and has", said(answer(unsure))[0])
    worse = answer(section_of(tmp_path / "worse", {"none": (0.5, 0.8), "leaky": (2.0, 0.8)}))
    assert worse.outcome == "none told"  # told, but the other way


def test_where_nothing_leaks_or_nobody_ran_undefended_that_is_said(tmp_path):
    nothing = answer(section_of(tmp_path / "nothing", {"none": (0.0, 0.8), "a": (0.0, 0.8)}))
    assert nothing.outcome == "nothing leaks" and said(nothing)[0].startswith("No attack beats chance on the undefended")
    nobody = answer(section_of(tmp_path / "nobody", {"a": (1.0, 0.8), "b": (0.0, 0.8)}))
    assert nobody.outcome == "no undefended run" and len(said(nobody)) == 1
    alone = answer(section_of(tmp_path / "alone", {"none": (2.0, 0.8), "free-rider": (0.0, 0.8)}))
    assert alone.outcome == "none here" and len(said(alone)) == 2


def test_one_seed_tells_nothing_apart(tmp_path):
    found = answer(section_of(tmp_path, {"none": (2.0, 0.8), "shield": (0.0, 0.8)}, seeds=[0]))
    assert found.outcome == "none told" and "one seed tells nothing apart" in said(found)[0]


def test_a_row_with_scores_missing_does_not_win(tmp_path):
    section = section_of(tmp_path, {"none": (2.0, 0.8), "shield": (0.0, 0.8), "mixup": (0.5, 0.8)})
    gone = replace(section, found=tuple(r for r in section.found))
    del gone.found[[r.label for r in gone.found].index("shield")].entries["fedmia-ii"].records[3]
    assert answer(section_again(gone)).defense.label == "mixup"


def section_again(section):
    """The section without what it has worked out."""
    contest = type(section.contest)(section.found, section.attacks, section.units)
    return replace(section, contest=contest)


def test_long_lists_of_ties_are_cut_and_numbers_with_ends_are_printed_with_them():
    interval = Interval(0.6, 0.02, 5, True)
    rate = Interval(0.1, 0.6, 5, True, (0.0, 1.2))
    one = Standing(label="a", complete=True, worst=interval, attack="x", tf01=rate, tf01_attack="y", accuracy=interval,
                   delta_accuracy=Interval(-0.007, 0.018, 5, True))  # fmt: skip
    ties = tuple(f"t{i}" for i in range(MOST_NAMED + 3))
    found = Answer(outcome="found", undefended=one, defense=one, difference=Difference(Interval(-0.2, 0.1, 5, True), 0.01),
                   tied=ties, seeds=5)  # fmt: skip
    first, second = said(found)
    assert "change of accuracy of -0.7 ± 1.8 points, which 5 seeds do not tell" in first
    assert first.endswith("; not told apart from t0, t1, t2, t3 and 3 more.")
    assert second.endswith("and a TF01 of 0.10 [0.00, 1.20] % (y).")
    assert "and 1 more" not in said(replace(found, tied=ties[: MOST_NAMED + 1]))[0]
    assert said(replace(found, undefended=replace(one, tf01=None)))[1].endswith("; TF01 cannot be said.")


# ---------------------------------------------------------------- the first screen


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("front") / "results", {**LEAK, "free-rider": 0.0}).fill()


def test_a_board_opens_with_what_is_compared_and_folds_the_rest(folder):
    text = board(folder)
    head, _, rest = text.partition("**At a glance**")
    title, cited, reading = head.strip().split("\n\n")
    assert title == "# Demo" and cited.startswith("Board id: `fb-") and len(reading.splitlines()) <= 3
    glance, _, folds = rest.partition("<details>")
    assert glance.count("The strongest defense") + glance.count("No defense") == 1 and "## " not in glance
    outside = re.sub(r"<details>.*?</details>", "", folds.join(["<details>", ""]), flags=re.S)
    assert [line for line in outside.splitlines() if line] == [
        "## Setting iid", "### Coalition pair, server view", "## Provenance"]  # fmt: skip
    assert text.count("<details>\n<summary>") == text.count("\n\n</details>\n") == len(re.findall("</summary>\n\n", text))


def test_the_table_has_the_four_things_and_stands_by_ranges(folder):
    (section,) = sections_of(folder)
    rows = rows_of(board(folder), "**At a glance**: iid, coalition pair, server view")
    assert list(rows[0]) == ["#", "defense", "worst case AUC", "mean AUC", "TF01 (%)", "delta-accuracy (pp)", "runtime"]
    assert [r["#"] for r in rows] == ["1", "2", "3", "4", "floor"] and rows[-1]["defense"] == "free-rider"
    for row in rows:
        label = row["defense"].split()[0]
        worst = section.contest.worst(label)
        assert row["worst case AUC"].replace("**", "") == f"{worst.found.mean:.3f} ± {worst.found.half_width:.3f} {worst.attack}"


def test_rows_that_share_places_say_so(tmp_path):
    section = section_of(tmp_path, {"none": (2.0, 0.8), "a": (0.3, 0.8), "b": (0.3, 0.8), "c": (1.2, 0.8)})
    table = front_blocks(section)[0]
    ranges = [words(row[0]) for row in table.rows]
    assert ranges[:2] == ["1-2", "1-2"] and ranges == sorted(ranges)
    assert {words(row[1]) for row in table.rows[:2]} == {"a", "b"}


def test_a_table_for_every_section_and_a_long_one_keeps_what_the_sentences_name(tmp_path):
    views = worlds(tmp_path / "views", {"x": {"none": 1.0, "a": 0.0}, "y": {"none": 1.0}}, ("server", "client"), range(2))
    text = board(views)
    places = ["x, coalition pair, client", "x, coalition pair, server", "y, coalition none, client", "y, coalition none, server"]
    assert re.findall(r"^\*\*At a glance\*\*: (.*) view$", text, re.M) == places
    many = {f"d{i:02}": (0.02 * i, 0.6) for i in range(20)}
    section = section_of(tmp_path / "many", {"none": (2.0, 0.8), "late": (1.0, 0.8), "placebo": (2.0, 0.8), **many}, range(6))
    table, note = front_blocks(section)
    labels = [words(row[1]) for row in table.rows]
    assert len(labels) == MOST_ROWS and {"late", "none (undefended)", "placebo"} <= set(labels)
    ranks = [section.contest.ranks[label.split()[0]] for label in labels[:-1]]
    assert ranks == sorted(ranks) and "is late: " in words(note.text)
    assert words(table.footnotes[0]) == "7 more rows stand in the full ranking below."


def test_every_table_with_tf01_says_how_it_came_about_or_what_is_missing(tmp_path, folder):
    for made, note in (
        (folder, "TF01: n/a, since the 6 targets and seeds have 360 outside non-members together, 639 too few"),
        (Folder(tmp_path / "r", {"none": 1.0, "a": 0.0}, n_ofl=400).fill(), "TF01: targets and seeds pooled, each with a"),
    ):
        tables = [b for b in blocks_of(made) if isinstance(b, Table)]
        with_it = [t for t in tables if any("TF01" in words(c.name) for c in t.columns) or t.title.startswith("TF01")]
        assert {t.title for t in with_it} >= {TITLE, "Ranking"}
        for table in with_it:
            assert any(words(f).startswith(note) for f in table.footnotes), table.title
