"""Stacked: an ensemble over all signals and rounds that a view offers, taught by colluding clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field, model_validator
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from fedbench.core import Audit, Colluder, Observations, SkipCell
from fedbench.plugins.attacks.taught import Taught, Teaching
from fedbench.plugins.attacks.trained.stacked_features import NEEDS, features

INVERSE_PENALTY = 1e-3  # hundreds of features that say much the same, of few members
BOOSTING = {
    "max_iter": 60, "learning_rate": 0.1, "max_leaf_nodes": 8, "min_samples_leaf": 20, "l2_regularization": 1.0,
    "early_stopping": False,
}  # fmt: skip


class Stacked(Taught):
    """Score = mean of two ranks: of a logistic regression's and of a boosted ensemble of trees' log odds.

    Both read every signal of the view in every audited round: each round's value, the mean, slope and spread over the rounds,
    and, where the view shows other clients, the same of the value's distance from theirs in deviations (FedMIA's contrast).
    A round without the client has its last value before it. Each feature is replaced by its normal score among the samples
    of one client: clients differ in their losses, and what carries over from a colluder to the target is who is high among
    its own. They learn from colluders, never from the answers: a sample that is in the colluders' pool and among the
    candidates is scored by the models that have not learnt from it, and ranks are within these folds.
    In the view ``client`` several colluders see one model, and their samples are its members together.
    Source: ensembles of this kind led the red teams of NIST's genomics federated-learning exercise (2025); stacking:
    Wolpert, Neural Networks 1992; the contrast: Zhu et al. (FedMIA), CVPR 2025.
    """

    class Params(Teaching):
        colluders: int = Field(1, ge=1, le=1000, description="clients that collude, with teacher colluder")

        @model_validator(mode="after")
        def _a_half_has_no_colluders(self):
            if self.teacher == "half" and self.colluders != 1:
                raise ValueError("'colluders' belongs to teacher colluder: leave it out, or set teacher to colluder")
            return self

    needs = NEEDS
    threshold = None

    @property
    def colluders(self) -> int:  # type: ignore[override]
        """How many clients teach it."""
        return self.params.colluders if self.params.teacher == "colluder" else 0

    def fit(self, shadows: Sequence[Colluder], audit: Audit) -> None:
        if not shadows:
            raise SkipCell("no client other than the target is left to collude with the attacker")
        self._key = audit.key
        lessons = [(s.ids, _normal_scores(features(s.observations)), np.asarray(s.member)) for s in shadows]
        ids, x, member = (np.concatenate(parts) for parts in zip(*lessons, strict=True))
        if self.view == "client":  # one model: what one colluder does not own, another may
            member = np.isin(ids, ids[member])
            once = np.sort(np.unique(ids, return_index=True)[1])
            ids, x, member = ids[once], x[once], member[once]
        seed = int(audit.rng.integers(2**31))
        with threadpool_limits(1):  # sums in one order: the same bits wherever it runs
            self._models = [_ensemble(x[seen], member[seen], seed) for seen in self._lessons(ids, member)]

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        x, fold = _normal_scores(features(observations)), self._folds(audit.ids)
        score = np.empty(len(fold), np.float64)
        with threadpool_limits(1):
            for f, models in enumerate(self._models):
                mine = fold == f
                if mine.any():
                    said = [model.decision_function(x[mine]) for model in models]
                    score[mine] = np.mean([(rankdata(s) - 0.5) / len(s) for s in said], axis=0)
        return score


def _ensemble(x: np.ndarray, member: np.ndarray, seed: int) -> list[Any]:
    """The two models fitted to ``x`` [n, d], ``member`` [n] bool."""
    regression = LogisticRegression(C=INVERSE_PENALTY, solver="newton-cholesky", class_weight="balanced")
    # the trees' samples all weigh the same: only their ranks are used, and weights cost twenty times the training
    boosting = HistGradientBoostingClassifier(**BOOSTING, random_state=seed)
    return [model.fit(x, member) for model in (regression, boosting)]


def _normal_scores(x: np.ndarray) -> np.ndarray:
    """[n, d]: each column's ranks as quantiles of a standard normal; ties share the middle one."""
    return np.asarray(ndtri((rankdata(x, axis=0) - 0.5) / len(x)))
