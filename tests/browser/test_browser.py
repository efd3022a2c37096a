"""A board's page in Chromium: table, filters, address, figures, records, hostile names."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_boards import site
from visits import opened

pytestmark = pytest.mark.slow
MAIN = Path(__file__).parents[2] / "leaderboard" / "boards" / "partial_defense.json"
RANKED = ["cofedmid", "grad-sparse", "mixup", "none", "placebo"]
CURVE = """() => {
  const row = fedbenchSite.board.rows.find(r => r.label === "grad-sparse");
  return fedbenchSite.curve(fedbenchSite.sectionOf(row), row.entries[row.worst_attack]);
}"""


def first_section(seen):
    """The rows of the first section as the document has them, in the order of the board."""
    board = seen.board()
    return [board["rows"][i] for i in board["sections"][0]["rows"]]


def percent(rate):
    """Three significant digits, as the page writes a rate."""
    return f"{float(f'{100 * rate:.3g}'):g} %"


def test_the_index_leads_to_a_board_in_the_order_of_its_ranks(visit, shown):
    seen = visit(shown / "index.html")
    seen.click("#boards a")
    seen.ready()
    assert seen.text("h1") == "Demo"
    assert seen.rows() == RANKED
    assert seen.text("#f-count") == "5 of 10 rows shown."
    assert seen.text("#ranking tr.floor:not([hidden]) [data-key=rank]") == "floor"
    assert seen.rows("worst") == [
        f"{row['numbers']['worst'][0]:.3f}" for row in first_section(seen)
    ]


@pytest.mark.parametrize(("width", "least"), [(1280, 6), (400, 1)])  # caveat and answer stand above
def test_rows_of_the_main_board_are_seen_without_scrolling(visit, tmp_path, width, least):
    site(tmp_path, MAIN)
    seen = visit(tmp_path / "partial_defense.html", viewport={"width": width, "height": 900})
    boxes = [
        row.bounding_box() for row in seen.page.locator("#ranking tbody tr:not([hidden])").all()
    ]
    assert len(boxes) == 11
    assert sum(box["y"] + box["height"] <= 900 for box in boxes) >= least
    assert seen.page.evaluate("document.documentElement.scrollWidth") == width
    seen.page.locator("#ranking thead th[data-key=defense] button").focus()
    seen.page.keyboard.press("Tab")
    assert seen.page.locator("[role=tooltip]:visible").all_inner_texts() == [
        seen.page.locator("#help-worst").text_content()
    ]


@pytest.mark.nightly
def test_heads_sort_and_filters_combine(visit, page):
    seen = visit(page)
    expected = [
        row["label"]
        for row in sorted(first_section(seen), key=lambda row: row["numbers"]["worst"][0])
    ]
    for order in (expected, expected[::-1], RANKED):
        seen.click("#ranking thead th[data-key=worst] button")
        assert seen.rows() == order
    at = [
        seen.board()["uses"][use]["label"] for use in seen.board()["sections"][0]["attacks"]
    ].index("loss-series")
    seen.choose("attack", "loss-series")
    assert seen.rows("worst") == [
        f"{row['entries'][at]['auc'][0]:.3f}" for row in first_section(seen)
    ]
    seen.choose("setting", "")
    seen.choose("defense", "mixup")
    assert seen.rows() == ["mixup", "mixup"]
    seen.choose("setting", "skewed")
    assert seen.rows() == ["mixup"]
    seen.click("#f-reset")
    assert seen.rows() == RANKED


def everything(seen):
    """What a reader sees of the state."""
    selects = [select.input_value() for select in seen.page.locator("#filters select").all()]
    parts = [
        seen.text(f"#{name}") for name in ("f-count", "cells", "record", "plane-table", "roc-table")
    ]
    return seen.rows(), seen.rows("worst"), selects, parts


def test_the_address_reproduces_what_is_seen(visit, page):
    seen = visit(page)
    seen.choose("setting", "skewed")
    seen.choose("attack", "loss-series")
    seen.click("#ranking thead th[data-key=tf01] button")
    seen.redraw(
        "[...document.querySelectorAll('tr:not([hidden]) button.open')].find(b => b.textContent "
        "=== 'cofedmid').click()"
    )
    seen.click("button.cell")
    before = everything(seen)
    assert all(before[-1])
    assert everything(visit(page, seen.state)) == before


def test_the_plane_and_a_curve_show_their_numbers_with_intervals(visit, page):
    seen = visit(page)
    row = next(r for r in first_section(seen) if r["label"] == "cofedmid")
    mean, low, high = row["numbers"]["worst"]
    said = seen.point_at("plane", mean, 100 * row["numbers"]["accuracy"][0])
    delta = f"{100 * row['numbers']['delta'][0]:+.2f} pp".replace("-", "\u2212")
    for part in (
        "cofedmid",
        f"{mean:.3f} [{low:.3f}, {high:.3f}]",
        f"{100 * row['numbers']['accuracy'][0]:.1f} %",
        delta,
    ):
        assert part in said, part
    curve = seen.page.evaluate(CURVE)
    x, y, low, high = (
        curve[name][len(curve["fpr"]) // 2] for name in ("fpr", "tpr", "low", "high")
    )
    said = seen.point_at("roc", x, y)
    for part in ("grad-sparse", percent(x), f"{percent(y)} [{percent(low)}, {percent(high)}]"):
        assert part in said, part


def test_a_cell_opens_its_record_and_shows_the_mean_over_its_targets(visit, page):
    seen = visit(page, opened("cofedmid"))
    seen.click("button.cell")
    assert seen.text("#record-title") == "Record: fedmia-ii against cofedmid, seed 0"
    text = seen.text("#record-body")
    for part in (
        "No command can be written",
        "Over the rounds",
        "Parameters",
        "A CPU",
        "client 1",
        "80 members",
    ):
        assert part in text, part
    rows = seen.page.locator(
        "#record-body .part table tbody tr td:nth-of-type(1)"
    ).all_inner_texts()
    aucs = [float(text.split(" ")[0]) for text in rows]
    assert len(aucs) == 2
    assert float(seen.text("button.cell")) == pytest.approx(sum(aucs) / 2, abs=1e-3)
    seen.page.wait_for_function("fedbenchSite.viewAt('history') && fedbenchSite.viewAt('scores')")
    board = seen.board()
    runs = zip(
        board["runs"]["defense"], board["runs"]["seed"], board["runs"]["history"], strict=True
    )
    (accuracy,) = {
        h[0][1] for use, seed, h in runs if (board["uses"][use]["label"], seed) == ("cofedmid", 0)
    }
    assert f"{100 * accuracy:.1f} %" in seen.point_at("history", 20, 100 * accuracy)
    assert "members" in seen.point_at("scores", 0.05, 0.01)


# --- hostile names and addresses ------------------------------------------------------------------


def test_hostile_names_are_text_in_the_table_the_filters_and_the_tooltips(visit, odd):
    seen = visit(odd / "hostile.html", "setting=&coalition=&view=")
    labels = [row["label"] for row in seen.board()["rows"]]
    assert sorted(seen.page.locator("#ranking button.open").all_text_contents()) == sorted(labels)
    options = seen.page.locator("#f-defense option").evaluate_all(
        "found => found.map(o => o.value)"
    )
    assert sorted(options[1:]) == sorted(set(labels))
    row = next(r for r in seen.board()["rows"] if r["label"].startswith("script "))
    seen.redraw("row => fedbenchSite.change({row: fedbenchSite.rowName(row)})", row)
    assert "<script>alert(1)</script>" in seen.point_at(
        "plane", row["numbers"]["worst"][0], 100 * row["numbers"]["accuracy"][0]
    )
    foreign = "img, iframe, object, embed, base, form[action], [onerror], [onload], [style*=url]"
    assert seen.page.locator(foreign).count() == 0
    assert seen.page.evaluate(
        "[...document.scripts].every(s => s.id === 'board' || s.src.startsWith('file://'))"
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "state",
    [
        "setting=<script>alert(1)</script>",
        "sort=__proto__",
        "row=a&row=b",
        "cell=%22%5D%29",
        "roc=toString&attack=valueOf",
        "%00",
    ],
)
def test_no_address_breaks_the_page(visit, odd, state):
    seen = visit(odd / "hostile.html", state)
    assert seen.page.locator("html").get_attribute("data-usable") == "yes"
    assert "rows shown" in seen.text("#f-count")
