"""The picture of the README, taken anew of the committed board: ``python docs/picture.py``
(Chromium, and the extra ``test``).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
BOARD, SEEN = ROOT / "leaderboard" / "boards" / "partial_defense.json", "#coalition=uniform"
TARGET = ROOT / "docs" / "leaderboard.png"
WIDTH = 1320


def main() -> None:
    """From the title to the figures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        site = Path(folder) / "site"
        subprocess.run(
            [sys.executable, "-m", "fedbench.core.cli.main", "leaderboard", BOARD, "--html", site],
            check=True,
        )
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000})
        page.goto((site / f"{BOARD.stem}.html").as_uri() + SEEN)
        page.locator("#roc canvas").first.wait_for()
        page.wait_for_timeout(1000)  # figures are drawn in steps
        end = page.locator("#plane-section").bounding_box()
        page.screenshot(
            path=TARGET,
            full_page=True,
            clip={"x": 0, "y": 0, "width": WIDTH, "height": end["y"] + end["height"]},
        )
        browser.close()


if __name__ == "__main__":
    main()
