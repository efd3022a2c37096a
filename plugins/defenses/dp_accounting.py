"""Epsilon of noisy steps, and the noise that an epsilon asks for: bounds, by dp-accounting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from fedbench.core import UserError

MOST_NOISE = 1e4  # noise multipliers that are looked at: more buries any gradient, less hides none
LEAST_NOISE = 1e-2
PRV_LEAST_DELTA = 1e-10  # below, rounding errors of the Fourier transforms are of its size
Accountant = Literal["gaussian", "prv", "rdp"]


@dataclass(frozen=True)
class Steps:
    """Composition of ``count`` noisy steps that hold an example (or client) with probability
    ``rate``.

    ``gaussian``: the rate is 1. The others: accountants of batches that hold each example
    independently.
    """

    count: int
    rate: float = 1.0
    accountant: Accountant = "gaussian"


def epsilon(sigma: float, participations: int, delta: float) -> float:
    """Return the epsilon at ``delta`` after an example (or client) took part in ``participations``
    noisy steps.

    Without subsampling amplification, which shuffled batches do not earn: a step is
    1/sigma-Gaussian-DP when the neighbour replaces the example by one without gradient, steps
    compose to mu = sqrt(participations)/sigma, and delta(eps) = Phi(mu/2 - eps/mu) - e^eps
    Phi(-mu/2 - eps/mu) (Dong, Roth & Su, JRSS-B 2022, corollaries 2.13, 3.3). By example:
    participations = rounds * local epochs; by client: rounds. Infinite for sigma = 0.
    """
    from dp_accounting import get_epsilon_gaussian  # importing it takes .2 seconds

    return float(get_epsilon_gaussian(sigma / math.sqrt(participations), delta))


def accountant_used(sigma: float, steps: Steps, delta: float, replaced: bool = False) -> Accountant:
    """Return the accountant of ``epsilon_after``: ``prv`` where float64 can hold it, else ``rdp``.

    ``rdp`` knows no replacement: of that ``prv``, else Gaussian composition, which is a bound at
    every rate.
    """
    if steps.accountant == "gaussian":
        return "gaussian"
    exact = sigma >= LEAST_NOISE and delta >= PRV_LEAST_DELTA
    if exact and (replaced or steps.accountant == "prv"):
        return "prv"
    return "gaussian" if replaced else "rdp"


@lru_cache(maxsize=1024)
def epsilon_after(sigma: float, steps: Steps, delta: float, replaced: bool = False) -> float:
    """Return the epsilon at ``delta`` of noise ``sigma`` in all of these steps.

    ``replaced``: the neighbour has another example (or update) in that place, at up to twice the
    clipping norm.
    """
    without_sampling = epsilon(sigma / (2 if replaced else 1), steps.count, delta)
    accountant = accountant_used(sigma, steps, delta, replaced)
    if accountant == "gaussian" or sigma == 0:
        return without_sampling
    if accountant == "rdp":
        return _rdp_epsilon(sigma, steps, delta)
    return _prv_epsilon(sigma, steps, delta, replaced, without_sampling)


def _rdp_epsilon(sigma: float, steps: Steps, delta: float) -> float:
    import dp_accounting
    from absl import logging

    # no word on orders that do not converge: the bound holds without them
    logging.set_verbosity(logging.ERROR)
    step = dp_accounting.PoissonSampledDpEvent(steps.rate, dp_accounting.GaussianDpEvent(sigma))
    accountant = dp_accounting.rdp.RdpAccountant().compose(step, steps.count)
    return float(accountant.get_epsilon(delta))


def _prv_epsilon(sigma: float, steps: Steps, delta: float, replaced: bool, bound: float) -> float:
    """Find where delta falls to ``delta``, at most ``bound``.

    The accountant's own search overflows from 700 on.
    """
    import dp_accounting
    from scipy.optimize import brentq

    step = dp_accounting.PoissonSampledDpEvent(steps.rate, dp_accounting.GaussianDpEvent(sigma))
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    if replaced:
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    # a tenth of the deviation of a step's loss: rounding up to it adds less than .2 % to epsilon
    accountant = dp_accounting.pld.PLDAccountant(relation, steps.rate / sigma / 10)
    accountant.compose(step, steps.count)

    def excess(candidate: float) -> float:
        return accountant.get_delta(candidate) - delta

    if excess(0.0) <= 0:
        return 0.0
    if excess(bound) >= 0:
        return bound
    return brentq(excess, 0.0, bound, xtol=1e-9)


@lru_cache(maxsize=1024)
def noise_for(target: float, steps: Steps, delta: float) -> float:
    """Return the noise multiplier with which these steps cost at most ``target`` at ``delta``.

    The least one, to three digits for sampled batches.

    Raises:
        UserError: none up to ``MOST_NOISE`` is enough.
    """
    reachable = epsilon_after(MOST_NOISE, steps, delta)
    if reachable > target:
        sampled = ""
        if steps.rate < 1:
            sampled = f", each sample in a batch with probability {steps.rate:.3g}"
        raise UserError(
            f"dp-sgd: no noise reaches epsilon {target:g} at delta {delta:g} after {steps.count:,} "
            f"steps{sampled}: with a noise multiplier of {MOST_NOISE:,.0f} it is {reachable:.3g} "
            f"(accountant {steps.accountant}); ask for a larger epsilon or delta, or for fewer "
            "rounds or local epochs"
        )
    if steps.accountant == "gaussian":
        from dp_accounting import get_sigma_gaussian

        return math.sqrt(steps.count) * float(get_sigma_gaussian(target, delta))
    if epsilon_after(LEAST_NOISE, steps, delta) <= target:
        return LEAST_NOISE
    from scipy.optimize import brentq

    def excess(log_sigma: float) -> float:
        return epsilon_after(math.exp(log_sigma), steps, delta) - target

    sigma = math.exp(brentq(excess, math.log(LEAST_NOISE), math.log(MOST_NOISE), xtol=1e-4))
    # the search ends on either side; a promise needs the dear one
    while epsilon_after(sigma, steps, delta) > target:
        sigma *= 1 + 2e-4
    return sigma
