"""Built-in analyses."""

from __future__ import annotations

from collections.abc import Iterator

from fedbench.core import Component, hookimpl

_HERE = "fedbench.plugins.analyses"


@hookimpl
def fedbench_analyses() -> Iterator[Component]:
    yield Component(
        "group-fairness",
        f"{_HERE}.groups:GroupFairness",
        "accuracy of each group of clients, how differently they are treated, and what attacks "
        "find in each",
        "Jung et al., ARTMAN 2025",
    )
    yield Component(
        "violations",
        f"{_HERE}.clients:Violations",
        "how many clients' models are read more accurately by an attack than they tolerate",
        "Jung et al., ARTMAN 2025",
    )
    yield Component(
        "migration",
        f"{_HERE}.clients:Migration",
        "each client's exposure, compared between clients that change their model and those that "
        "stay",
    )
    yield Component(
        "tuned",
        f"{_HERE}.strengths:Tuned",
        "each defense at the strength that other seeds choose for it: at matched accuracy, and at "
        "its best",
    )
    yield Component(
        "paired-differences",
        f"{_HERE}.strengths:PairedDifferences",
        "by how much one defense leaks more, and is more accurate, than another",
    )
