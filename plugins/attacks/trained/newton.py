"""Many penalised logistic regressions on the same samples at once, by Newton's method."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import expit

ITERATIONS = 100
HALVINGS = 30
TOLERANCE = 1e-6  # of the gradient of the mean loss: sklearn's own is 1e-4


Objective = Callable[[np.ndarray], np.ndarray]


def logistic_regressions(x: np.ndarray, member: np.ndarray, inverse_penalties: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """[K, d + 1] weights, the intercept last, of K regressions on ``x`` [n, d] and ``member`` [n] bool.

    The k-th minimises |w|^2 / 2 + C_k sum_i counted_ki loss_i with C ``inverse_penalties`` [K] and ``counted`` [K, n] bool; the
    intercept goes free. As ``sklearn.linear_model.LogisticRegression``, whose checks of one fit cost more than thirty of these on
    the hundred samples that teach an attack.
    """
    design = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    share = counted / counted.sum(axis=1, keepdims=True)
    penalty = np.outer(1 / (inverse_penalties * counted.sum(axis=1)), np.r_[np.ones(x.shape[1]), 0.0])
    sign = np.where(member, 1.0, -1.0)
    found = np.zeros((len(share), design.shape[1]))
    going = np.arange(len(share))
    for _ in range(ITERATIONS):
        w, sh, pen = found[going], share[going], penalty[going]
        wrong = expit(-sign * (w @ design.T))  # [K, n] probability of the other kind
        gradient = -(sh * sign * wrong) @ design + pen * w
        open_ = np.abs(gradient).max(axis=1) > TOLERANCE
        if not open_.any():
            break
        going, w, sh, pen = going[open_], w[open_], sh[open_], pen[open_]
        curve = sh * (wrong * (1 - wrong))[open_]
        hessian = np.stack([(design * c[:, None]).T @ design for c in curve])
        hessian += np.apply_along_axis(np.diag, 1, pen + 1e-12)  # without it a fold that is told apart exactly has none
        step = np.linalg.solve(hessian, gradient[open_][..., None])[..., 0]
        found[going] = _downhill(w, step, gradient[open_], lambda v, sh=sh, pen=pen: _objective(v, design, sign, sh, pen))
    return found


def _objective(w: np.ndarray, design: np.ndarray, sign: np.ndarray, share: np.ndarray, penalty: np.ndarray) -> np.ndarray:
    """[K]: mean loss and penalty at ``w`` [K, d + 1]."""
    return (share * np.logaddexp(0, -sign * (w @ design.T))).sum(axis=1) + (penalty * w**2).sum(axis=1) / 2


def _downhill(w: np.ndarray, step: np.ndarray, gradient: np.ndarray, objective: Objective) -> np.ndarray:
    """``w`` minus as much of each Newton ``step``, halved and halved again, as lowers its objective enough (Armijo)."""
    before, promised, length = objective(w), (gradient * step).sum(axis=1), np.ones(len(w))
    for _ in range(HALVINGS):
        short = objective(w - length[:, None] * step) > before - 1e-4 * length * promised + 1e-14
        if not short.any():
            break
        length[short] /= 2
    return w - length[:, None] * step
