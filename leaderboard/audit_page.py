"""The report `audit`: an auditor's page of two sheets in HTML, and as PDF where a browser is."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from fedbench.core import Params as BaseParams
from fedbench.core import Report, Summary
from fedbench.core.contract.board import Block, Bullets, Heading, Note, Quote, Table, Text, Words
from fedbench.core.store.files import write_atomically
from fedbench.core.words import DOCS, one_line
from fedbench.leaderboard.audit_blocks import audit_blocks
from fedbench.leaderboard.document import source_of
from fedbench.leaderboard.markdown import places
from fedbench.leaderboard.site.pages import environment

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SECONDS = 120
_TAGS = {"plain": "{}", "strong": "<strong>{}</strong>", "code": "<code>{}</code>"}


class AuditPage(Report):
    """``leaderboard/audit.html`` and ``.pdf``: result, scope, adversaries, limits, versions."""

    name = "audit"
    _note = ""

    class Params(BaseParams):
        records: int = Field(
            default=0, ge=0, le=20, description="number of most exposed records to name"
        )

    def write(self, results: Path, plots: bool = True) -> Path:
        """Write the page; return the PDF, or without a browser the HTML.

        Raises:
            UserError: for records that cannot be used, and where jinja2 is missing.
        """
        template = environment("--report audit").get_template("audit.html")
        blocks = audit_blocks(source_of(results), self.params.records)
        path = results / "leaderboard" / "audit.html"
        write_atomically(path, template.render(blocks=list(_drawn(blocks)), docs=DOCS).encode())
        pdf = path.with_suffix(".pdf")
        self._note = print_pdf(path, pdf)
        if self._note:
            return path
        return pdf

    def summary(self, results: Path) -> Summary:
        """Return why there is no PDF, where there is none."""
        return Summary([], [], notes=[self._note] if self._note else [])


def print_pdf(page: Path, pdf: Path) -> str:
    """Print a page to a file by the first browser on the path; return why there is none."""
    pdf.unlink(missing_ok=True)  # of an earlier page
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return f"audit.html alone: no browser that prints a PDF ({', '.join(BROWSERS)}) is here"
    command = [browser, "--headless", "--disable-gpu", "--no-pdf-header-footer"]
    if os.geteuid() == 0:  # its sandbox refuses root, the user of containers
        command.append("--no-sandbox")
    temporary = pdf.with_suffix(".part.pdf")
    command += [f"--print-to-pdf={temporary.absolute()}", page.absolute().as_uri()]
    try:
        ended = subprocess.run(command, capture_output=True, timeout=_SECONDS)
        reason = one_line(ended.stderr.decode(errors="replace")[-300:])
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = one_line(str(error))
    if not temporary.exists():
        return f"audit.html alone: {browser} printed no PDF ({reason})"
    os.replace(temporary, pdf)
    return ""


# -- blocks for the template -----------------------------------------------------------------------


def _drawn(blocks: Iterable[Block]) -> Iterable[dict[str, Any]]:
    """Yield what the template reads of each block: kind and texts."""
    from markupsafe import Markup

    for block in blocks:
        if isinstance(block, Heading):
            yield {"kind": f"h{block.level}", "text": markup(block.text)}
        elif isinstance(block, Bullets):
            yield {"kind": "list", "items": [markup(item) for item in block.items]}
        elif isinstance(block, Table):
            header, *rows = [list(map(Markup, line)) for line in places(block, markup)]
            yield {
                "kind": "table",
                "title": markup(Words(block.title, "strong")) + markup(block.caption),
                "header": header,
                "rows": rows,
                "align": [column.align for column in block.columns],
                "notes": [markup(note) for note in block.footnotes],
            }
        elif isinstance(block, Note):
            yield {"kind": "p", "text": markup(block.text)}


def markup(text: Text) -> str:
    """Return a text as HTML: every character of it is escaped."""
    from markupsafe import Markup

    if isinstance(text, tuple):
        return Markup("").join(map(markup, text))
    if isinstance(text, str):
        text = Quote(text)
    line = text.text
    if isinstance(text, Quote):
        line = one_line(line, text.limit)
    return Markup(_TAGS[text.style]).format(line)
