"""Scores calibrated by federations that share their candidates: each trains on a candidate or not,
by a coin of its own, and a score in one federation is judged by those in the others.

Arrays are [F, m] over federations and candidates; ``member`` and ``outside`` are bool, and a
candidate that a federation held out of its training is neither. Nothing of federation f decides
row f of a result but the scores that are judged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray
from scipy.special import logsumexp, stdtrit

FEWEST = 2
"""other federations with, and as many without a candidate, for a mean"""
FPR = 0.01
"""at which a candidate is found"""
OF_CANDIDATE = 64
"""federations from which on each candidate has a variance of its own (Carlini et al. 2022)"""


@dataclass(frozen=True)
class Moments:
    """Mean and variance of each candidate's score over the other federations on one side."""

    mean: ndarray
    """[F, m], NaN below ``FEWEST``"""
    variance: ndarray
    """[F, m]; with few federations that over all candidates together"""
    count: ndarray
    """[F, m] federations of the mean"""
    freedom: ndarray
    """[F, m] degrees of freedom of the variance"""


def moments(scores: ndarray, side: ndarray) -> Moments:
    """Return the moments of the scores on ``side`` [F, m] bool, without federation f's in row f."""
    count = side.sum(0) - side
    enough = count >= FEWEST
    divisor = np.where(enough, count, 1)
    centre = np.where(side, scores, 0.0).sum(0) / np.maximum(side.sum(0), 1)
    # around the mean over all federations: a difference of large squares would lose digits
    shifted = np.where(side, scores - centre, 0.0)
    sums = shifted.sum(0) - shifted
    squares = (shifted**2).sum(0) - shifted**2
    deviations = np.where(enough, squares - sums**2 / divisor, 0.0)
    freedom = np.where(enough, count - 1, 0)
    if len(scores) < OF_CANDIDATE:
        deviations = deviations.sum(1, keepdims=True)
        freedom = freedom.sum(1, keepdims=True)
    freedom = np.broadcast_to(np.maximum(freedom, 1), scores.shape)
    # of scores that are all alike: the smallest number in place of 0
    variance = np.maximum(deviations / freedom, np.finfo(float).tiny)
    mean = np.where(enough, centre + sums / divisor, np.nan)
    return Moments(mean, variance, divisor, freedom)


def lira(scores: ndarray, member: ndarray, outside: ndarray) -> ndarray:
    """Return [F, m] log-likelihood ratios of Gaussians with and without the candidate.

    Carlini et al., IEEE S&P 2022, algorithm 1; with fewer than 64 federations the variances are
    those of all candidates together. NaN where a side has too few federations.
    """
    with_it, without = moments(scores, member), moments(scores, outside)
    return np.asarray(_log_density(scores, with_it) - _log_density(scores, without))


def lira_offline(scores: ndarray, member: ndarray, outside: ndarray) -> ndarray:
    """Return [F, m] deviations from the mean of federations without the candidate, Carlini et al.'s
    offline attack.
    """
    without = moments(scores, outside)
    return np.asarray((scores - without.mean) / np.sqrt(without.variance))


def _log_density(scores: ndarray, of: Moments) -> ndarray:
    return np.asarray(-0.5 * (np.log(of.variance) + (scores - of.mean) ** 2 / of.variance))


def lira_of_vectors(scores: ndarray, member: ndarray, outside: ndarray) -> ndarray:
    """Return [F, m] log-likelihood ratios of vectors of V scores [F, m, V].

    Both sides have one covariance, of all candidates of the other federations around their means in
    these, in units of its deviations and shrunk by Ledoit and Wolf (2004).
    """
    from sklearn.covariance import ledoit_wolf  # takes a second; most boards do not need it

    columns = np.moveaxis(scores, 2, 0)
    with_it = np.stack([moments(column, member).mean for column in columns], axis=2)
    without = np.stack([moments(column, outside).mean for column in columns], axis=2)
    judged = ~np.isnan(with_it[..., 0] + without[..., 0])
    ratios = np.full(member.shape, np.nan)
    for f in np.flatnonzero(judged.any(1)):
        counted = (member | outside) & judged[f]
        counted[f] = False
        means = np.where(member[..., None], with_it[f], without[f])
        residuals = (scores - means)[counted]
        scale = residuals.std(0)
        scale[scale == 0] = 1.0
        covariance = ledoit_wolf(residuals / scale, assume_centered=True)[0]
        inverse = np.linalg.pinv(covariance)
        distances = []
        for mean in (with_it, without):
            gap = (scores[f] - mean[f])[judged[f]] / scale
            distances.append(np.einsum("mv,vw,mw->m", gap, inverse, gap))
        ratios[f, judged[f]] = (distances[1] - distances[0]) / 2
    return ratios


def rmia(log_probabilities: ndarray, member: ndarray, outside: ndarray) -> ndarray:
    """Return [F, m] log p(x | f) minus the log of its mean over the other federations, those with
    and those without the candidate in equal parts.

    Zarifzadeh et al., ICML 2024, section 3 (online). Their score, the share of population samples z
    with a ratio below that of x by a factor, grows with this ratio where all candidates meet the
    same z, so both rank alike.
    """
    sides = []
    for side in (member, outside):
        count = side.sum(0) - side
        sums = np.empty_like(log_probabilities)
        for f in range(len(sums)):
            rest = np.arange(len(sums)) != f
            terms = np.where(side, log_probabilities, -np.inf)[rest]
            with np.errstate(divide="ignore"):  # no federation on this side
                sums[f] = logsumexp(terms, axis=0)
        sides.append(np.where(count >= FEWEST, sums - np.log(np.maximum(count, 1)), np.nan))
    with np.errstate(invalid="ignore"):  # NaN on a side
        return np.asarray(log_probabilities - (np.logaddexp(*sides) - np.log(2.0)))


def passes(scores: ndarray, member: ndarray, outside: ndarray) -> ndarray:
    """Return [F, m] 1 where a member's score passes its own threshold, 0 where not. NaN where it is
    no member.

    The threshold is the 1 - ``FPR`` quantile of one more score without the candidate: Student's t,
    since mean and variance are themselves of few federations.
    """
    without = moments(scores, outside)
    deviations = (scores - without.mean) / np.sqrt(without.variance * (1 + 1 / without.count))
    passed = np.where(deviations > stdtrit(without.freedom, 1 - FPR), 1.0, 0.0)
    return np.where(member & ~np.isnan(deviations), passed, np.nan)


def share_of(passed: ndarray) -> ndarray:
    """Return [m] the mean of ``passed`` [F, m] over federations; NaN without any."""
    judged = ~np.isnan(passed)
    count = judged.sum(0)
    return np.where(count > 0, np.nansum(passed, axis=0) / np.maximum(count, 1), np.nan)
