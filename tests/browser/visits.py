"""A page in a browser, what went wrong on it, and what is read off it."""

from __future__ import annotations

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
    """``problems``: errors and warnings (of the policy, too), exceptions, dialogs, requests that
    leave the disk.
    """

    def __init__(self, browser, path, state, context):
        self.problems = []
        self.path = path
        self.context = browser.new_context(**context)
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        self.page.on(
            "console",
            lambda m: (
                self.problems.append(f"{m.type}: {m.text}")
                if m.type in ("error", "warning")
                else None
            ),
        )
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        self.page.on(
            "request",
            lambda r: (
                None if r.url.startswith("file://") else self.problems.append(f"request: {r.url}")
            ),
        )
        self.page.on(
            "dialog",
            lambda dialog: (self.problems.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        )
        self.page.goto(f"{path.as_uri()}#{state}")
        self.ready()

    def ready(self):
        """Waits until a board's figures are drawn."""
        if self.page.locator("body.board").count():
            self.page.wait_for_selector("html[data-figures]", state="attached")

    @property
    def state(self):
        """What stands behind the # of the address."""
        return self.page.url.partition("#")[2]

    def text(self, selector):
        """The text of the first such element."""
        return self.page.locator(selector).first.inner_text()

    def click(self, selector):
        """A click on the first such element."""
        self.page.locator(selector).first.click()

    def rows(self, key="defense"):
        """The shown rows' text in that column; of a defense the name alone."""
        what = "button.open" if key == "defense" else f"[data-key={key}] .mean"
        return [
            text.strip()
            for text in self.page.locator(
                f"#ranking tbody tr:not([hidden]) {what}"
            ).all_inner_texts()
        ]

    def board(self):
        """The page's data."""
        return self.page.evaluate("fedbenchSite.board")

    def choose(self, filter_, value):
        """Another value of a filter."""
        self.page.locator(f"#f-{filter_}").select_option(value)

    def redraw(self, change, *args):
        """A change of the page in JavaScript, and a wait until its figures were drawn again."""
        before = self.page.locator("html").get_attribute("data-figures")
        self.page.evaluate(change, *args)
        self.page.wait_for_function(
            "before => document.documentElement.dataset.figures !== before", arg=before
        )

    def point_at(self, figure, x, y):
        """What the tooltips say when the pointer rests on that point of a figure."""
        left, top = self.page.evaluate(_SPOT, [figure, x, y])
        self.page.mouse.move(left - 40, top - 40)
        self.page.mouse.move(left, top)
        tooltips = self.page.locator("body > .bk-Tooltip:visible .bk-tooltip-content")
        tooltips.first.wait_for()
        return "\n".join(tooltips.all_inner_texts())


def opened(label, setting="iid", coalition="pair", view="server"):
    """The state of a page with that row open."""
    return urlencode([("row", part) for part in (label, setting, coalition, view)])
