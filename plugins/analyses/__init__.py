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
        "sweep",
        f"{_HERE}.strengths:StrengthSweep",
        "hypervolume and trade-off of a defense over its strengths",
        "Zhu et al., FedMIA, CVPR 2025",
    )
    yield Component(
        "tuned",
        f"{_HERE}.strengths:Tuned",
        "each defense at the strength that other seeds choose for it: at matched accuracy, and at "
        "its best",
    )
    paper = "Ahmed et al., MemberShield, Neural Networks 2025"
    yield Component(
        "distributions",
        f"{_HERE}.local_models:Distributions",
        "members and non-members by confidence, modified entropy and gradient norm under local "
        "models",
        paper,
    )
    yield Component(
        "generalisation-error",
        f"{_HERE}.local_models:GeneralisationError",
        "how much better local models do on what they trained on, class by class",
        paper,
    )
    yield Component(
        "client-models",
        f"{_HERE}.local_models:ClientModels",
        "losses and accuracies of every client's model and of the global one in a round",
        paper,
    )
    yield Component(
        "paired-differences",
        f"{_HERE}.strengths:PairedDifferences",
        "by how much one defense leaks more, and is more accurate, than another",
    )
    yield Component(
        "loss-intervals",
        f"{_HERE}.sample_use:LossIntervals",
        "which loss intervals a bandit draws early and late, and how many samples lie in them",
        "Bai et al., CoFedMID, Figure 5",
    )
    paper = "Bai et al., CoFedMID"
    yield Component(
        "loss-trajectories",
        f"{_HERE}.loss_trajectories:LossTrajectories",
        "loss of members, inside and outside non-members over the rounds, canaries apart",
        paper,
    )
    yield Component(
        "data-usage",
        f"{_HERE}.sample_use:DataUsage",
        "in how many rounds samples are trained on, and protected; how many a round",
        paper,
    )
    yield Component(
        "tf01-by-class",
        f"{_HERE}.tf01_by_class:TF01ByClass",
        "members found at 0.1 % false positives, by client and class",
        paper,
    )
