"""Scores calibrated by federations that share their candidates: each has a candidate in a client's
data with a probability of its own, and a score in one federation is judged by those in the others.

Arrays are [F, m] over federations and candidates. Nothing of federation f decides its own row but
the scores that are judged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray
from scipy.special import logsumexp, ndtri

FEWEST = 2
"""other federations with, and as many without a candidate, for a mean"""
OF_CANDIDATE = 64
"""federations from which on each candidate has a variance of its own (Carlini et al. 2022)"""


@dataclass(frozen=True)
class Moments:
    """Mean and variance of each candidate's score over the other federations on one side: those
    that have the candidate, or those that do not.
    """

    count: ndarray
    """[F, m]"""
    mean: ndarray
    """[F, m], NaN below ``FEWEST``"""
    variance: ndarray
    """[F, m]; with few federations that over all candidates together"""


def moments(scores: ndarray, side: ndarray) -> Moments:
    """Return the moments of the scores on ``side`` [F, m] bool, without federation f's in row f."""
    others = np.where(side, scores, 0.0)
    count = side.sum(0) - side
    enough = count >= FEWEST
    divisor = np.where(enough, count, 1)
    centre = others.sum(0) / np.maximum(side.sum(0), 1)
    # around the mean over all federations: a difference of large squares would lose digits
    shifted = np.where(side, scores - centre, 0.0)
    sums = shifted.sum(0) - shifted
    squares = (shifted**2).sum(0) - shifted**2
    deviations = np.where(enough, squares - sums**2 / divisor, 0.0)
    freedom = np.where(enough, count - 1, 0)
    if len(scores) < OF_CANDIDATE:
        deviations = deviations.sum(1, keepdims=True)
        freedom = freedom.sum(1, keepdims=True)
    variance = np.broadcast_to(deviations / np.maximum(freedom, 1), scores.shape)
    return Moments(count, np.where(enough, centre + sums / divisor, np.nan), variance)


def lira(scores: ndarray, member: ndarray) -> ndarray:
    """Return [F, m] log-likelihood ratios of Gaussians with and without the candidate.

    Carlini et al., IEEE S&P 2022, section V (online); with fewer than 64 federations the variances
    are those of all candidates together. NaN where a side has too few federations.
    """
    with_it, without = moments(scores, member), moments(scores, ~member)
    return np.asarray(_log_density(scores, with_it) - _log_density(scores, without))


def lira_offline(scores: ndarray, member: ndarray) -> ndarray:
    """Return [F, m] deviations from the mean of federations without the candidate (section V-C)."""
    without = moments(scores, ~member)
    deviations = scores - without.mean
    return np.asarray(deviations / np.sqrt(_positive(without.variance)))


def _log_density(scores: ndarray, of: Moments) -> ndarray:
    variance = _positive(of.variance)
    return np.asarray(-0.5 * (np.log(variance) + (scores - of.mean) ** 2 / variance))


def _positive(variance: ndarray) -> ndarray:
    """Replace variances of 0, of scores that are all alike, by the smallest number."""
    return np.asarray(np.maximum(variance, np.finfo(float).tiny))


def lira_of_vectors(scores: ndarray, member: ndarray) -> ndarray:
    """Return [F, m] log-likelihood ratios of vectors of V scores [F, m, V].

    Both sides have one covariance, of all candidates of the other federations around their means,
    shrunk by Ledoit and Wolf (2004). Scores of a vector are divided by their deviations first.
    """
    from sklearn.covariance import ledoit_wolf  # takes a second; most boards do not need it

    scale = scores.std(axis=(0, 1))
    scores = scores / np.where(scale > 0, scale, 1.0)
    columns = np.moveaxis(scores, 2, 0)
    with_it = np.stack([moments(column, member).mean for column in columns], axis=2)
    without = np.stack([moments(column, ~member).mean for column in columns], axis=2)
    ratios = np.full(member.shape, np.nan)
    for f in range(len(scores)):
        known = ~np.isnan(with_it[f, :, 0] + without[f, :, 0])
        rest = np.arange(len(scores)) != f
        means = np.where(member[rest][..., None], with_it[f], without[f])
        residuals = (scores[rest] - means)[:, known].reshape(-1, scores.shape[2])
        if not len(residuals):
            continue
        inverse = np.linalg.pinv(ledoit_wolf(residuals, assume_centered=True)[0])
        distances = []
        for mean in (with_it, without):
            gap = (scores[f] - mean[f])[known]
            distances.append(np.einsum("mv,vw,mw->m", gap, inverse, gap))
        ratios[f, known] = (distances[1] - distances[0]) / 2
    return ratios


def rmia(log_probabilities: ndarray, member: ndarray) -> ndarray:
    """Return [F, m] log p(x | f) minus the log of its mean over the other federations, those with
    and those without the candidate in equal parts.

    Zarifzadeh et al., ICML 2024, equations 2 and 10 (online). Their score, the share of population
    samples z with a ratio below that of x by a factor, grows with this ratio where all candidates
    meet the same z, so both rank alike.
    """
    sides = []
    for side in (member, ~member):
        count = side.sum(0) - side
        sums = np.empty_like(log_probabilities)
        for f in range(len(sums)):
            rest = np.arange(len(sums)) != f
            with np.errstate(divide="ignore"):  # no federation on this side
                sums[f] = logsumexp(log_probabilities[rest], axis=0, b=side[rest])
        sides.append(np.where(count >= FEWEST, sums - np.log(np.maximum(count, 1)), np.nan))
    with np.errstate(invalid="ignore"):  # NaN on a side
        return np.asarray(log_probabilities - (np.logaddexp(*sides) - np.log(2.0)))


def found(scores: ndarray, member: ndarray, fpr: float = 0.01) -> ndarray:
    """Return [F, m] 1 where a member's score passes its own threshold, 0 where not: the 1 - ``fpr``
    quantile of a Gaussian over the federations without it. NaN where it is no member.
    """
    deviations = lira_offline(scores, member)
    passed = np.where(deviations > ndtri(1 - fpr), 1.0, 0.0)
    return np.where(member & ~np.isnan(deviations), passed, np.nan)


def share_of(found: ndarray) -> ndarray:
    """Return [m] the share of a candidate's federations in which it is found; NaN without any."""
    judged = ~np.isnan(found)
    count = judged.sum(0)
    return np.where(count > 0, np.nansum(found, axis=0) / np.maximum(count, 1), np.nan)
