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
        "distributions",
        f"{_HERE}.distributions:Distributions",
        "members and both kinds of non-members by confidence, modified entropy and gradient norm "
        "under local models, and by attacks' scores",
        "Ahmed et al., MemberShield, Neural Networks 2025; Zhu et al., FedMIA, CVPR 2025",
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
        "source-accuracy",
        f"{_HERE}.clients:SourceAccuracy",
        "how often the owner of a sample has the local model of least loss on it",
        "Hu et al., ICDM 2021",
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
