"""A board of 10,000 cells: how large its site is, and that a page does work for what it shows, not for all that there is."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from fedbench.leaderboard.site.write import make_site

pytestmark = pytest.mark.slow

SETTINGS, COPIES, ATTACKS, SEEDS = 12, 6, 7, 4  # 12 x (5 x 6) rows x 7 attacks x 4 seeds = 10,080 cells
MEGABYTE = 1_000_000


def enlarged(small: dict) -> dict:
    """A small board's document with many settings, rows, attacks and seeds, which all look like those that it has."""
    board = copy.deepcopy(small)
    attacks = [use for use in board["sections"][0]["attacks"] for _ in range(ATTACKS)][:ATTACKS]
    settings, rows, sections = [], [], []
    runs, cells = ({name: [] for name in board[part]} for part in ("runs", "cells"))
    for s in range(SETTINGS):
        settings.append({**board["settings"][0], "name": f"setting-{s:02d}"})
        section = {**small["sections"][0], "setting": s, "seeds": list(range(SEEDS)), "rows": []}
        section |= {"attacks": attacks, "eligible": list(range(ATTACKS))}
        for n, i in enumerate(i for i in small["sections"][0]["rows"] for _ in range(COPIES)):
            row = copy.deepcopy(small["rows"][i])
            section["rows"].append(len(rows))
            rows.append({**row, "section": s, "label": f"{row['label']}-{n:02d}", "entries": []})
            for a in range(ATTACKS):
                entry = copy.deepcopy(row["entries"][a % len(row["entries"])])
                sources = [entry["cells"][seed % len(entry["cells"])] for seed in range(SEEDS)]
                entry["cells"] = [
                    add(small["cells"], cells, c, key=f"{s:02d}{n:03d}{a}{seed}".ljust(12, "0"), run=len(runs["key"]) + seed)
                    for seed, c in enumerate(sources)
                ]
                rows[-1]["entries"].append(entry)
            for seed in range(SEEDS):
                change = {"key": f"{s:02d}{n:03d}r{seed}".ljust(12, "0"), "seed": seed, "setting": s}
                add(small["runs"], runs, small["cells"]["run"][sources[seed]], **change)
        sections.append(section)
    parts = {"settings": settings, "sections": sections, "rows": rows, "runs": runs, "cells": cells}
    return {**board, **parts, "records": len(cells["key"])}


def add(columns: dict, to: dict, i: int, **change: object) -> int:
    """One more line, the i-th with changes; its number."""
    for name, values in columns.items():
        to[name].append(change.get(name, values[i]))
    return len(to["key"]) - 1


@pytest.fixture(scope="module")
def large(page, tmp_path_factory) -> Path:
    """The site of the enlarged board."""
    root = tmp_path_factory.mktemp("large")
    small = json.loads(page.read_text().partition('id="board">')[2].partition("</script>")[0])
    (root / "large.json").write_text(json.dumps(enlarged(small)))
    make_site([root / "large.json"], root / "site")
    return root / "site"


def nodes(seen) -> int:
    """Elements on the page."""
    return seen.page.evaluate("document.querySelectorAll('*').length")


def test_a_site_of_10_000_cells_stays_under_five_megabytes(large):
    size = sum(path.stat().st_size for path in large.rglob("*") if path.is_file())
    print(f"{size / MEGABYTE:.2f} MB")
    assert size < 5 * MEGABYTE


def test_a_page_of_10_000_cells_holds_elements_for_its_rows_alone(visit, large, page):
    seen, small = visit(large / "large.html"), visit(page)
    cells, rows = len(seen.board()["cells"]["key"]), len(seen.board()["rows"])
    marks = "performance.getEntriesByType('mark').map(m => `${m.name} ${Math.round(m.startTime)} ms`).join(', ')"
    print(f"{cells} cells: {seen.page.evaluate(marks)}; {nodes(seen)} elements")
    assert cells >= 10_000
    per_row = (nodes(seen) - nodes(small)) / (rows - len(small.board()["rows"]))
    assert per_row < 60
    assert len(seen.rows()) == 30


def test_a_change_redraws_the_table_once_and_opens_one_rows_cells(visit, large):
    seen = visit(large / "large.html", "setting=&coalition=&view=")
    assert len(seen.rows()) == 360
    seen.page.evaluate("""() => {
      window.added = 0;
      const count = found => found.forEach(change => { window.added += change.addedNodes.length; });
      new MutationObserver(count).observe(document.getElementById("ranking"), {childList: true, subtree: true});
    }""")
    seen.sort("worst")
    seen.page.evaluate("new Promise(requestAnimationFrame)")
    assert seen.page.evaluate("window.added") == 360  # each row is put into its place once
    seen.page.locator("#ranking button.open").first.click()
    assert seen.page.locator("button.cell").count() == 28
