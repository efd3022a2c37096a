"""Built-in analyses."""

from __future__ import annotations

from collections.abc import Iterator

from fedbench.core import Component, hookimpl

_HERE = "fedbench.plugins.analyses"


@hookimpl
def fedbench_analyses() -> Iterator[Component]:
    yield Component(
        "group-fairness", f"{_HERE}.group_fairness:GroupFairness",
        "accuracy of each group of clients, how differently they are treated, and what attacks find in each",
        "Jung et al., ARTMAN 2025",
    )  # fmt: skip
    yield Component(
        "violations", f"{_HERE}.violations:Violations",
        "how many clients' models are read more accurately by an attack than they tolerate", "Jung et al., ARTMAN 2025",
    )  # fmt: skip
    yield Component(
        "migration", f"{_HERE}.migration:Migration",
        "each client's exposure, compared between clients that change their model and those that stay",
    )  # fmt: skip
    yield Component(
        "sweep", f"{_HERE}.sweep:StrengthSweep", "hypervolume and trade-off of a defense over its strengths",
        "Zhu et al., FedMIA, CVPR 2025",
    )  # fmt: skip
