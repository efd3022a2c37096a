"""A page in a browser, what went wrong on it, and what is read off it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

PATIENCE_MS = 120_000  # a loaded machine is slow

# Where a point of a figure is on the screen.
_SPOT = """([id, x, y]) => {
  document.getElementById(id).scrollIntoView();
  const view = fedbenchSite.viewAt(id);
  const box = view.canvas_view.el.getBoundingClientRect();
  return [box.left + view.frame.x_scale.compute(x), box.top + view.frame.y_scale.compute(y)];
}"""


class Visit:
    """``problems``: errors and warnings (of the policy, too), exceptions, dialogs, requests that leave the disk."""

    def __init__(self, browser: Any, path: Path, state: str, context: dict[str, Any]) -> None:
        self.problems: list[str] = []
        self.path = path
        self.context = browser.new_context(**context)
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        self.page.on("console", lambda m: self.problems.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        self.page.on("request", lambda r: None if r.url.startswith("file://") else self.problems.append(f"request: {r.url}"))
        self.page.on("dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.goto(f"{path.as_uri()}#{state}")
        self.ready()

    def ready(self) -> None:
        """Waits until a board's figures are drawn."""
        if self.page.locator("body.board").count():
            self.page.wait_for_selector("html[data-figures]", state="attached")

    @property
    def state(self) -> str:
        """What stands behind the # of the address."""
        return str(self.page.url.partition("#")[2])

    def text(self, selector: str) -> str:
        """The text of the first such element."""
        return str(self.page.locator(selector).first.inner_text())

    def click(self, selector: str) -> None:
        """A click on the first such element."""
        self.page.locator(selector).first.click()

    def rows(self, key: str = "defense") -> list[str]:
        """The shown rows' text in that column; of a defense the name alone."""
        what = "button.open" if key == "defense" else f"[data-key={key}] .mean"
        return [text.strip() for text in self.page.locator(f"#ranking tbody tr:not([hidden]) {what}").all_inner_texts()]

    def board(self) -> dict[str, Any]:
        """The page's data."""
        found: dict[str, Any] = self.page.evaluate("fedbenchSite.board")
        return found

    def choose(self, filter_: str, value: str) -> None:
        """Another value of a filter."""
        self.page.locator(f"#f-{filter_}").select_option(value)

    def redraw(self, change: str, *args: Any) -> None:
        """A change of the page in JavaScript, and a wait until its figures were drawn again."""
        before = self.page.locator("html").get_attribute("data-figures")
        self.page.evaluate(change, *args)
        self.page.wait_for_function("before => document.documentElement.dataset.figures !== before", arg=before)

    def point_at(self, figure: str, x: float, y: float) -> str:
        """What the tooltips say when the pointer rests on that point of a figure."""
        left, top = self.page.evaluate(_SPOT, [figure, x, y])
        self.page.mouse.move(left - 40, top - 40)
        self.page.mouse.move(left, top)
        tooltips = self.page.locator("body > .bk-Tooltip:visible .bk-tooltip-content")
        tooltips.first.wait_for()
        return "\n".join(tooltips.all_inner_texts())


def opened(label: str, setting: str = "iid", coalition: str = "pair", view: str = "server") -> str:
    """The state of a page with that row open."""
    return urlencode([("row", part) for part in (label, setting, coalition, view)])
