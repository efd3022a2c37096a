"""Stacked: an ensemble on all signals and rounds of a view, learnt from colluding clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy import ndarray
from pydantic import Field, model_validator
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from fedbench.core import Audit, Colluder, Observations, SkipCell
from fedbench.plugins.attacks.classifiers import SMALLEST
from fedbench.plugins.attacks.measures import (
    MEASURES,
    Measure,
    carried,
    float64,
    measure_of,
    of_target,
    signal,
    slope,
)
from fedbench.plugins.attacks.taught import Scorer, Teaching, WithTeacher, score_by_fold

GUARD = 1e-8  # added to the other clients' variance, as FedMIA does


def minus_log(name: str) -> Measure:
    """Return the measurement -ln of a squared length."""
    return Measure(
        frozenset({name}), lambda observations: -np.log(float64(observations, name) + SMALLEST)
    )


MEASURED: dict[str, Measure] = {
    "logit-confidence": MEASURES["rescaled"],
    **{n: measure_of(n) for n in ("loss", "margin", "max-prob", "std-prob", "entropy")},
    "modified-entropy": MEASURES["modified-entropy"],
    "uniform-loss": signal("uniform-loss", -1),
    "grad-cosine": MEASURES["grad-cosine"],
    "grad-diff": MEASURES["grad-diff"],
    "grad-norm": minus_log("grad-sq"),
    "upload-grad-norm": minus_log("upload-grad-sq"),
}
NEEDS = frozenset().union(*(measure.needs for measure in MEASURED.values()))


def contrast(target: ndarray, peers: ndarray) -> ndarray:
    """Return (value - mean) / deviation [R, n] of ``target`` [R, n] among ``peers`` [R, M, n]; 0 in
    a round with fewer than two.
    """
    present = ~np.isnan(peers).any(axis=2)  # [R, M]
    z = np.zeros_like(target)
    for r in np.flatnonzero(present.sum(axis=1) >= 2):
        values = peers[r, present[r]]
        deviation = np.sqrt(values.var(axis=0, ddof=1) + GUARD)
        z[r] = (target[r] - values.mean(axis=0)) / deviation
    return z


def features(observations: Observations) -> ndarray:
    """Return [n, d] float64: of every measurement on the target's row and, where other clients are
    seen, of its contrast with theirs, all rounds, the mean, the slope and the spread.

    In a round without the client its last value before it stands in. Raises ``SkipCell`` where it
    never took part.
    """
    columns: list[ndarray] = []
    for measure in MEASURED.values():
        measured = measure.compute(observations)
        series = [carried(of_target(measured, observations))]
        if len(observations.clients) > 2 and measured.shape[1] > 2:
            peers = np.delete(measured, observations.target, axis=1)
            series.append(contrast(series[0], peers))
        for a in series:
            columns += [*a, a.mean(axis=0)]
            if len(a) > 1:
                columns += [slope(observations.rounds, a), a.std(axis=0)]
    x = np.stack(columns, axis=1)
    if not np.isfinite(x).all():
        raise SkipCell("a signal is not finite, so that no classifier can read it")
    return x


BINS = 32  # a split lies between two of so many equal shares of the samples
INVERSE_PENALTY = 1e-3  # hundreds of features that say much the same, of few members
BOOSTING = {
    "max_iter": 30,
    "learning_rate": 0.2,
    "max_leaf_nodes": 8,
    "min_samples_leaf": 20,
    "l2_regularization": 1.0,
    "early_stopping": False,
    "max_bins": BINS,
}


class Stacked(WithTeacher):
    """Score = mean of two ranks: of a logistic regression's and of a boosted ensemble of trees' log
    odds.

    Both read every signal of the view in every audited round: each round's value, the mean, slope
    and spread over the rounds, and, where the view shows other clients, the same of the value's
    distance from theirs in deviations (FedMIA's contrast). A round without the client has its last
    value before it. Each feature is replaced by its normal score among the samples of one client:
    clients differ in their losses, and what carries over from a colluder to the target is who is
    high among its own. Ranks are within the folds. In the view ``client`` several colluders see one
    model, and their samples are its members together. Source: ensembles of this kind led the red
    teams of NIST's genomics federated-learning exercise (2025); stacking: Wolpert, Neural Networks
    1992; the contrast: Zhu et al. (FedMIA), CVPR 2025.
    """

    class Params(Teaching):
        colluders: int = Field(
            1, ge=1, le=1000, description="clients that collude, with teacher colluder"
        )

        @model_validator(mode="after")
        def _a_half_has_no_colluders(self):
            if self.teacher == "half" and self.colluders != 1:
                raise ValueError(
                    "'colluders' belongs to teacher colluder: leave it out, or set teacher to "
                    "colluder"
                )
            return self

    needs = NEEDS
    threshold = None

    @property
    def colluders(self) -> int:  # type: ignore[override]
        """Number of clients that teach it."""
        return super().colluders * self.params.colluders

    def _learn_from(self, shadows: Sequence[Colluder], audit: Audit) -> None:
        lessons = [(s.ids, *_read(s.observations), np.asarray(s.member)) for s in shadows]
        ids, x, bins, member = map(np.concatenate, zip(*lessons, strict=True))
        if self.view == "client":  # one model: what one colluder does not own, another may
            member = np.isin(ids, ids[member])
            first = np.sort(np.unique(ids, return_index=True)[1])
            ids = ids[first]
            x = x[first]
            bins = bins[first]
            member = member[first]
        seed = int(audit.rng.integers(2**31))
        with threadpool_limits(limits=1):
            self._models = [
                _ensemble(x[rows], bins[rows], member[rows], seed)
                for rows in self._lessons(ids, member)
            ]

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        x, bins = _read(observations)
        with threadpool_limits(limits=1):
            return score_by_fold(self._models, self._folds(audit.ids), x, bins)


def _ensemble(x: ndarray, bins: ndarray, member: ndarray, seed: int) -> Scorer:
    """Fit the two models to ``x`` and ``bins`` [n, d] and ``member`` [n] bool; return their mean
    rank.
    """
    regression = LogisticRegression(
        C=INVERSE_PENALTY, tol=1e-6, max_iter=1000, class_weight="balanced"
    )
    # the trees' samples all weigh the same: only their ranks are used, and weights cost twenty
    # times the training
    boosting = HistGradientBoostingClassifier(**BOOSTING, random_state=seed)
    return partial(_mean_rank, regression.fit(x, member), boosting.fit(bins, member))


def _mean_rank(
    regression: LogisticRegression,
    boosting: HistGradientBoostingClassifier,
    x: ndarray,
    bins: ndarray,
) -> ndarray:
    odds = (regression.decision_function(x), boosting.decision_function(bins))
    return np.mean([(rankdata(s) - 0.5) / len(s) for s in odds], axis=0)


def _read(observations: Observations) -> tuple[ndarray, ndarray]:
    """Return each feature's normal scores and its bins, BINS equal shares of the ranks, [n, d]
    each.
    """
    # twice the ranks from 0, whole numbers; ties share the middle one
    ranks = (2 * rankdata(features(observations), axis=0) - 2).astype(np.int64)
    n = len(ranks)
    levels = np.arange(2 * n - 1)
    bins = (levels * BINS // (2 * n - 1)).astype(np.float64)
    return ndtri((levels / 2 + 0.5) / n)[ranks], bins[ranks]
