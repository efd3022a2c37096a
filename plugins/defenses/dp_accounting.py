"""What noise costs in epsilon, and what noise an epsilon asks for: upper bounds, of Gaussian composition or by Opacus."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch

from fedbench.core import UserError

MOST_NOISE = 1e4  # noise multipliers that are looked at: more buries any gradient, less hides none
LEAST_NOISE = 1e-2
PRV_ERROR = 0.005  # least error of an epsilon of `prv`, which it is raised by; a two-hundredth of larger ones
PRV_LARGEST = 500.0  # beyond, e^epsilon leaves the range of float64: there `prv` is `rdp`
Accountant = Literal["gaussian", "prv", "rdp"]


@dataclass(frozen=True)
class Steps:
    """What is composed: ``count`` noisy steps, each holding an example (or client) with probability ``rate``.

    ``gaussian``: the rate is 1. The others: Opacus' accountants of batches that hold each example independently.
    """

    count: int
    rate: float = 1.0
    accountant: Accountant = "gaussian"


def epsilon(sigma: float, participations: int, delta: float) -> float:
    """The epsilon at ``delta`` after an example (or client) took part in ``participations`` noisy steps.

    Without subsampling amplification, which shuffled batches do not earn: a step is 1/sigma-Gaussian-DP when the
    neighbour replaces the example by one without gradient, steps compose to mu = sqrt(participations)/sigma, and
    delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) (Dong, Roth & Su, JRSS-B 2022, corollaries 2.13, 3.3).
    By example: participations = rounds * local epochs; by client: rounds. Infinite for sigma = 0.
    """
    return math.inf if sigma == 0 else _epsilon(math.sqrt(participations) / sigma, delta)


def if_replaced(found: float, delta: float) -> float:
    """The epsilon where the neighbour has another example (or update) in that place, of one ``found`` by Gaussian composition:
    the difference of the two is up to twice the clipping norm, and mu twice as large."""
    return _epsilon(2 * _mu(found, delta), delta)


@lru_cache(maxsize=1024)
def epsilon_after(sigma: float, steps: Steps, delta: float) -> float:
    """The epsilon at ``delta`` of noise ``sigma`` in all of these steps."""
    if steps.accountant == "gaussian" or sigma == 0:
        return epsilon(sigma, steps.count, delta)
    return _by_opacus(sigma, steps, delta)


@lru_cache(maxsize=1024)
def noise_for(target: float, steps: Steps, delta: float) -> float:
    """The noise multiplier at which all of these steps cost at most ``target`` at ``delta``: the least one, to three digits
    for Opacus' accountants. Raises ``UserError`` where none up to ``MOST_NOISE`` is enough."""
    reachable = epsilon_after(MOST_NOISE, steps, delta)
    if reachable > target:
        raise out_of_reach(target, steps, delta, reachable)
    if steps.accountant == "gaussian":
        return math.sqrt(steps.count) / _mu(target, delta)
    if epsilon_after(LEAST_NOISE, steps, delta) <= target:
        return LEAST_NOISE
    from scipy.optimize import brentq

    def excess(log_sigma: float) -> float:
        return math.log(epsilon_after(math.exp(log_sigma), steps, delta) / target)

    sigma = math.exp(brentq(excess, math.log(LEAST_NOISE), math.log(MOST_NOISE), xtol=1e-4))
    while epsilon_after(sigma, steps, delta) > target:  # the search ends on either side; a promise needs the dear one
        sigma *= 1 + 2e-4
    return sigma


def least_epsilon(accountant: Accountant, delta: float) -> float:
    """Below this no noise leads, whatever the sampling: what the accountant says of no step at all."""
    if accountant == "rdp":
        return _opacus("rdp", 1.0, 1.0, 0, delta)
    return PRV_ERROR


def out_of_reach(target: float, steps: Steps, delta: float, reachable: float) -> UserError:
    """The one message for an epsilon that no noise reaches."""
    sampled = f", each sample in a batch with probability {steps.rate:.3g}" if steps.rate < 1 else ""
    other = ", or `accountant: prv`, which has no such floor" if steps.accountant == "rdp" else ""
    return UserError(
        f"dp-sgd: no noise reaches epsilon {target:g} at delta {delta:g} after {steps.count:,} steps{sampled}: with a noise "
        f"multiplier of {MOST_NOISE:,.0f} it is {reachable:.3g} (accountant {steps.accountant}); ask for a larger epsilon or "
        f"delta, or for fewer rounds or local epochs{other}"
    )


def _by_opacus(sigma: float, steps: Steps, delta: float) -> float:
    """``rdp``, an upper bound; or ``prv``, the estimate plus its own error, where that can be computed."""
    bound = _opacus("rdp", sigma, steps.rate, steps.count, delta)
    if steps.accountant == "rdp" or bound > PRV_LARGEST:
        return bound
    error = max(PRV_ERROR, bound / 200)
    return _opacus("prv", sigma, steps.rate, steps.count, delta, eps_error=error)


def _opacus(accountant: str, sigma: float, rate: float, count: int, delta: float, **how: float) -> float:
    import numpy as np
    from opacus.accountants import create_accountant  # importing it takes a second

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # that the best order is an extreme one: the bound holds all the same
        opacus = create_accountant(mechanism=accountant)
        opacus.history = [(sigma, rate, count)]
        return float(opacus.get_epsilon(delta=delta, **how))


def _epsilon(mu: float, delta: float) -> float:
    high = mu * mu / 2 + 40 * mu + 1  # 40 standard deviations beyond the mean of the privacy loss
    return _bisected(0.0, high, lambda eps: _delta(eps, mu) > delta)[1]


def _mu(target: float, delta: float) -> float:
    """The largest mu with an epsilon of at most ``target`` at ``delta``: delta(eps) grows with mu."""
    high = 1.0
    while _delta(target, high) <= delta:
        high *= 2
    return _bisected(0.0, high, lambda mu: _delta(target, mu) <= delta)[0]


def _bisected(low: float, high: float, is_low: Callable[[float], bool]) -> tuple[float, float]:
    """The neighbours between which ``is_low`` turns from true to false."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return low, high


def _delta(eps: float, mu: float) -> float:
    if mu == 0:
        return 0.0
    tails = torch.tensor([mu / 2 - eps / mu, -mu / 2 - eps / mu], dtype=torch.float64)
    log_upper, log_lower = torch.special.log_ndtr(tails).tolist()
    return math.exp(log_upper) - math.exp(eps + log_lower)
