"""Records to reports: statistics -> tables -> Markdown, and figures. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from fedbench.core import Component, hookimpl


@hookimpl
def fedbench_reports() -> Iterator[Component]:
    yield Component(
        "board",
        "fedbench.leaderboard.board:MarkdownBoard",
        "one page of Markdown: the answer, and a table a setting and coalition",
    )
    yield Component(
        "full",
        "fedbench.leaderboard.board:FullBoard",
        "every table and figure as Markdown",
    )
    yield Component(
        "audit",
        "fedbench.leaderboard.audit_page:AuditPage",
        "two pages for readers who were not there, as HTML and PDF",
    )
