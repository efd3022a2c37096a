"""Attacks with a net that reads the series of rounds: CS-MIA, SeqMIA and DSM-MIA."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field
from threadpoolctl import threadpool_limits

from fedbench.core import Observations, Params, SkipCell
from fedbench.plugins.attacks.measures import carried
from fedbench.plugins.attacks.networks import FlatAdam, SequenceNet, trained_net
from fedbench.plugins.attacks.taught import Scorer, TaughtBySeries
from fedbench.plugins.attacks.trajectory import Followed, Trajectory, within_class


class CSMIA(TaughtBySeries):
    """Score = the net's member logit for the series of modified entropies on the target's uploaded
    models.

    The net learns from one colluding client, its members against the rest of the pool, cross-fitted
    sample by sample. Its inputs are rounds, so both series have one value for every audited round:
    in a round without the client, that of the last model it uploaded (before its first one, of the
    first). Source: Gu et al., CS-MIA (Information Sciences 2022), the attack of a participant that
    knows its own members, with the target's models in place of the global ones. The paper's hidden
    activation is taken to be ReLU.
    """

    class Params(Params):
        epochs: int = Field(50, ge=1, le=10_000, description="passes over the colluder's samples")
        standardise: bool = Field(
            False,
            description="shift and scale each round by its mean and deviation on the training fold "
            "(paper: off)",
        )

    needs = frozenset({"modified-entropy"})

    def _features(self, observations: Observations, y: ndarray) -> ndarray:
        """Return [n, R] float32."""
        series = carried(observations.of_target("modified-entropy"))
        return np.ascontiguousarray(series.T, dtype=np.float32)

    def _learn(self, x: ndarray, member: ndarray, generator: torch.Generator) -> Scorer:
        p = self.params
        lesson = torch.from_numpy(x)
        kind = torch.from_numpy(member)
        net = trained_net(lesson, kind, p.epochs, generator, 5e-4, p.standardise)
        return lambda samples: net.logits(torch.from_numpy(samples))


BATCH, WEIGHT_DECAY = 100, 1e-4


def train(
    x: ndarray, y: ndarray, epochs: int, standardise: bool, generator: torch.Generator
) -> SequenceNet:
    """Fit a net to ``x`` [n, T, 5] and ``y`` [n] bool.

    Adam, rate 0.01 times 0.9 every 10 epochs down to 5e-4, weight decay 1e-4, batches of 100.
    """
    net = SequenceNet(x.shape[2], generator, x.dtype)
    if standardise:
        net.standardise_by(x)
    read = net.read(x)
    adam = FlatAdam(net.flat, WEIGHT_DECAY)
    for epoch in range(epochs):
        rate = max(0.01 * 0.9 ** (epoch // 10), 5e-4)
        order = torch.randperm(len(x), generator=generator).numpy()
        shuffled = read[:, :, order]
        labels = y[order]
        for start in range(0, len(x), BATCH):
            batch = slice(start, start + BATCH)
            logits, passed = net.forward(shuffled[:, :, batch])
            adam.step(net.gradient(passed, loss_slope(logits, labels[batch])), rate)
    return net


def loss_slope(logits: ndarray, member: ndarray) -> ndarray:
    """Return the derivative of the mean cross-entropy by ``logits`` [2, n]; ``member``: [n]."""
    p_member = 0.5 + 0.5 * np.tanh(0.5 * (logits[1] - logits[0]))
    by_margin = (p_member - member) / np.asarray(len(member), logits.dtype)
    return np.stack([-by_margin, by_margin]).astype(logits.dtype, copy=False)


def margin(net: SequenceNet, x: ndarray) -> ndarray:
    """Return the member logit minus the non-member logit [n] of ``x`` [n, T, d]."""
    with threadpool_limits(limits=1):
        logits = net.logits(x).astype(np.float64)
    return logits[:, 1] - logits[:, 0]


def member_logit(net: SequenceNet, x: ndarray) -> ndarray:
    """Return the member logit [n] of ``x`` [n, T, d]."""
    with threadpool_limits(limits=1):
        return net.logits(x)[:, 1].astype(np.float64)


SCORES = {"margin": margin, "logit1": member_logit}


FEATURES = ("loss", "max-prob", "std-prob", "entropy", "modified-entropy")  # in the paper's order


class SeqMIA(TaughtBySeries, Trajectory):
    """Score = the net's member logit minus its non-member logit on the target's uploaded models.

    The net learns from one colluding client: its own models, its own members against the rest of
    the pool. Source: Li et al. (CCS 2024, arXiv 2407.15098); the rounds of a federation take the
    place of their distilled snapshots, as in CoFedMID (appendix D). The published code queries
    models in train mode, so that batch statistics and dropout reveal whole batches of members;
    there is no parameter for it: signals are measured in eval mode. In the view ``coalition`` the
    net reads the coalition's mean, and still learns from a colluder's own uploads: a colluder has
    no mean to teach with. ``normalise: class`` standardises each signal, in the lessons among the
    samples of a lesson.
    """

    class Params(Followed):
        epochs: int = Field(150, ge=1, le=10_000, description="passes over the colluder's samples")
        standardise: bool = Field(
            True,
            description="shift and scale each signal by its mean and deviation on the training "
            "fold (paper: off)",
        )
        score: Literal["margin", "logit1"] = Field(
            "margin",
            description="margin: member minus non-member logit; logit1: the member logit alone "
            "(faithful)",
        )

    needs = frozenset(FEATURES)

    def _features(self, observations: Observations, y: ndarray) -> ndarray:
        """Return [n, T, 5] float32, over the rounds the target took part in."""
        signals = [observations.of_target(name) for name in FEATURES]
        if self.params.normalise == "class":
            signals = [within_class(signal, y) for signal in signals]
        x = np.stack(signals, axis=-1)  # [R, n, 5]
        x = x[~np.isnan(x).any(axis=(1, 2))]
        if len(x) == 0:
            raise SkipCell("the client took part in no audited round")
        return np.ascontiguousarray(x.transpose(1, 0, 2), dtype=np.float32)

    def _learn(self, x: ndarray, member: ndarray, generator: torch.Generator) -> Scorer:
        p = self.params
        with threadpool_limits(limits=1):
            net = train(x, member, p.epochs, p.standardise, generator)
        return partial(SCORES[p.score], net)


class DSMMIA(TaughtBySeries):
    """Score = the margin of SeqMIA's net on the global model's metrics and all clients' losses.

    Each step is SeqMIA's five metrics under the model that the target received, then the loss of
    each client's upload: global and local source. The released code trains the net on a shadow
    federation to name the client, one class for each and one for none, with a loss column for each
    client. Here one colluding client teaches members from the rest of the pool, and a column must
    not depend on who a client is: the target's loss comes first, the others' follow in ascending
    order, absent ones at the mean of those present. Source: DS-MIA, also DSM-MIA (Wztovo/DS-MIA,
    1ad673e); its paper has not been read.
    """

    class Params(Params):
        epochs: int = Field(150, ge=1, le=10_000, description="passes over the colluder's samples")

    needs = frozenset({"loss", "received-metrics"})

    def _features(self, observations: Observations, y: ndarray) -> ndarray:
        """Return [n, T, 5 + K] float32, over the rounds with the target and another client."""
        metrics = observations.of_target("received-metrics")  # [R, n, 5]
        losses = observations.of_target("loss")[..., None]
        others = np.moveaxis(observations.of_others("loss"), 1, 2)  # [R, n, K - 1]
        absent = np.isnan(others)
        rounds = ~np.isnan(losses).any(axis=(1, 2)) & ~absent.all(axis=(1, 2))
        if not rounds.any():
            raise SkipCell("the client took part in no audited round beside another one")
        present = np.maximum((~absent).sum(axis=2, keepdims=True), 1)
        mean = np.where(absent, 0.0, others).sum(axis=2, keepdims=True) / present
        ranked = np.sort(np.where(absent, mean, others), axis=2)
        x = np.concatenate([metrics, losses, ranked], axis=2)[rounds]
        return np.ascontiguousarray(x.transpose(1, 0, 2), dtype=np.float32)

    def _learn(self, x: ndarray, member: ndarray, generator: torch.Generator) -> Scorer:
        with threadpool_limits(limits=1):
            net = train(x, member, self.params.epochs, True, generator)
        return partial(margin, net)
