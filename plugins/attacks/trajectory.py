"""Attacks by loss and gradient, on one round or on the trajectory over rounds."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy import ndarray
from pydantic import Field, model_validator

from fedbench.core import Attack, Audit, Observations, Params
from fedbench.plugins.attacks.measures import (
    MEASURES,
    LossAttack,
    LossOn,
    Measure,
    MeasuringAttack,
    float64,
    last_round,
    matched,
    of_target,
    slope,
    time_average,
)


class SingleRound(MeasuringAttack):
    """Score = a measurement in the last audited round in which the target took part.

    FedMIA's table reports the best snapshot instead, picked on the answers (Zhu et al., CVPR 2025,
    table 1 and its code): that is the metric ``best_round`` over ``score_rounds``, never the score.
    """

    def score_rounds(self, observations: Observations, audit: Audit) -> ndarray | None:
        """Return [R, n], a row of NaN for a round without the target."""
        return self._measured(observations)

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        measured = self._measured(observations)
        return measured[last_round(measured)]


class BlackboxLoss(LossAttack, SingleRound):
    """Score = -CE(L_{k,t}(x), y) on the target's uploaded model of one round.

    Source: Yeom et al. (CSF 2018), adversary 2 (a loss threshold), the baseline of Zhu et al. (CVPR
    2025), section 4.1.
    """


class GradCosine(SingleRound):
    """Score = cos(g, I) with g = grad CE(G_t; x, y) and I = G_t - L_{k,t}.

    Source: Li et al. (ICLR 2023), cosine attack; Zhu et al. (CVPR 2025), section 4.1 and equation
    7.
    """

    measure = "grad-cosine"


class GradDiff(SingleRound):
    """Score = |I|^2 - |I - g|^2 = 2 <I, g> - |g|^2: how much taking the sample's gradient out
    shortens the update.

    Source: Li et al. (ICLR 2023), gradient-difference attack, on the pseudo-gradient as it is, as
    in Zhu et al. (CVPR 2025), section 4.1.
    """

    measure = "grad-diff"


class GradNorm(SingleRound):
    """Score = -|g|^2 at the global model, whichever client is asked about: members are fitted,
    their gradients small.

    It tells samples of the federation from others, not a client's from another client's, and needs
    no upload of the target. Source: Nasr et al. (CCS 2018) as Zhu et al. (CVPR 2025), section 4.1,
    cite it.
    """

    class Params(Params):
        average: bool = Field(
            False, description="mean over all audited rounds instead of the last one"
        )
        inverted: bool = Field(
            False,
            description="faithful: FedMIA's code turns the average over a second time, so members "
            "score LOW",
        )

        @model_validator(mode="after")
        def _only_the_average_is_inverted(self):
            if self.inverted and not self.average:
                raise ValueError(
                    "'inverted' belongs to the average: set average to true, or inverted to false"
                )
            return self

    measure = "grad-norm"

    def score_rounds(self, observations: Observations, audit: Audit) -> ndarray | None:
        """Return [R, n], or None for the average, which uses the trajectory."""
        if self.params.average:
            return None
        return super().score_rounds(observations, audit)

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        if not self.params.average:
            return super().score(observations, audit)
        average = time_average(self._measured(observations))
        return -average if self.params.inverted else average


class Followed(Params):
    """Parameters of the attacks that follow uploads over rounds."""

    view: Literal["server", "coalition"] = Field(
        "server",
        description="which uploads it follows: the target's (server), or the weighted mean of the "
        "coalition's, in which noise "
        "that cancels is gone, beside the uploads of the clients outside (coalition; CoFedMID, "
        "section 5.4)",
    )
    normalise: Literal["none", "class"] = Field(
        "none",
        description="class: every measurement is standardised in each round among the candidates "
        "of its class, members or not, "
        "so that what a model knows of a whole class says nothing",
    )


class Trajectory(MeasuringAttack):
    """Base of the attacks on a trajectory: the parameters of :class:`Followed`."""

    Params = Followed

    @property
    def view(self) -> Literal["server", "coalition"]:  # type: ignore[override]
        """The parameter ``view``."""
        return self.params.view  # type: ignore[no-any-return]

    def _read(self, measured: ndarray, audit: Audit) -> ndarray:
        """Return ``measured`` [..., n] of the candidates, normalised as the parameter says."""
        if self.params.normalise == "class":
            return within_class(measured, audit.y)
        return measured

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        """Return the mean over the rounds."""
        return time_average(self._read(self._measured(observations), audit))


def within_class(measured: ndarray, y: ndarray) -> ndarray:
    """Subtract from each value of ``measured`` [..., n] the mean of its class in its row, and
    divide by the class's deviation there (ddof 0).

    ``y``: [n] labels. All candidates of the class count: no membership is needed. Every row (a
    round, a round and client) has statistics of its own, so a constant added to all of a class in a
    row, or a factor, changes nothing. Where the class has one candidate, or the same value for all,
    its value is 0, the mean. NaN stays in rows of NaN.
    """
    values = np.asarray(measured, np.float64)
    # a signal that does not vary over samples has one column
    values = np.broadcast_to(values, (*values.shape[:-1], len(y)))
    out = np.zeros(values.shape)
    for label in np.unique(y):
        in_class = y == label
        of_class = values[..., in_class]
        centred = of_class - of_class.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True))
        # compared exactly: the mean of equal values may differ from them in the last bit
        equal = (of_class == of_class[..., :1]).all(axis=-1, keepdims=True) | (spread == 0)
        out[..., in_class] = np.where(equal, 0.0, centred / np.where(equal, 1.0, spread))
    return out


class LossSeries(LossAttack, Trajectory):
    """Score = mean over audited rounds of -CE(L_{k,t}(x), y).

    Source: Yeom et al. (CSF 2018) as CoFedMID (appendix D) uses it; not CS-MIA's learned series.
    """

    class Params(LossOn, Followed):
        pass


class AvgCosine(Trajectory):
    """Score = mean over audited rounds of cos(grad CE(G_t; x, y), G_t - L_{k,t}).

    Source: Li et al. (ICLR 2023), over the audited rounds as in CoFedMID (appendix D).
    """

    measure = "grad-cosine"


class MatchedFilter(Attack):
    """Score = sum_t <g_t, I_t> / sqrt(sum_t |g_t|^2) with g_t = grad CE(G_t; x, y) and I_t = G_t -
    L_{k,t}: a matched filter over the audited rounds.

    A member adds to I_t in proportion to its gradient g_t, among white noise of one deviation the
    likelihood ratio's statistic is then this sum (Neyman and Pearson 1933). A mean of cosines
    weighs rounds in which a sample has next to no gradient like the others.
    """

    needs = frozenset({"grad-dot", "grad-sq"})

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        length = np.sqrt(of_target(float64(observations, "grad-sq"), observations))
        dot = of_target(float64(observations, "grad-dot"), observations)
        return matched(dot / np.where(length == 0, 1.0, length), length)


class FTAC(Trajectory):
    """Score = least-squares slope of p_y against the round number, on the target's uploaded models.

    Source: Chang et al. (USENIX Security 2024), over the audited rounds as CoFedMID (appendix D)
    uses it. Their final calibration by population percentiles is monotone, hence left out: it could
    only create ties.
    """

    measure = "confidence"

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        return slope(observations.rounds, self._read(self._measured(observations), audit))


class FTAL(Trajectory):
    """Score = minus the least-squares slope of the loss against the round number, on the target's
    uploaded models.

    Source: Chang et al. (USENIX Security 2024), as FTA-C.
    """

    measure = "loss"

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        return -slope(observations.rounds, self._read(observations.of_target("loss"), audit))


class FTA(MeasuringAttack):
    """Score = least-squares slope of a signal on the global model against the round number; of the
    loss, minus it.

    The attacker is a participant: it sees one model a round, the same for all targets, so it tells
    samples of the federation from outsiders' (``ofl``); among other clients' samples (``ifl``) it
    can only be at chance. As published it reads every round: audit every one (``audit: {every:
    1}``). There is no calibration by population percentiles: a rank among known outsiders is one
    monotone map for all candidates and changes no order. Source: Chang et al. (USENIX Security
    2024). The variants on the target's uploads are ``fta-c`` and ``fta-l``.
    """

    class Params(Params):
        signal: Literal["loss", "confidence", "rescaled"] = Field(
            "loss",
            description="loss: -CE; confidence: p_y; rescaled: ln(p_y / (1 - p_y)), from the "
            "logits",
        )

    view = "client"

    @property
    def reads(self) -> Measure:
        """The signal."""
        return MEASURES[self.params.signal]

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        return slope(observations.rounds, self._measured(observations))
