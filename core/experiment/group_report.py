"""Groups of clients side by side: how accurate their models are, and how equally they are treated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedbench.core.experiment.job import Job
from fedbench.core.experiment.scene import Scene
from fedbench.core.experiment.train import Trained
from fedbench.core.metrics.fairness import fairness_report
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.audit import EXCLUDED, MEMBER
from fedbench.core.store.record import GroupFacts, Society, Violations


def society_of(job: Job, scene: Scene, trained: Trained) -> Society | None:
    """Accuracy per group and the fairness gaps on the test set, where test sample i is client i mod K's; None without groups."""
    if scene.groups is None:
        return None
    y, group = scene.data.test_y, scene.test_group
    facts = []
    for g, name in enumerate(scene.groups.names):
        mine = group == g
        accuracy = float(trained.test_correct[mine].mean())
        facts.append(GroupFacts(
            name=name, clients=int((scene.groups.of_client == g).sum()), accuracy=accuracy, n_test=int(mine.sum())
        ))  # fmt: skip
    fair = fairness_report(trained.predicted, y, group, numpy_rng(job.seed, "fairness"))
    return Society(
        groups=facts, demographic_parity=fair.demographic_parity, demographic_parity_se=fair.demographic_parity_se,
        equal_opportunity=fair.equal_opportunity, equal_opportunity_se=fair.equal_opportunity_se,
        equalised_odds=fair.equalised_odds, equalised_odds_se=fair.equalised_odds_se,
    )  # fmt: skip


def violations_of(
    scene: Scene, trained: Trained, said: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], malicious: int = 0
) -> Violations | None:
    """Honest clients (all but the last ``malicious``) whose final global model gives more away than they tolerate.

    ``said``: for every target (decisions [n] bool, kinds [n], global model of each candidate [n]). The accuracy of a
    model is (TPR + TNR) / 2 over the candidates it serves (IFCA-MIR, equation 8). None where the clients have no threshold.
    """
    if scene.thresholds is None or not len(trained.assignment):
        return None
    decided, kind, model = (np.concatenate(parts) for parts in zip(*said, strict=True))
    counted, member = kind != EXCLUDED, kind == MEMBER
    assignment = trained.assignment[-1]
    accuracy: list[float | None] = []
    for j in range(int(assignment.max()) + 1):
        mine = counted & (model == j)
        inside, outside = mine & member, mine & ~member
        known = inside.any() and outside.any()
        accuracy.append(float((decided[inside].mean() + (~decided[outside]).mean()) / 2) if known else None)
    honest = len(assignment) - malicious
    exposed = np.array([-np.inf if (a := accuracy[j]) is None else a for j in assignment[:honest]])
    return Violations(violated=int((exposed > scene.thresholds[:honest]).sum()), clients=honest, accuracy_of_model=accuracy)
