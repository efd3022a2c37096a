"""Names out of records are text in a browser, wherever they are shown."""

from __future__ import annotations

import pytest
from site_boards import HOSTILE


@pytest.fixture
def seen(visit, odd):
    """The board of hostile names, all of its sections."""
    return visit(odd / "hostile.html", "setting=&coalition=&view=")


def labels(seen):
    """The defenses of the board's rows."""
    return [row["label"] for row in seen.board()["rows"]]


def test_names_stand_as_they_are_in_the_table_the_filters_and_the_legend(seen):
    shown = seen.page.locator("#ranking button.open").all_text_contents()
    assert sorted(shown) == sorted(labels(seen))
    assert any("<script>alert(1)</script>" in text for text in shown)
    options = seen.page.locator("#f-defense option").evaluate_all("found => found.map(o => o.value)")
    assert sorted(options[1:]) == sorted(set(labels(seen)))
    legend = seen.page.locator(".legend button").all_text_contents()
    assert [text for text in legend if text not in shown] == []


def test_nothing_of_a_name_became_an_element(seen):
    foreign = "img, iframe, object, embed, base, form[action], [onerror], [onload], [style*=url]"
    made = seen.page.locator(foreign).count()
    scripts = seen.page.evaluate("[...document.scripts].every(s => s.id === 'board' || s.src.startsWith('file://'))")
    assert (made, scripts) == (0, True)


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_row_of_any_name_opens_and_its_address_leads_back(visit, odd, seen, name):
    label = next(text for text in labels(seen) if text.startswith(f"{name} "))
    buttons = seen.page.locator("#ranking button.open")
    buttons.nth(buttons.all_text_contents().index(label)).click()
    assert seen.page.locator("#cells-title").text_content() == f"Cells of {label}"
    seen.page.locator("button.cell").first.click()
    title = seen.page.locator("#record-title").text_content()
    assert label in title
    again = visit(odd / "hostile.html", seen.state)
    assert again.page.locator("#cells-title").text_content() == f"Cells of {label}"
    assert again.page.locator("#record-title").text_content() == title


def test_a_hostile_attack_is_filtered_for_and_named_in_the_head(seen):
    attack = next(u["label"] for u in seen.board()["uses"] if u["label"].startswith("end "))
    seen.choose("attack", attack)
    assert attack in seen.page.locator("th[data-key=worst]").text_content()
    assert len(seen.rows()) == len(labels(seen))


def test_tooltips_show_names_as_text(seen):
    row = next(r for r in seen.board()["rows"] if r["label"].startswith("script "))
    if row["section"] != 0:
        before = seen.drawn
        seen.page.evaluate("row => fedbenchSite.change({row: fedbenchSite.rowName(row)})", row)
        seen.redrawn(before)
    said = seen.point_at("plane", row["worst"][0], 100 * row["accuracy"][0])
    assert "<script>alert(1)</script>" in said


def test_marks_of_direction_stay_inside_their_name(seen):
    isolate = "all => all.every(el => getComputedStyle(el).unicodeBidi === 'isolate')"
    assert seen.page.locator("#ranking button.open, bdi.name").evaluate_all(isolate)


@pytest.mark.parametrize("state", [
    "setting=<script>alert(1)</script>", "sort=__proto__", "sort=constructor&dir=desc", "row=a&row=b", "cell=%22%5D%29",
    "roc=toString&attack=valueOf", "defense=%E2%80%AEgnol", "%", "a=b=c&&&", "view=%00",
])  # fmt: skip
def test_no_address_breaks_the_page(visit, odd, state):
    seen = visit(odd / "hostile.html", state)
    assert seen.page.locator("html").get_attribute("data-usable") == "yes"
    assert "rows shown" in seen.page.locator("#f-count").inner_text()
