"""FedMIA: the target's measurement tested against the other clients', round by round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field, model_validator
from scipy.special import stdtr

from fedbench.core import Audit, Observations, SkipCell
from fedbench.plugins.attacks.measures import (
    MEASURES,
    LossAttack,
    LossOn,
    Measure,
    measure_of,
    of_others,
    of_target,
    time_average,
)
from fedbench.plugins.attacks.trajectory import Followed, Trajectory


class FedMIA(Trajectory):
    """Score = mean over rounds of Phi((M_k - mu) / sqrt(v)), mu and v over the other clients the
    filter keeps.

    A client that trained on the candidate itself (another client's sample as non-member) stands out
    upwards; a filter takes it out of the estimate. The published 3-sigma rule cannot fire with nine
    or fewer other clients: no value of n lies further than sqrt(n - 1) population deviations from
    their mean, so for ten clients the published attack is the unfiltered one, the default here.
    Filters that do fire are there by name, and weaken the attack: the outlier they remove is what
    pushes an inside non-member's score down. Phi takes mu and v for known. With tail ``student``
    they are estimates from n values: for Gaussian measurements (M_k - mu) / (s sqrt(1 + 1/n)) has
    Student's t distribution with n - 1 degrees of freedom, and Lambda_t is its probability, uniform
    for a non-member however few the others are. With ``normalise: class`` every client's
    measurement is standardised by itself, the target's and the others' alike, before they are
    compared: what is added to a class under the target's model alone (it trained on that class in
    this round, others did not) would stay in M_k - mu if the rows shared their statistics, and
    Lambda saturates, so that standardising it would come too late. The view ``coalition`` compares
    the coalition's mean with the clients outside it, of which two are needed. Source: Zhu et al.
    (CVPR 2025), section 3.3, equations 7-12; equation 10 with ddof 0. The predictive t: Student,
    Biometrika 1908; Hahn, JASA 1969.
    """

    class Params(Followed):
        filter: Literal["none", "3sigma_pop", "mad", "loo"] = Field(
            "none",
            description="other clients left out as trained on the candidate: none; 3sigma_pop: "
            "above mean + 3 "
            "population deviations (faithful); mad: above median + 3 scaled median deviations; "
            "loo: above mean + 3 "
            "deviations of the remaining clients",
        )
        ddof: int = Field(
            1, ge=0, le=1, description="the variance divides by clients kept - ddof (faithful: 0)"
        )
        tail: Literal["normal", "student"] = Field(
            "normal",
            description="normal: Phi (the paper's); student: predictive t of the clients kept, for "
            "few of them",
        )
        guard: float = Field(
            1e-8,
            gt=0,
            description="added to the variance, in squared units of the measurement, against "
            "identical values",
        )

        @model_validator(mode="after")
        def _student_needs_the_sample_variance(self):
            if self.tail == "student" and self.ddof != 1:
                raise ValueError(
                    "tail 'student' needs ddof 1: Student's t is defined with the sample variance"
                )
            return self

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        return time_average(self._likelihoods(observations, audit))

    def _likelihoods(self, observations: Observations, audit: Audit) -> ndarray:
        """Return Lambda_t [R, n], NaN in rounds without the target and two others."""
        measured = self._read(self.reads.compute(observations), audit)
        targets = of_target(measured, observations)
        peers = of_others(measured, observations)
        likelihood = np.stack([self._round(*rows) for rows in zip(targets, peers, strict=True)])
        if np.isnan(likelihood).all():
            raise SkipCell("no audited round shows the target beside at least two other clients")
        return likelihood

    def _round(self, target: ndarray, peers: ndarray) -> ndarray:
        """Return Lambda_t [n] of ``target`` [n] among ``peers`` [M-1, n]; NaN without a target or
        with fewer than two peers.
        """
        peers = peers[~np.isnan(peers).all(axis=1)]
        if len(peers) < 2:
            return np.full_like(target, np.nan)
        keep = FILTERS[self.params.filter](peers)
        mean, variance = out_distribution(peers, keep, self.params.ddof)
        z = (target - mean) / np.sqrt(variance + self.params.guard)
        if self.params.tail == "student":
            return student_tail(z, keep.sum(axis=0))
        return torch.special.ndtr(torch.from_numpy(z)).numpy()  # Phi, equation 11


class FedMIAI(LossAttack, FedMIA):
    """FedMIA-I: lifts the negative loss."""

    class Params(FedMIA.Params, LossOn):
        pass


class FedMIAII(FedMIA):
    """FedMIA-II: lifts the gradient cosine."""

    measure = "grad-cosine"


def out_distribution(peers: ndarray, keep: ndarray, ddof: int) -> tuple[ndarray, ndarray]:
    """Return mu [n] and v [n] of the kept values of ``peers`` [M, n]; where none is kept, the least
    value with no spread.
    """
    count = keep.sum(axis=0)
    total = np.where(keep, peers, 0.0).sum(axis=0)
    mean = np.where(count > 0, total / np.maximum(count, 1), peers.min(axis=0))
    squares = np.where(keep, (peers - mean) ** 2, 0.0).sum(axis=0)
    return mean, squares / np.maximum(count - ddof, 1)


def keep_all(peers: ndarray) -> ndarray:
    """Keep every value."""
    return np.ones(peers.shape, bool)


def within_three_sigma(peers: ndarray) -> ndarray:
    """Apply equations 8 and 9, with the published code's strict comparison."""
    return peers < peers.mean(axis=0) + 3 * peers.std(axis=0)


