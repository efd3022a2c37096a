"""Both figures answer the pointer with the numbers of the data, follow the table, and zoom by buttons."""

from __future__ import annotations

import pytest
from visits import opened


def first_row(seen, label):
    """The row of that label in the first section."""
    return next(r for r in seen.board()["rows"] if r["label"] == label and r["section"] == 0)


def test_the_plane_says_both_numbers_with_their_intervals(visit, page):
    seen = visit(page)
    row = first_row(seen, "cofedmid")
    said = seen.point_at("plane", row["worst"][0], 100 * row["accuracy"][0])
    low, high = row["worst"][1:]
    assert "cofedmid" in said
    assert f"{row['worst'][0]:.3f} [{low:.3f}, {high:.3f}]" in said
    assert f"{100 * row['accuracy'][0]:.1f} %" in said
    assert f"{100 * row['delta'][0]:+.2f} pp".replace("-", "\u2212") in said


def test_a_curve_says_its_rate_with_its_interval(visit, page):
    seen = visit(page)
    curve = seen.page.evaluate("""() => {
      const row = fedbenchSite.board.rows.find(r => r.label === "grad-sparse");
      return {...fedbenchSite.curve(fedbenchSite.sectionOf(row), row.entries[row.worst_attack]), attack: row.worst_attack};
    }""")
    at = len(curve["fpr"]) // 2
    said = seen.point_at("roc", curve["fpr"][at], curve["tpr"][at])
    assert "grad-sparse" in said
    assert percent(curve["fpr"][at]) in said
    assert f"{percent(curve['tpr'][at])} [{percent(curve['low'][at])}, {percent(curve['high'][at])}]" in said


def percent(rate):
    """With three significant digits, as the page writes it."""
    return f"{float(f'{100 * rate:.3g}'):g} %"


def test_the_histogram_and_the_history_of_a_record_answer_too(visit, page):
    seen = visit(page, opened("cofedmid"))
    seen.page.locator("button.cell").first.click()
    seen.page.wait_for_function("fedbenchSite.viewAt('history') && fedbenchSite.viewAt('scores')")
    assert "50.0 %" in seen.point_at("history", 20, 50)
    assert "members" in seen.point_at("scores", 0.05, 0.01)


def test_both_figures_stand_as_tables_too(visit, page):
    seen = visit(page)
    for name, caption, columns in (
        ("plane-table", "Privacy against utility", ["defense", "AUC", "accuracy"]),
        # 60 non-members allow no lower rate
        ("roc-table", "True-positive rates", ["defense", "attack", "at 10 % false positives"]),
    ):
        seen.page.locator(f"#{name} summary").click()
        assert seen.page.locator(f"#{name} caption").inner_text() == caption
        assert seen.page.locator(f"#{name} tbody tr").count() == 5
        assert seen.page.locator(f"#{name} thead th").all_inner_texts() == columns


@pytest.mark.parametrize("figure", ["plane", "roc"])
def test_figures_zoom_by_buttons_and_back(visit, page, figure):
    seen = visit(page)
    ends = f"(() => {{ const r = fedbenchSite.viewAt('{figure}').model.x_range; return [r.start, r.end]; }})()"
    before = seen.page.evaluate(ends)
    seen.page.locator(f"#{figure}").get_by_role("button", name="Zoom in").click()
    start, end = seen.page.evaluate(ends)
    assert before[0] < start < end < before[1]
    seen.page.locator(f"#{figure}").get_by_role("button", name="Reset the view").click()
    assert seen.page.evaluate(ends) == before


def test_figures_show_what_the_table_shows(visit, page):
    seen = visit(page)
    before = seen.drawn
    seen.choose("defense", "mixup")
    seen.redrawn(before)
    assert seen.page.locator(".legend button").all_inner_texts() == ["mixup"]
    assert seen.page.locator("#plane-table tbody th").all_text_contents() == ["mixup"]
    assert seen.page.locator("#roc-table tbody th").all_text_contents() == ["mixup"]


def test_figures_follow_the_open_row_into_its_section(visit, page):
    seen = visit(page, "setting=")
    assert "setting iid" in seen.page.locator("#figures-where").inner_text()
    before = seen.drawn
    seen.row("mixup").nth(1).click()
    seen.redrawn(before)
    assert "setting skewed" in seen.page.locator("#figures-where").inner_text()
    assert seen.page.locator(".legend button[aria-pressed=true]").all_inner_texts() == ["mixup"]


def test_an_attack_chosen_for_the_curves_stands_in_the_address(visit, page):
    seen = visit(page)
    before = seen.drawn
    seen.page.locator("#roc-attack").select_option("loss-series")
    seen.redrawn(before)
    assert seen.state == "roc=loss-series"
    assert set(seen.page.locator("#roc-table tbody td:nth-child(2)").all_text_contents()) == {"loss-series"}


def test_of_two_changes_at_once_the_later_one_is_drawn(visit, page):
    seen = visit(page)
    before = seen.drawn
    seen.page.evaluate("() => { fedbenchSite.change({defense: 'mixup'}); fedbenchSite.change({defense: 'none'}); }")
    seen.redrawn(before)
    seen.page.wait_for_function("document.querySelectorAll('#plane .bk-Figure').length === 1")
    assert seen.page.locator("#plane-table tbody th").all_text_contents() == ["none"]
    assert seen.page.evaluate("Bokeh.documents.length") == 2  # of both figures: none is left behind


def test_a_floor_that_learns_nothing_does_not_press_the_others_together(visit, page):
    seen = visit(page)
    seen.page.evaluate("() => { fedbenchSite.board.rows.find(r => r.floor).accuracy = [0.05, 0.04, 0.06]; }")
    before = seen.drawn
    seen.page.evaluate("document.dispatchEvent(new Event('fedbench-theme'))")
    seen.redrawn(before)
    assert seen.page.evaluate("fedbenchSite.viewAt('plane').model.y_range.start") > 50
    assert seen.page.locator("#plane .hint").inner_text() == "Outside of the frame, zoom out to see: placebo"
