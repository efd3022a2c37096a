"""One table for all settings: where a defense can be first, and where it leaks less than nobody defending."""

from __future__ import annotations

import re

import pytest
from boards import blocks_of, board, rows_of, sections_of, table_of, worlds

from fedbench.core import Table
from fedbench.leaderboard.statistics.across import travellers
from fedbench.leaderboard.tables.across import MOST, across_settings

LEAKS = {
    "own": {"none": 2.0, "shield": 0.0, "mixup": 1.5, "free-rider": 0.0},
    "other": {"none": 2.0, "shield": 2.0, "mixup": 0.0, "alone": 1.0},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return worlds(tmp_path_factory.mktemp("across") / "results", LEAKS)


def test_a_defense_that_wins_in_its_own_world_need_not_win_in_the_other(folder):
    sections = sections_of(folder)
    found = {t.label: t for t in travellers(sections)}
    assert list(found) == ["none", "mixup", "shield"]  # no floor, and nobody who stands in one world alone
    assert [s.setting for s in sections] == ["other", "own"]
    assert found["shield"].beats == (1, 2) and found["mixup"].beats == (2, 2)
    assert [p.less for p in found["shield"].places] == [False, True] and found["none"].beats == (0, 0)
    for t in found.values():
        for section, place in zip(sections, t.places, strict=True):
            assert place.worst == section.contest.worst(t.label).found and place.rank == section.contest.ranks[t.label]
            assert place.delta_accuracy == section.compared[t.label].delta_accuracy
    assert found["shield"].places[1].rank == (1, 1) and found["shield"].ranked[1] == 2
    assert found["shield"].ranked[0] == sum(p.rank[0] == 1 for p in found["shield"].places) == 1


def test_what_the_board_says(folder):
    text = board(folder)
    assert text.index("## Across settings") < text.index("## Setting own")
    lines = rows_of(text, "**Across settings**")
    assert list(lines[0]) == ["defense", "other", "own", "can be first in", "less than undefended in"]
    shown = {line["defense"]: line for line in lines}
    assert re.fullmatch(r"0\.\d{3} ± 0\.\d{3} \(#1, -\d\.\d pp\)", shown["shield"]["own"])
    assert (shown["shield"]["can be first in"], shown["shield"]["less than undefended in"]) == ("1 of 2", "1 of 2")
    assert shown["none (undefended)"]["less than undefended in"] == "" and "pp" not in shown["none (undefended)"]["own"]


def test_one_setting_is_no_world_to_travel_to(tmp_path):
    folder = worlds(tmp_path / "one", {"own": LEAKS["own"]}, ("server", "client"), range(2))
    assert len(sections_of(folder)) == 2 and across_settings(sections_of(folder)) == []
    strangers = {"own": {"none": 1.0, "shield": 0.0}, "other": {"none": 1.0, "mixup": 0.0}}
    apart = worlds(tmp_path / "apart", strangers, seeds=range(2))
    assert across_settings(sections_of(apart)) == []  # no defense stands in both


def test_a_row_that_is_not_in_a_section_is_a_dash_and_views_are_named(tmp_path):
    leaks = {"a": {"none": 1.0, "shield": 0.0}, "b": {"none": 1.0, "shield": 0.5}, "c": {"none": 1.0}}
    folder = worlds(tmp_path / "views", leaks, ("server", "client"), range(2))
    tables = [b for b in blocks_of(folder) if isinstance(b, Table) and b.title.startswith("Across settings")]
    assert [t.title for t in tables] == ["Across settings"] + [f"Across settings, part {i}" for i in (1,)]
    assert len(sections_of(folder)) == MOST + 1
    assert all(len(t.columns) <= 8 for t in tables)
    lines = rows_of(board(folder), "**Across settings, part 1**")
    assert list(lines[0])[1:] == [f"{s}, none, {v} view" if s == "c" else f"{s}, pair, {v} view"
                                  for s in "abc" for v in ("client", "server")]  # fmt: skip
    shield = next(line for line in lines if line["defense"] == "shield")
    assert shield["c, none, server view"] == "-" and shield["a, pair, server view"].startswith("0.")
    sums = table_of(folder, "Across settings")
    assert [c.name.text for c in sums.columns[1:]] == ["can be first in", "less than undefended in"]
