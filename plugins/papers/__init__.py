"""Claims, printed numbers and figures of the papers that built-in methods come from."""

from __future__ import annotations

from collections.abc import Iterator

from fedbench.core import Component, hookimpl

_HERE = "fedbench.plugins.papers"


@hookimpl
def fedbench_analyses() -> Iterator[Component]:
    yield Component(
        "published-numbers",
        f"{_HERE}.tables:PublishedNumbers",
        "numbers that papers print beside the board's",
    )
    yield Component(
        "paper-claims",
        f"{_HERE}.tables:PaperClaims",
        "sentences of papers, tested on the board",
    )
    yield Component(
        "rounds",
        f"{_HERE}.rounds:Rounds",
        "attacks by the choice of their round, and the maximum over attacks and rounds",
    )
    yield Component(
        "sweep",
        f"{_HERE}.sweeps:Sweeps",
        "curves and directions along swept settings; hypervolume of a defense over its strengths",
        "Zhu et al., FedMIA, CVPR 2025",
    )
    paper = "Ahmed et al., MemberShield, Neural Networks 2025"
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
    paper = "Bai et al., CoFedMID"
    yield Component(
        "loss-intervals",
        f"{_HERE}.sample_use:LossIntervals",
        "which loss intervals a bandit draws early and late, and how many samples lie in them",
        f"{paper}, Figure 5",
    )
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
