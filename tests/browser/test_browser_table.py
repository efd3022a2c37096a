"""The table of a board in a browser: sorting, filters, and an address that says what is seen."""

from __future__ import annotations

from urllib.parse import parse_qs

import pytest

DEFENSES = ["cofedmid", "grad-sparse", "mixup", "none"]


def by_worst(visit):
    """(label, worst-case AUC) of the first section's rows, in the board's order."""
    board = visit.board()
    return [(board["rows"][i]["label"], board["rows"][i]["worst"][0]) for i in board["sections"][0]["rows"]]


def test_a_board_opens_on_its_first_section_in_the_order_of_its_ranks(visit, page):
    seen = visit(page)
    assert seen.rows() == [*DEFENSES, "placebo"]
    assert seen.page.locator("#f-setting").input_value() == "iid"
    assert seen.page.locator("#f-count").inner_text() == "5 of 10 rows shown."
    assert seen.page.locator("#ranking tr.undefended:not([hidden])").count() == 1
    assert seen.page.locator("#ranking tr.floor:not([hidden]) [data-key=rank]").inner_text() == "floor"


def test_a_head_sorts_up_then_down_then_back(visit, page):
    seen = visit(page)
    expected = [label for label, _ in sorted(by_worst(seen), key=lambda pair: pair[1])]
    seen.sort("worst")
    head = seen.page.locator("th[data-key=worst]")
    assert (seen.rows(), head.get_attribute("aria-sort")) == (expected, "ascending")
    seen.sort("worst")
    assert (seen.rows(), head.get_attribute("aria-sort")) == (expected[::-1], "descending")
    seen.sort("worst")
    assert (seen.rows(), head.get_attribute("aria-sort")) == ([*DEFENSES, "placebo"], "none")
    assert seen.state == ""


def test_more_is_better_is_sorted_down_first(visit, page):
    seen = visit(page)
    seen.sort("accuracy")
    shares = [float(text.rstrip("\u00a0% ")) for text in seen.rows("accuracy")]
    assert shares == sorted(shares, reverse=True)
    assert seen.page.locator("th[data-key=accuracy]").get_attribute("aria-sort") == "descending"


@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_what_cannot_be_said_comes_last_both_ways(visit, page, direction):
    seen = visit(page, f"sort=rank&dir={direction}")
    assert seen.rows()[-1] == "placebo"  # a floor has no rank


def test_equals_keep_the_boards_order(visit, page):
    seen = visit(page, "sort=cells&dir=desc")
    assert seen.rows() == [*DEFENSES, "placebo"]


def test_filters_combine_and_the_count_says_how_many_rows_are_shown(visit, page):
    seen = visit(page)
    seen.choose("setting", "")
    assert seen.page.locator("#f-count").inner_text() == "10 of 10 rows shown."
    assert seen.page.locator("th[data-key=setting]").is_visible()
    seen.choose("defense", "mixup")
    assert seen.rows() == ["mixup", "mixup"]
    seen.choose("setting", "skewed")
    assert seen.rows() == ["mixup"]
    assert seen.page.locator("th[data-key=setting]").is_hidden()
    assert parse_qs(seen.state)["setting"] == ["skewed"]
    seen.page.locator("#f-reset").click()
    assert seen.rows() == [*DEFENSES, "placebo"]


def test_an_attacks_filter_shows_that_attacks_numbers(visit, page):
    seen = visit(page)
    board = seen.board()
    at = [board["uses"][use]["label"] for use in board["sections"][0]["attacks"]].index("loss-series")
    seen.choose("attack", "loss-series")
    shown = [f"{board['rows'][i]['entries'][at]['auc'][0]:.3f}" for i in board["sections"][0]["rows"]]
    assert seen.rows("worst") == shown
    assert "loss-series" in seen.page.locator("th[data-key=worst]").inner_text()
    assert seen.page.locator("th[data-key=mean]").is_hidden()
    seen.choose("attack", "")
    assert seen.rows("worst") == [f"{worst:.3f}" for _, worst in by_worst(seen)]


def test_rows_that_no_filter_leaves_are_said_to_be_none(visit, page):
    seen = visit(page, "defense=gone")
    assert seen.rows() == []
    assert "No row has all of these" in seen.page.locator("#f-count").inner_text()
    assert seen.page.locator("#f-defense").input_value() == "gone"
    assert "No row" in seen.page.locator("#plane").inner_text()


def everything(seen):
    """What a reader sees of the state."""
    filters = ("setting", "coalition", "view", "attack", "defense", "package")
    selects = [seen.page.locator(f"#f-{name}").input_value() for name in filters]
    heads = [(th.get_attribute("data-key"), th.get_attribute("aria-sort")) for th in seen.page.locator("#ranking thead th").all()]
    parts = [seen.page.locator(f"#{name}").inner_text() for name in ("f-count", "cells", "record", "plane-table", "roc-table")]
    return seen.rows(), seen.rows("worst"), selects, heads, parts, seen.page.locator("#roc-attack").input_value()


def test_the_address_reproduces_what_is_seen(visit, page):
    seen = visit(page)
    seen.choose("setting", "skewed")
    seen.page.locator("#roc-attack").select_option("fedmia-ii")
    seen.choose("attack", "loss-series")
    seen.sort("tf01")
    seen.sort("tf01")
    before = seen.drawn
    seen.row("cofedmid").click()
    seen.redrawn(before)
    seen.page.locator("button.cell").first.click()
    before = everything(seen)
    assert [bool(part) for part in before[4]] == [True] * 5
    fresh = visit(page, seen.state)
    assert everything(fresh) == before
    seen.page.reload()
    seen.ready()
    assert everything(seen) == before


def test_back_goes_back(visit, page):
    seen = visit(page)
    seen.choose("defense", "mixup")
    seen.page.go_back()
    seen.page.wait_for_function("document.querySelectorAll('#ranking tbody tr:not([hidden])').length === 5")
    assert seen.rows() == [*DEFENSES, "placebo"]


def test_the_index_leads_to_every_board(visit, shown):
    seen = visit(shown / "index.html")
    assert seen.page.locator("#boards a").all_inner_texts() == ["Demo"]
    seen.page.locator("#boards a").click()
    seen.ready()
    assert seen.page.locator("h1").inner_text() == "Demo"