def within_three_mad(peers: ndarray) -> ndarray:
    """Apply the one-sided Hampel rule; 1.4826 makes the median deviation a standard deviation for a
    Gaussian.
    """
    middle = np.median(peers, axis=0)
    return peers <= middle + 3 * 1.4826 * np.median(np.abs(peers - middle), axis=0)


def within_three_sigma_of_the_rest(peers: ndarray) -> ndarray:
    """Compare each value with mean + 3 sample deviations of the OTHER values; three values are
    needed for a deviation.
    """
    m = len(peers)
    if m < 3:
        return keep_all(peers)
    centred = peers - peers.mean(axis=0)  # keeps the sums of squares accurate
    rest_mean = (centred.sum(axis=0) - centred) / (m - 1)
    rest_squares = (centred**2).sum(axis=0) - centred**2 - (m - 1) * rest_mean**2
    return centred <= rest_mean + 3 * np.sqrt(np.maximum(rest_squares, 0.0) / (m - 2))


FILTERS: dict[str, Callable[[ndarray], ndarray]] = {
    "none": keep_all,
    "3sigma_pop": within_three_sigma,
    "mad": within_three_mad,
    "loo": within_three_sigma_of_the_rest,
}


def student_tail(z: ndarray, count: ndarray) -> ndarray:
    """Return P(t <= z / sqrt(1 + 1/n)) with n - 1 degrees of freedom for n = ``count`` values;
    never fewer than one degree.
    """
    n = np.maximum(count, 2)
    return stdtr(n - 1, z / np.sqrt(1 + 1 / n))


class LiftedFedMIA(FedMIA):
    """FedMIA on the measurement ``measure``: one of the built-in ones, or any installed signal by
    its name.

    Built-in measurements already point the right way (a higher one speaks for a member); of a
    signal, ``sign`` says which way it points. ``grad-norm`` reads the global model alone and can be
    lifted only where the clients hold different ones. Source: Zhu et al. (CVPR 2025), section 3.3,
    remark 3.
    """

    class Params(FedMIA.Params):
        measure: str = Field(
            "grad-cosine",
            pattern=r"^[a-z0-9]+([_-][a-z0-9]+)*$",
            description=f"what is tested: {', '.join(MEASURES)}, or the name of an installed "
            "signal",
        )
        sign: Literal[1, -1] = Field(
            1, description="-1 where a LOWER value of the signal speaks for a member"
        )

    @property
    def reads(self) -> Measure:
        """The measurement or signal that the parameters name."""
        return measure_of(self.params.measure, self.params.sign)
