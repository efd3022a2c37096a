"""What a row and a cell open, with the pointer and with the keyboard alone."""

from __future__ import annotations

import shlex
from itertools import pairwise

import pytest
from visits import opened

from fedbench.core.cli.options import parse_only

# Of what has the focus: what it is, whether it has a name, how it is outlined, and whether it hides more of a page.
STOP = """el => el === document.body ? null : [
  el.tagName,
  (el.ariaLabel || el.getAttribute("aria-labelledby") || el.labels?.[0]?.textContent || el.textContent).trim() !== "",
  getComputedStyle(el).outlineStyle, el.shadowRoot !== null,
]"""


def key_of_first_cell(seen, label):
    """The key of the first cell of a row."""
    board = seen.board()
    row = next(r for r in board["rows"] if r["label"] == label)
    return board["cells"]["key"][row["entries"][0]["cells"][0]]


def focused(seen, what="el => el.id"):
    """Something about the element that has the focus."""
    return seen.page.evaluate(f"({what})(document.activeElement)")


def test_a_row_opens_its_cells_and_closes_them(visit, page):
    seen = visit(page)
    seen.row("cofedmid").click()
    assert seen.page.locator("#cells-title").inner_text() == "Cells of cofedmid"
    assert seen.page.locator("#cells table.cells tbody tr").count() == 2
    assert seen.page.locator("#cells button.cell").count() == 6
    assert seen.row("cofedmid").get_attribute("aria-expanded") == "true"
    assert focused(seen) == "cells-title"
    seen.page.locator("#cells-close").click()
    assert seen.page.locator("#cells").is_hidden()
    assert focused(seen, "el => el.textContent") == "cofedmid"


def test_a_click_anywhere_in_a_row_opens_it(visit, page):
    seen = visit(page)
    seen.page.locator("#ranking tbody tr:not([hidden]) [data-key=accuracy]").first.click()
    assert seen.page.locator("#cells-title").inner_text() == "Cells of cofedmid"


def test_the_cells_of_a_filtered_attack_are_its_own(visit, page):
    seen = visit(page, opened("cofedmid", attack="loss-series"))
    assert seen.page.locator("#cells table.cells tbody th").all_inner_texts() == ["loss-series"]


def test_a_cell_opens_its_record(visit, page):
    seen = visit(page, opened("cofedmid"))
    first = seen.page.locator("button.cell").first
    first.click()
    assert seen.page.locator("#record-title").inner_text() == "Record: fedmia-ii against cofedmid, seed 0"
    assert focused(seen) == "record-title"
    text = seen.page.locator("#record-body").inner_text()
    heads = ("Make it again", "Scores", "Over the rounds", "As measured", "Parameters", "Provenance")
    for part in (*heads, "A CPU", "client 1", "80 members"):
        assert part in text, part
    seen.page.wait_for_selector("#scores canvas")
    seen.page.wait_for_selector("#history canvas")
    assert first.get_attribute("aria-expanded") == "true"


def test_the_number_of_a_cell_is_the_mean_over_its_targets(visit, page):
    seen = visit(page, opened("cofedmid", cell=""))
    seen.page.locator("button.cell").first.click()
    rows = [tr.locator("td").first.inner_text() for tr in seen.page.locator("#record-body .part table tbody tr").all()]
    aucs = [float(text.split(" ")[0]) for text in rows]
    assert len(aucs) == 2
    assert float(seen.page.locator("button.cell").first.inner_text()) == pytest.approx(sum(aucs) / 2, abs=1e-3)


def test_the_command_of_a_record_is_copied(visit, page):
    seen = visit(page, opened("cofedmid"), permissions=["clipboard-read", "clipboard-write"])
    command = "fedbench run demo --only setting=iid,coalition=pair,defense=cofedmid --only seed=0 --only attack=fedmia-ii"
    seen.page.evaluate("c => { fedbenchSite.board.command = c; }", "fedbench run demo")  # made-up records have no plan
    seen.page.locator("button.cell").first.click()
    seen.page.locator("#copy").click()
    seen.page.locator(".copied", has_text="Copied.").wait_for()
    copied = seen.page.evaluate("navigator.clipboard.readText()")
    assert copied == command
    parts = shlex.split(copied)
    assert parse_only(tuple(b for a, b in pairwise(parts) if a == "--only")) == {
        "setting": {"iid"}, "coalition": {"pair"}, "defense": {"cofedmid"}, "seed": {"0"}, "attack": {"fedmia-ii"},
    }  # fmt: skip


def test_where_no_clipboard_is_lent_the_command_is_selected(visit, page):
    seen = visit(page, opened("cofedmid"))
    seen.page.evaluate("""() => {
      fedbenchSite.board.command = "fedbench run demo";
      navigator.clipboard.writeText = () => Promise.reject(new DOMException("", "NotAllowedError"));
    }""")
    seen.page.locator("button.cell").first.click()
    seen.page.locator("#copy").click()
    seen.page.locator(".copied", has_text="Selected").wait_for()
    assert seen.page.evaluate("String(getSelection())") == seen.page.locator("#command").inner_text()


def test_no_command_is_made_up(visit, page):
    seen = visit(page, opened("cofedmid"))
    seen.page.locator("button.cell").first.click()
    assert seen.page.locator("#copy").count() == 0
    assert "No command can be written" in seen.page.locator("#record-body").inner_text()


def test_a_link_to_a_cell_that_is_gone_says_so(visit, page):
    seen = visit(page, "cell=ffffffffffff")
    assert seen.page.locator("#record-body").inner_text() == "This board has no such record."


def test_keys_alone_sort_open_and_close(visit, page):
    seen = visit(page)
    keyboard = seen.page.keyboard
    for _ in range(60):  # tabs from the top of the page to the head of a column
        keyboard.press("Tab")
        if focused(seen, "el => el.closest('th')?.dataset.key") == "worst":
            break
    keyboard.press("Enter")
    assert seen.page.locator("th[data-key=worst]").get_attribute("aria-sort") == "ascending"
    while focused(seen, "el => el.className") != "open":
        keyboard.press("Tab")
    name = focused(seen, "el => el.textContent")
    keyboard.press("Enter")
    assert seen.page.locator("#cells-title").inner_text() == f"Cells of {name}"
    while focused(seen, "el => el.className") != "cell":
        keyboard.press("Tab")
    keyboard.press("Enter")
    assert focused(seen) == "record-title"
    assert parsed_cell(seen) == key_of_first_cell(seen, name)
    keyboard.press("Escape")
    assert seen.page.locator("#record").is_hidden()
    assert focused(seen, "el => el.className") == "cell"
    keyboard.press("Escape")
    assert seen.page.locator("#cells").is_hidden()
    assert focused(seen, "el => el.textContent") == name


def parsed_cell(seen):
    """The cell that the address names."""
    return seen.page.evaluate("fedbenchSite.state().cell")


def test_every_stop_of_the_tab_key_is_seen_and_has_a_name(visit, page):
    seen = visit(page)
    seen.open(opened("cofedmid", cell=key_of_first_cell(seen, "cofedmid")))
    stops = []
    while True:
        seen.page.keyboard.press("Tab")
        stop = focused(seen, STOP)
        if stop is None:
            break
        stops.append(stop)
        assert len(stops) < 300
    assert len(stops) > 40
    assert [stop for stop in stops if stop[1:] != [True, "solid", False]] == []
