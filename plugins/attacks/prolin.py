"""PROLIN: a client's part in the sums of changing cohorts."""

from __future__ import annotations

import numpy as np
from numpy import ndarray
from pydantic import Field

from fedbench.core import Attack, Audit, Observations, Params, SkipCell


class Prolin(Attack):
    """Score = the target's part x_k of the coalition's sums b over the audited rounds, by ridge
    regression: x minimises |A x - b|^2 + ridge |x|^2.

    Row t of A holds who is in the sum of round t (1 for clients of equal weight), b_t is a linear
    function of that sum: its product with the sample's unit gradient at the global model. As a sum
    of linear functions of the members' updates it says something about each of them where cohorts
    change; where they do not, all members get the same part. The paper's function is a logistic
    regression on updates that the server simulates with and without the sample; to first order
    their means differ along the sample's gradient, which stands in here, and rounds weigh alike.
    Source: Kerkouche, Acs & Fritz, "Client-specific Property Inference against Secure Aggregation"
    (arXiv 2303.03908), and its released code (0b1e62f): the ridge solution, with a penalty of 5.
    """

    class Params(Params):
        ridge: float = Field(
            5.0, gt=0, description="penalty of a part's square, in rounds of participation"
        )

    needs = frozenset({"grad-dot", "grad-sq"})
    view = "coalition"

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        shares = observations.shares
        if shares is None:
            raise SkipCell("it is not known which members are in the coalition's mean")
        if not 0 <= audit.target_client < shares.shape[1]:
            raise SkipCell("it follows one client's part, but the target is many clients together")
        output = linear_output(observations)
        known = (shares.sum(axis=1) > 0) & ~np.isnan(output).any(axis=1)
        if not shares[known, audit.target_client].any():
            raise SkipCell("the target took part in no audited round")
        present = (shares[known] > 0).sum(axis=1, keepdims=True)
        # sums instead of means: shares of 1 / present become 1
        parts = ridge_solution(shares[known] * present, output[known] * present, self.params.ridge)
        return parts[audit.target_client]


def linear_output(observations: Observations) -> ndarray:
    """Return <I_t, g / |g|> [R, n] of the mean pseudo-gradient, 0 for a gradient of no length."""
    dot = np.asarray(observations.of_target("grad-dot"), np.float64)
    length = np.sqrt(np.asarray(observations.of_target("grad-sq"), np.float64))
    return np.where(length == 0, 0.0 * dot, dot / np.where(length == 0, 1.0, length))


def ridge_solution(a: ndarray, b: ndarray, ridge: float) -> ndarray:
    """Return the minimiser [K, n] of |a x - b|^2 + ridge |x|^2 for ``a`` [R, K] and ``b`` [R, n],
    each column of ``b`` by itself.
    """
    normal = a.T @ a + ridge * np.eye(a.shape[1])
    return np.linalg.solve(normal, a.T @ b)
