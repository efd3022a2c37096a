"""Attacks that compare the final model with shadow models: Shokri et al.'s, LiRA and RMIA."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field
from scipy.special import expit
from torch import Tensor
from torch.nn.functional import one_hot

from fedbench.core import Attack, Audit, Observations, Params, ShadowModels, SkipCell
from fedbench.plugins.attacks.networks import trained_net
from fedbench.plugins.attacks.taught import balanced

LEAST_MODELS = 2


def shadow_models_of(observations: Observations) -> ShadowModels:
    """Return the shadow models.

    Raises ``SkipCell`` where there are none, too few, or one of them diverged.
    """
    shadows = observations.shadow_models
    if shadows is None:
        raise SkipCell("this attack needs shadow models; give the setting audit.shadow")
    models = len(shadows.logits)
    if models < LEAST_MODELS:
        raise SkipCell(
            f"this attack needs at least {LEAST_MODELS} shadow models; audit.shadow gives {models}"
        )
    if shadows.shadow_member.shape[1] == 0:
        raise SkipCell("there are no shadow samples; give audit.shadow some data")
    for m, logits in enumerate(zip(shadows.logits, shadows.shadow_logits, strict=True)):
        if not all(np.isfinite(a).all() for a in logits):
            raise SkipCell(f"shadow model {m} diverged: its logits are not finite")
    return shadows


def rescaled_confidence(logits: ndarray, y: ndarray) -> ndarray:
    """Return ln(p_y / (1 - p_y)), [n] float64, for ``logits`` [n, C] with C >= 2 and labels ``y``
    [n].

    Computed as z_y - logsumexp of the other logits: finite for every finite logit, since p_y itself
    is never formed. Source: Carlini et al. (LiRA), S&P 2022, the "logit scaling" of the confidence.
    """
    rest = np.array(logits, np.float64)
    label = y[:, None]
    z_y = np.take_along_axis(rest, label, axis=1)[:, 0]
    np.put_along_axis(rest, label, -np.inf, axis=1)
    top = rest.max(axis=1)
    return z_y - top - np.log(np.exp(rest - top[:, None]).sum(axis=1))


def log_confidence(logits: ndarray, y: ndarray) -> ndarray:
    """Return ln p_y, [n] float64, for ``logits`` [n, C] and labels ``y`` [n]; exact where p_y is
    next to 0 or to 1.
    """
    return -np.logaddexp(0.0, -rescaled_confidence(logits, y))


class ShadowModelAttack(Attack):
    """Score = the attack model's probability that the final model's prediction is one on a training
    sample.

    The attack model reads the softmax, sorted downwards, and the label; it learns from the
    predictions of all shadow models on their own training samples (in) and on the shadow samples
    they were not trained on (out), as many of each. It is trained anew for every target with the
    target's key, on the CPU. Source: Shokri et al., S&P 2017, sections V.C (shadow models) and V.E
    (attack model): 64 ReLU units; they have one model per class (``per_class``), here the class is
    an input by default, which shares what all classes have in common. Sorted predictions: Salem et
    al., NDSS 2019, who keep the three largest (``top``). They do not tell a right prediction from a
    wrong one, and an error shows best what was not learnt: ``confidences: true-first``.
    """

    class Params(Params):
        top: int | None = Field(
            None, ge=1, description="how many of the largest probabilities it reads; null = all"
        )
        confidences: Literal["sorted", "true-first"] = Field(
            "sorted",
            description="the order in which it reads them: downwards, or the label's own first and "
            "the others downwards",
        )
        per_class: bool = Field(
            False,
            description="one attack model per class (the paper) instead of the class as an input",
        )
        epochs: int = Field(
            50, ge=1, le=10_000, description="passes over the shadow models' predictions"
        )

    view = "external"
    needs_shadow_models = True
    threshold = 0.5

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        shadows = shadow_models_of(observations)
        x = torch.cat([self._features(a, shadows.shadow_y) for a in shadows.shadow_logits])
        y = np.tile(shadows.shadow_y, len(shadows.shadow_logits))
        member = np.asarray(shadows.shadow_member, bool).ravel()
        candidates = self._features(shadows.target_logits, audit.y)
        classes = np.unique(audit.y).tolist()
        if missing := [c for c in classes if c not in y]:
            raise SkipCell(
                f"no shadow sample has the label {missing[0]}, so its predictions cannot be learnt"
            )
        if not self.params.per_class:
            return self._infer(x, member, candidates, audit.generator, "sample")
        score = np.empty(len(audit.y), np.float64)
        for c in classes:
            lesson = y == c
            query = audit.y == c
            kind = f"sample of class {c}"
            score[query] = self._infer(
                x[lesson], member[lesson], candidates[query], audit.generator, kind
            )
        return score

    def _infer(
        self, x: Tensor, member: ndarray, candidates: Tensor, generator: torch.Generator, kind: str
    ) -> ndarray:
        """Return the probabilities [n] that ``candidates`` are members, by a model of ``x``."""
        chosen = balanced(member, lambda n: torch.randperm(n, generator=generator).numpy())
        if len(chosen) == 0:
            raise SkipCell(
                f"the shadow samples hold no {kind} both inside and outside a shadow model's "
                "training data"
            )
        net = trained_net(
            x[chosen], torch.from_numpy(member[chosen]), self.params.epochs, generator
        )
        return expit(net.logits(candidates))  # float64: in float32 it is 1 from a logit of 17 on

    def _features(self, logits: ndarray, y: ndarray) -> Tensor:
        """Return [n, top (+ C)] float32: the first probabilities, then the label unless each class
        has its model.
        """
        p = torch.from_numpy(np.array(logits, np.float32)).softmax(1)
        label = one_hot(torch.from_numpy(np.array(y, np.int64)), p.shape[1])
        keys = p
        if self.params.confidences == "true-first":
            keys = p + 2 * label  # above all others
        order = keys.argsort(dim=1, descending=True, stable=True)
        first = p.gather(1, order)[:, : self.params.top]
        if self.params.per_class:
            return first
        return torch.cat([first, label.float()], dim=1)


# Carlini et al.: below it one variance for all samples attacks better than one a sample
ENOUGH_MODELS = 64
LEAST_DEVIATION = 1e-12  # of a candidate on which all shadow models agree to the last bit
RELEASED_GUARD = 1e-30  # what the released code adds to a deviation


class LiRAOffline(Attack):
    """Score = (phi - mu) / sigma, phi = ln(p_y / (1 - p_y)) on the final model, mu and sigma over
    the shadow models.

    The paper's score is 1 - Pr[Z > phi] = Phi of this z, a monotone function of it: AUC and TF01
    are the same, but Phi is 1 in float64 from z = 8.3 on, so the clearest members would tie exactly
    where TF01 is decided. The global variance is the mean over the candidates of the variance over
    the shadow models; as one constant for all, it leaves the ranking to phi - mu. Source: Carlini
    et al., S&P 2022, the offline attack (one-sided test against the out-models alone), one query a
    sample.

    ``form: released`` is the offline attack of their code (TensorFlow Privacy,
    research/mi_lira_2021/plot.py): minus the log density of phi under the out-models' Gaussian, its
    mean the median, its deviation of divisor M. It is two-sided: a confidence far below the shadow
    models' counts as much for membership as one far above. Its fixed variance is that of all values
    of all candidates about their common mean.
    """

    class Params(Params):
        variance: Literal["auto", "global", "per-sample"] = Field(
            "auto",
            description="of the out-models: one for all candidates, or one each; auto: global "
            "below 64 shadow models",
        )
        form: Literal["one-sided", "released"] = Field(
            "one-sided",
            description="the paper's offline test, or the released code's density: two-sided about "
            "the median",
        )

    view = "external"
    needs_shadow_models = True

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        shadows = shadow_models_of(observations)
        # [M, n]
        out = np.stack([rescaled_confidence(logits, audit.y) for logits in shadows.logits])
        phi = rescaled_confidence(shadows.target_logits, audit.y)
        p = self.params
        one_variance = p.variance == "global"
        if p.variance == "auto":
            one_variance = len(out) < ENOUGH_MODELS
        if p.form == "released":
            return minus_log_density(phi, out, one_variance)
        variance = out.var(axis=0, ddof=1)
        if one_variance:
            variance = variance.mean()
        return (phi - out.mean(axis=0)) / np.maximum(np.sqrt(variance), LEAST_DEVIATION)


def minus_log_density(phi: ndarray, out: ndarray, one_variance: bool) -> ndarray:
    """Return -ln N(phi; median, deviation^2) [n] of ``phi`` [n] under the out-models' ``out`` [M,
    n], as the released code has it.
    """
    deviation = RELEASED_GUARD + out.std(axis=None if one_variance else 0)
    z = (phi - np.median(out, axis=0)) / deviation
    return z**2 / 2 + np.log(deviation) + np.log(2 * np.pi) / 2


class RMIA(Attack):
    """Score = share of population samples z with ratio(x) / ratio(z) >= gamma, ratio(x) = p(x |
    theta) / p(x); in [0, 1].

    p(x | theta) is the final model's softmax on the true label; p(x) = ((1 + a) p_out(x) + 1 - a) /
    2 with p_out the mean over the shadow models, which estimates the mean of in- and out-models
    from out-models alone (p_in = a p_out + 1 - a). The population is the shadow samples. None of
    them is in the target's training data, but each was in that of some shadow models, so p_out(z)
    averages those alone that did not train on z; a z that all trained on is left out. A candidate
    is compared with the z under the global model that serves its own client. The score has steps of
    1/S for S shadow samples, so TF01 wants S in the thousands. Source: Zarifzadeh, Liu & Shokri,
    ICML 2024, the offline attack; softmax without temperature, one query a sample. The authors'
    tool picks ``a`` for each data set by attacking a shadow model, and takes gamma = 1.
    """

    class Params(Params):
        a: float = Field(
            0.3,
            ge=0,
            le=1,
            description="p_in = a p_out + 1 - a: 1 = training leaves the confidence alone, 0 = "
            "makes it 1",
        )
        gamma: float = Field(
            1.0, ge=1, description="by which factor the candidate's ratio must exceed that of z"
        )

    view = "external"
    needs_shadow_models = True

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        shadows = shadow_models_of(observations)
        # no shadow model trained on a candidate
        all_out = np.ones((len(shadows.logits), len(audit.y)), bool)
        evidence = self._log_evidence(_log_out(shadows.logits, audit.y, all_out))
        ratio = log_confidence(shadows.target_logits, audit.y) - evidence
        population = self._population(shadows)
        score = np.empty(len(ratio), np.float64)
        for j in np.unique(shadows.model_of):
            rows = shadows.model_of == j
            bars = np.sort(population[j] + np.log(self.params.gamma))
            # right: a tie counts, as >= does
            score[rows] = np.searchsorted(bars, ratio[rows], side="right") / len(bars)
        return score

    def _population(self, shadows: ShadowModels) -> ndarray:
        """Return ln ratio(z) [s, Z] under each global model, of the shadow samples that some shadow
        model did not train on.
        """
        usable = ~shadows.shadow_member.all(axis=0)
        if not usable.any():
            raise SkipCell(
                "every shadow model trained on every shadow sample, so there is no population to "
                "compare with"
            )
        y = shadows.shadow_y[usable]
        out = ~shadows.shadow_member[:, usable]
        logits = [a[usable] for a in shadows.shadow_logits]
        evidence = self._log_evidence(_log_out(logits, y, out))
        return np.stack(
            [log_confidence(a[usable], y) - evidence for a in shadows.target_shadow_logits]
        )

    def _log_evidence(self, log_out: ndarray) -> ndarray:
        """Return ln p(x) [n] from ln p_out(x)."""
        with np.errstate(divide="ignore"):  # a = 1: ln 0 = -inf adds nothing
            rest = np.log((1 - self.params.a) / 2)
        return np.logaddexp(np.log((1 + self.params.a) / 2) + log_out, rest)


def _log_out(logits: Iterable[ndarray], y: ndarray, out: ndarray) -> ndarray:
    """Return ln of the mean confidence [n] over the shadow models that did not train on a sample,
    from their M ``logits`` [n, C]; ``out``: [M, n] bool.
    """
    confidence = np.stack([log_confidence(a, y) for a in logits])
    return np.logaddexp.reduce(np.where(out, confidence, -np.inf), axis=0) - np.log(out.sum(axis=0))
