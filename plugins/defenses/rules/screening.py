"""Aggregation rules that reject rows by their effect on a model: Fang and DeepSight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field
from sklearn.cluster import HDBSCAN
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from fedbench.core import (
    Defense,
    FactValue,
    Federation,
    Params,
    ReportContext,
    ServerContext,
    UserError,
    norms,
)
from fedbench.plugins.defenses.rules.geometry import (
    ExpectsMalicious,
    RobustRule,
    clipped_mean,
    cosines,
    require_majority,
)

Reject = Literal["err", "lfr", "union"]
WORST = 1e30  # for a loss that is not finite: leaving its cause out is an improvement, not NaN


def leave_one_out(updates: Tensor) -> Iterator[Tensor]:
    """Yield K vectors [P]: the mean of all rows [K, P] but the k-th; K >= 2.

    Sums of the rows before and after k: taking row k off the sum of all would leave nothing of the
    others beside a huge row's rounding error.
    """
    before = torch.zeros_like(updates[0])
    after = [before]
    for row in updates[1:].flip(0):
        after.append(after[-1] + row)
    for row in updates:
        yield (before + after.pop()) / (len(updates) - 1)
        before = before + row


Evaluate = Callable[[Tensor], tuple[float, float]]  # of a step [P]: (loss, error rate)


def impacts(updates: Tensor, evaluate: Evaluate) -> ndarray:
    """Fall [K, 2] of (loss, error rate) when each row is left out."""
    with_all = np.array(evaluate(updates.mean(dim=0)))
    return np.array([with_all - np.array(evaluate(step)) for step in leave_one_out(updates)])


def rejected(impact: ndarray, f: int, reject: Reject) -> set[int]:
    """Return the ``f`` rows of largest impact on the error rate (ERR), the loss (LFR), or both.

    Both are up to 2f rows. Error rates on a small sample often tie: the larger impact on the loss
    then decides.
    """
    loss, error = impact.T
    rows = set()
    if reject != "lfr":
        rows |= {*np.lexsort((-loss, -error))[:f].tolist()}
    if reject != "err":
        rows |= {*np.argsort(-loss, kind="stable")[:f].tolist()}
    return rows


def fang(updates: Tensor, f: int, reject: Reject, evaluate: Evaluate) -> Tensor:
    """Mean [P] of the rows [K, P] that are not rejected; ``UserError`` when all are."""
    n = len(updates)
    if f == 0:
        return updates.mean(dim=0)
    removed = set(range(n))
    if f < n:
        removed = rejected(impacts(updates, evaluate), f, reject)
    if len(removed) == n:
        raise UserError(
            f"fang with f = {f} and reject {reject} removes all of the {n} rows: lower f"
        )
    return updates[[k for k in range(n) if k not in removed]].mean(dim=0)


class Fang(RobustRule):
    """Remove the rows without which the averaged model has the lower error (ERR) or loss (LFR) on
    the server's own data.

    The impact of row k is the error rate, or the loss, of the global model moved by the mean of all
    rows less that of the model moved by the mean of all others; the f rows of largest impact are
    removed and the rest is averaged unweighted. ``union`` removes what either rejects. The data are
    ``root`` samples that are in no training, test or audit data; the poisoning paper's code takes
    the whole test set, the attack's own non-members included, which is not offered. It evaluates K
    + 1 models a round. Source: Fang et al., USENIX Security 2020, "Error Rate based Rejection",
    "Loss Function based Rejection", "Union".
    """

    class Params(ExpectsMalicious):
        reject: Reject = Field(
            "union", description="by error rate, by loss, or what either of them rejects"
        )
        root: int = Field(100, ge=1, description="samples the server has of its own")

    tasks = frozenset({"classification"})
    rule = "fang"
    condition = (2, 1)

    @property
    def root_samples(self) -> int:  # type: ignore[override]
        """Number of samples the server has of its own."""
        return self.params.root

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        """Mean [P] of the rows that are kept; ``UserError`` where none is."""
        f = self._expected(ctx, len(updates), 0, 1)
        return fang(updates, f, self.params.reject, lambda step: _evaluate(step, ctx))


def _evaluate(step: Tensor, ctx: ServerContext) -> tuple[float, float]:
    """Mean cross-entropy and error rate on the root samples of the model moved by ``step`` [P]."""
    assert ctx.root and ctx.logits  # `root_samples` asks for them
    x = ctx.root.x
    y = ctx.root.y
    logits = ctx.logits(ctx.params + step, x).double()
    loss = float(cross_entropy(logits, y))
    error = float((logits.argmax(dim=1) != y).double().mean())
    return min(loss if np.isfinite(loss) else WORST, WORST), error


LARGEST = 80.0  # log of a probability ratio: no row makes a distance infinite


def update_energies(weight: Tensor, bias: Tensor) -> ndarray:
    """Return the NEUPs [K, C], each output neuron's part of a row's squared update energies.

    They sum to 1 over the neurons. ``weight``: [K, C, ...], ``bias``: [K, C], updates of the output
    layer. A row that changes neither gets 1 / C everywhere.
    """
    energy = bias.double().abs() + weight.double().abs().flatten(2).sum(dim=2)
    squared = energy.cpu().numpy() ** 2
    total = squared.sum(axis=1, keepdims=True)
    return np.where(total > 0, squared / np.where(total > 0, total, 1), 1 / squared.shape[1])


def threshold_exceedings(neups: ndarray, factor: float) -> ndarray:
    """Number [K] of NEUPs of a row that exceed max(factor, 1 / C) times its largest one."""
    threshold = max(factor, 1 / neups.shape[1]) * neups.max(axis=1, keepdims=True)
    return (neups > threshold).sum(axis=1)


def division_differences(logits: Iterable[Tensor], reference: Tensor) -> ndarray:
    """Return the DDifs [K, C]: the mean over the samples of p_k(c | s) / p(c | s).

    ``logits`` of each row's model and ``reference`` of the global one: [m, C].
    """
    before = log_softmax(reference.double(), dim=1)
    means = []
    for rows in logits:
        ratio = log_softmax(rows.double(), dim=1) - before
        means.append(ratio.nan_to_num(LARGEST).clamp_max(LARGEST).exp().mean(dim=0))
    return torch.stack(means).cpu().numpy()


def clusters(features: ndarray, size: int, metric: str = "euclidean") -> ndarray:
    """Cluster labels [K] by HDBSCAN of features [K, d]; ``precomputed``: of distances [K, K].

    A row that belongs to no cluster is one of its own. Fewer than 2 ``size`` rows cannot make two
    clusters.
    """
    n = len(features)
    singles = np.arange(n) + n
    if n < 2 * size:
        return singles
    labels = HDBSCAN(min_cluster_size=size, metric=metric, copy=True).fit_predict(features)
    return np.where(labels < 0, singles, labels)


def separation(features: ndarray, size: int, metric: str = "euclidean") -> ndarray:
    """Return [K, K]: 0 where two rows are in one cluster, 1 where not."""
    labels = clusters(features, size, metric)
    return (labels[:, None] != labels).astype(float)


def ensemble(neups: ndarray, ddifs: Sequence[ndarray], cosine: ndarray, size: int) -> ndarray:
    """Cluster by each feature, average the separations, and cluster by these: labels [K].

    ``neups``: [K, C]; ``ddifs``: [K, C] for each seed; ``cosine``: [K, K] cosine distances of the
    bias updates.
    """
    by_ddif = np.mean([separation(d, size) for d in ddifs], axis=0)
    by_neup = separation(neups, size)
    by_cosine = separation(cosine, size, "precomputed")
    return clusters((by_neup + by_ddif + by_cosine) / 3, size, "precomputed")


def accepted(labels: ndarray, exceedings: ndarray, tau: float) -> ndarray:
    """Mask [K] of the rows of clusters in which less than ``tau`` of the rows are suspicious.

    Suspicious: its threshold exceedings are no more than half of the median, so it was trained on
    few classes.
    """
    suspicious = exceedings <= np.median(exceedings) / 2
    return np.array([suspicious[labels == label].mean() < tau for label in labels])


class DeepSight(Defense):
    """Three fingerprints of each row cluster the rows; clusters that look poisoned go, the rest is
    clipped and averaged.

    Fingerprints: normalised update energies of the output neurons (NEUPs), the ratio of the row's
    to the global model's probabilities on random inputs (DDifs), and the cosine distance of the
    output bias updates. A row with NEUPs above the threshold in at most half as many neurons as in
    the median row is suspicious; a cluster goes when at least a third of it is. The kept rows are
    clipped to the median norm of all rows and averaged unweighted. When every cluster goes, the
    model stays as it is for this round.

    What it looks for is rows trained on few classes. Poison with labels of all classes exceeds the
    threshold in as many neurons as anything honest; then no row goes, and what is left is clipping
    to the median norm. The facts "rows removed" and "acts as" of a run say so.

    The paper's, as two independent public reimplementations agree on them (the paper itself was not
    at hand): half of the median, ``tau`` 1/3, 3 seeds of 20,000 inputs, the mean of the three
    distances, clipping to the median norm. By the numbers that one of them gives, they are equation
    6 (DDifs), 7 and 8 (NEUPs), 9 to 11 (exceedings), 12 (clipping), and algorithms 1 (suspicion and
    vote) and 2 (ensemble). The 1 % in the threshold is in one of them alone; the other has 1 /
    classes, which is the same up to 100 classes. Ours, since that source says the paper leaves it
    open: standard normal inputs (the two take uniform ones), fresh every round and the same for all
    rows; HDBSCAN's least cluster of 3 rows, as its usual 5 leaves no clusters to a cohort of 8.
    Ours, too: 1,000 inputs for each seed instead of 20,000, which would cost more than the training
    of most federations. A row in no cluster is judged alone. Rows of equal distances may be
    clustered by their order. It evaluates seeds x (K + 1) models a round on ``samples`` inputs, and
    needs an output layer with a bias. The poisoning paper's "DeepSight" (two means over norms,
    clipping to 1) is another method and is not offered. Source: Rieger et al., NDSS 2022: NEUPs,
    threshold exceedings, DDifs, ensemble clustering, classification, clipping.
    """

    tasks = frozenset({"classification"})

    class Params(Params):
        samples: int = Field(
            1000, ge=1, description="random inputs for each seed of the DDifs; the paper: 20000"
        )
        seeds: int = Field(3, ge=1, description="sets of random inputs")
        threshold: float = Field(
            0.01,
            gt=0,
            lt=1,
            description="part of a row's largest NEUP that counts as exceeded; 1 / classes where "
            "that is more",
        )
        tau: float = Field(
            1 / 3,
            gt=0,
            le=1,
            description="part of a cluster's rows that must be suspicious to leave it out",
        )
        cluster_size: int = Field(3, ge=2, description="least rows of a cluster (HDBSCAN)")

    def check(self, federation: Federation) -> None:
        """Raise ``UserError`` unless most rows are honest, as the medians need."""
        require_majority("deepsight", federation)

    def aggregate(self, updates: Tensor, weights: Tensor, ctx: ServerContext) -> Tensor:
        """Clipped mean [P]; ``UserError`` for a model without a bias in its output layer."""
        keep = np.flatnonzero(self._accept(updates, ctx))
        lengths = norms(updates)
        ctx.memory["removed"] = ctx.memory.get("removed", 0) + len(updates) - len(keep)
        if not len(keep):
            return torch.zeros_like(updates[0])
        return clipped_mean(updates[keep], lengths[keep], float(lengths.quantile(0.5)))

    def report(self, ctx: ReportContext) -> dict[str, FactValue]:
        """Count the rows left out in all rounds, and tell a filter from mere norm clipping."""
        removed = sum(memory.get("removed", 0) for memory in ctx.of_server.values())
        acts_as = "norm clipping (no row was ever removed)"
        if removed:
            acts_as = "filter and norm clipping"
        return {"rows removed": removed, "acts as": acts_as}

    def _accept(self, updates: Tensor, ctx: ServerContext) -> ndarray:
        """Mask [K] of the rows [K, P] that are kept."""
        p = self.params
        weight, bias = _output_layer(updates, ctx)
        neups = update_energies(weight, bias)
        ddifs = [self._ddifs(updates, ctx) for _ in range(p.seeds)]
        labels = ensemble(neups, ddifs, 1 - cosines(bias), p.cluster_size)
        return accepted(labels, threshold_exceedings(neups, p.threshold), p.tau)

    def _ddifs(self, updates: Tensor, ctx: ServerContext) -> ndarray:
        assert ctx.logits is not None
        noise = ctx.randn(self.params.samples, *ctx.input_shape)
        logits = [ctx.logits(ctx.params + row, noise) for row in updates]
        return division_differences(logits, ctx.logits(ctx.params, noise))


def _output_layer(updates: Tensor, ctx: ServerContext) -> tuple[Tensor, Tensor]:
    """Weight [K, C, ...] and bias [K, C] of the output layer's updates."""
    classes = ctx.federation.n_classes
    shapes = [layer.shape for layer in ctx.layers[-2:]]
    if len(shapes) < 2 or len(shapes[0]) < 2 or shapes[0][0] != classes or shapes[1] != (classes,):
        raise UserError(
            "deepsight reads the output layer's bias, and this model's output layer has none: "
            "choose another model"
        )
    weight, bias = ctx.layers[-2:]
    return weight.of(updates), bias.of(updates)
