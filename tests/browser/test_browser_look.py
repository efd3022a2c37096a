"""How a board looks: light and dark, narrow, on paper, and to a screen reader."""

from __future__ import annotations

import pytest
from visits import opened

pytestmark = pytest.mark.slow

AA = 4.5
# What stands where: text whose contrast with what is behind it is measured.
TEXTS = (
    "h1", ".about", "nav a", "#theme", "#filters label", "#f-setting", "#f-count", "#ranking-note", "#ranking caption",
    "#ranking thead button", "#ranking tbody tr:not([hidden]) button.open", "#ranking tbody tr:not([hidden]) .mean",
    "#ranking tbody tr:not([hidden]) .range", "#ranking tbody tr:not([hidden]) .by",
    "#ranking tr.undefended:not([hidden]) .range", "#ranking tr.undefended:not([hidden]) .mark",
    "#ranking tr.floor:not([hidden]) .range", "#ranking tr.open .range", "#ranking tr.open button.open", "#cells dt",
    "#cells dd", "button.cell[aria-expanded=true]", "button.cell[aria-expanded=false]", "#record caption", "#record .hint",
    ".legend button", ".tools button", "#plane-section .hint", "summary", "footer p", "footer a",
)  # fmt: skip
CONTRAST = """selector => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = text => {
    const [r, g, b] = parts(text).map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const element = document.querySelector(selector);
  if (!element) return 0;
  let behind = element;
  while (behind && (parts(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
  const [a, b] = [light(getComputedStyle(element).color), light(getComputedStyle(behind).backgroundColor)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""


NAME = "el => (el.getAttribute('aria-label') || el.labels?.[0]?.textContent || el.textContent).trim()"


def all_open(visit, page, **context):
    """A board with a row and a cell open."""
    seen = visit(page, opened("cofedmid"), **context)
    seen.page.locator("button.cell").first.click()
    return seen


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_the_contrast_of_wcag_aa(visit, page, scheme):
    seen = all_open(visit, page, color_scheme=scheme)
    found = {selector: seen.page.evaluate(CONTRAST, selector) for selector in TEXTS}
    assert {selector: ratio for selector, ratio in found.items() if ratio < AA} == {}


def background(seen):
    """The page's own."""
    return seen.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")


def test_the_switch_changes_what_the_system_prefers_and_the_choice_is_kept(visit, page):
    seen = visit(page, color_scheme="dark")
    dark = background(seen)
    assert seen.page.locator("#plane").get_attribute("data-drawn") == "dark"
    before = seen.drawn
    seen.page.locator("#theme").click()
    seen.redrawn(before)
    assert background(seen) == "rgb(255, 255, 255)" != dark
    assert seen.page.locator("#plane").get_attribute("data-drawn") == "light"
    assert seen.page.locator("#theme").inner_text() == "Dark theme"
    seen.page.reload()
    seen.ready()
    assert background(seen) == "rgb(255, 255, 255)"


def test_figures_are_drawn_in_the_colours_of_the_theme(visit, page):
    light, dark = visit(page, color_scheme="light"), visit(page, color_scheme="dark")
    colour = "fedbenchSite.viewAt('plane').model.below[0].axis_label_text_color"
    assert light.page.evaluate(colour) == "rgb(27, 31, 35)"
    assert dark.page.evaluate(colour) == "rgb(232, 235, 238)"


@pytest.mark.parametrize("width", [400, 320, 1400])
def test_a_page_never_scrolls_sideways(visit, page, odd, shown, width):
    size = {"viewport": {"width": width, "height": 800}}
    boards = [all_open(visit, page, **size), visit(odd / "hostile.html", **size), visit(shown / "index.html", **size)]
    assert [seen.page.evaluate("document.documentElement.scrollWidth") for seen in boards] == [width] * 3


def test_at_400_pixels_the_table_scrolls_in_its_box_and_figures_fit(visit, page):
    seen = visit(page, viewport={"width": 400, "height": 800})
    box = seen.page.locator(".scroll").first
    assert box.evaluate("box => [box.scrollWidth > box.clientWidth, box.tabIndex]") == [True, 0]
    for name in ("plane", "roc"):
        around = seen.page.locator(f"#{name} .bk-Figure").bounding_box()
        assert 0 <= around["x"] < around["x"] + around["width"] <= 400


def test_on_paper_there_are_the_numbers_and_no_controls(visit, page):
    seen = all_open(visit, page, color_scheme="dark")
    seen.page.emulate_media(media="print")
    for hidden in ("#theme", "#f-setting", "#f-reset", "#cells-close", "#copy", ".tools >> nth=0"):
        assert seen.page.locator(hidden).is_hidden(), hidden
    figures = ("#plane canvas >> nth=0", "#roc canvas >> nth=0")
    for visible in ("h1", "#ranking", "#f-count", "#cells table", "#record-body", *figures):
        assert seen.page.locator(visible).is_visible(), visible
    assert background(seen) == "rgb(255, 255, 255)"
    inverted = seen.page.locator("#plane .bk-Figure").evaluate("el => getComputedStyle(el).filter")
    assert inverted == "invert(1) hue-rotate(180deg)"
    assert seen.page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflow") == "visible"
    assert seen.page.pdf()[:5] == b"%PDF-"


def test_a_screen_reader_finds_a_table_with_heads_and_hears_what_changes(visit, page):
    seen = visit(page)
    table = seen.page.get_by_role("table").first
    assert table.get_by_role("columnheader").count() == seen.page.locator("#ranking thead th:not([hidden])").count()
    assert table.get_by_role("rowheader").count() == 5
    assert table.get_by_role("columnheader", name="defense").get_attribute("aria-sort") == "none"
    assert seen.page.get_by_role("status").first.inner_text() == "5 of 10 rows shown."
    tree = table.aria_snapshot()
    for part in ("columnheader", "rowheader", 'button "cofedmid"', "table"):
        assert part in tree, part
    for region in ("Ranking", "Privacy against utility", "ROC curves"):
        assert seen.page.get_by_role("heading", name=region, exact=True).is_visible()
    assert seen.page.get_by_role("group", name="ROC curves of 5 defenses, each by its worst case").count() == 1
    assert seen.page.locator("html").get_attribute("lang") == "en"


def test_every_control_has_a_name(visit, page):
    seen = all_open(visit, page)
    for role in ("button", "combobox", "link"):
        for one in seen.page.get_by_role(role).all():
            assert one.evaluate(NAME) != ""
