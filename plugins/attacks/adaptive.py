"""Attacks that know the defense, its public parameters included (``Attack.against``).

A defense protects no better than against an attack made for it: Aerni, Zhang & Tramèr, "Evaluations
of Machine Learning Privacy Defenses are Misleading" (arXiv 2404.17399).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from fedbench.core import Attack, Audit, Observations, Probe, Signal, gradient_features
from fedbench.plugins.attacks.fedmia import FedMIAII
from fedbench.plugins.attacks.measures import (
    float64,
    grad_cosine,
    last_round,
    matched,
    of_target,
    time_average,
)
from fedbench.plugins.attacks.received import received_model
from fedbench.plugins.defenses.losses import uniform_share

# --- targets and samples of local training --------------------------------------------------------


class AdaptiveTargets(Attack):
    """Score = minus the loss that the target trained with, on its upload of one round.

    Soft labels (1 - theta) onehot + theta / C, of strength theta in label-smoothing and
    membershield, of least entropy gamma in hamp, are where a member's prediction ends; the plain
    loss takes a more confident non-member for a member. Cross-entropy is linear in the label, so
    this loss is (1 - theta) CE + theta mean_c(-ln p_c), in hamp less C alpha times the entropy of
    the prediction, which it rewards. Source of an adversary who knows the soft labels:
    MemberShield, section 7.8, as ``adaptive-membershield``, which is told theta by the suite.
    """

    against = frozenset({"hamp", "label-smoothing", "membershield"})
    needs = frozenset({"loss", "uniform-loss", "entropy"})

    def score_rounds(self, observations: Observations, audit: Audit) -> ndarray:
        theta, reward = soft_label(observations.defense, audit.n_classes)
        loss = (1 - theta) * float64(observations, "loss")
        loss += theta * float64(observations, "uniform-loss")
        loss -= reward * float64(observations, "entropy")
        return -of_target(loss, observations)

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        scores = self.score_rounds(observations, audit)
        return np.asarray(scores[last_round(scores)])


def soft_label(defense: Mapping[str, Mapping[str, Any]], n_classes: int) -> tuple[float, float]:
    """Return (share of the uniform distribution in a label, weight of the entropy that is
    rewarded) of the components together.
    """
    label = 1.0  # share of the one-hot label
    reward = 0.0
    for name, field in (("label-smoothing", "strength"), ("membershield", "theta")):
        label *= 1 - defense.get(name, {}).get(field, 0.0)
    if "hamp" in defense:
        label *= 1 - uniform_share(n_classes, defense["hamp"]["gamma"])
        reward = n_classes * defense["hamp"]["alpha"]
    return 1 - label, reward


class AdaptiveSampling(FedMIAII):
    """Mean of FedMIA-II's Lambda_t over the share p of rounds in which it is largest, p the share
    of batches that data-sampling keeps.

    A member is trained on in some rounds only. In the others its upload says nothing of it, and a
    mean over all rounds spreads what the rest say over them. With several local epochs, each of
    which draws batches anew, a sample is trained on in more rounds than the share p of them that is
    counted.
    """

    against = frozenset({"data-sampling"})

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        likelihood = self._likelihoods(observations, audit)
        complete = likelihood[~np.isnan(likelihood).any(axis=1)]
        share = observations.defense["data-sampling"]["fraction"]
        rounds = max(1, round(share * len(complete)))
        return np.asarray(np.sort(complete, axis=0)[-rounds:].mean(axis=0))


# --- CoFedMID -------------------------------------------------------------------------------------


def without_suffix_shift(update: Tensor) -> Tensor:
    """Subtract from the last m entries of ``update`` [P] their mean, m chosen by least squares.

    A constant added to the last m entries explains m mean^2 of the squared length; the largest
    share over m is the maximum-likelihood estimate where the other entries are white noise.
    """
    values = update.double()
    sums = values.flip(0).cumsum(0)
    sizes = torch.arange(1, len(values) + 1, device=values.device)
    m = int((sums**2 / sizes).argmax()) + 1
    shift = torch.zeros_like(values)
    shift[-m:] = sums[m - 1] / m
    return (values - shift).to(update)


class UnshiftedCosine(Signal):
    """Cosine of the sample's gradient and the client's pseudo-gradient, at the model that it
    received, after a constant on the last parameters of the upload is estimated and taken out.
    """

    of_update = True

    def measure(self, probe: Probe) -> Tensor:
        update = without_suffix_shift(probe.update)
        model = received_model(probe)
        x, target = probe.task.rows(probe.normalise(probe.x), probe.y, "audit")
        features = gradient_features(model, x, target, update[None], task=probe.task)
        length = (features.sq * features.update_sq).sqrt()
        return -features.dot[0] / length.where(length > 0, 1.0)


class AdaptiveCoFedMID(Attack):
    """Score = sum_t w_t c_t / sqrt(sum_t w_t^2) of the gradient cosine c_t, less its mean over the
    candidates of the class, w_t how much the target trained on that class in round t.

    CoFedMID hides a sample behind one scalar on the last parameters, which a reader of the upload
    estimates and takes out (:class:`UnshiftedCosine`), and behind classes that a member trains in
    some rounds only. Which ones shows in the mean cosine of the class under its upload, above that
    under the other clients' uploads: w_t is that excess, 0 where it is negative. Rounds without the
    class say nothing of the sample, and within a round what all of a class have in common says
    nothing either. Without ``partition`` all rounds weigh alike; without ``perturbation`` the
    cosine is the plain one. Source of the modules: Bai et al. (CoFedMID), sections 4.1 and 4.3.
    """

    against = frozenset({"cofedmid"})
    needs = frozenset({"unshifted-cosine", "grad-dot", "grad-sq", "update-sq"})

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        params = observations.defense["cofedmid"]
        if params["perturbation"]:
            cosine = float64(observations, "unshifted-cosine")
        else:
            cosine = grad_cosine(observations)
        if not params["partition"]:
            return time_average(of_target(cosine, observations))
        means = class_means(cosine, audit.y)
        target = of_target(means, observations)
        others = np.delete(means, observations.target, axis=1)
        present = (~np.isnan(others)).sum(axis=1)
        excess = target - np.nansum(others, axis=1) / np.maximum(present, 1)
        return matched(of_target(cosine, observations) - target, np.maximum(excess, 0.0))


def class_means(measured: ndarray, y: ndarray) -> ndarray:
    """Replace each value of ``measured`` [..., n] by the mean of its class in its row; ``y``:
    [n].
    """
    means = np.empty(measured.shape)
    for label in np.unique(y):
        in_class = y == label
        means[..., in_class] = measured[..., in_class].mean(axis=-1, keepdims=True)
    return means
