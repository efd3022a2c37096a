"""Signals computed from the logits alone, the five of SeqMIA (Li et al., CCS 2024) among them."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from fedbench.core import Probe, Signal


class Loss(Signal):
    """Cross-entropy. Source: Yeom et al., CSF 2018."""

    def measure(self, probe: Probe) -> torch.Tensor:
        return cross_entropy(probe.logits, probe.y, reduction="none").float()


class Confidence(Signal):
    """Softmax probability of the label, p_y."""

    def measure(self, probe: Probe) -> torch.Tensor:
        return torch.exp(-cross_entropy(probe.logits, probe.y, reduction="none")).float()


class LogitConfidence(Signal):
    """ln(p_y / (1 - p_y)) = z_y - logsumexp of the other logits, in float64, stored as float32; no prediction saturates.

    Nothing is formed from p_y, which is 1 in float32 from a margin of 17 on: two predictions whose logits differ differ here.
    Source: Carlini et al. (LiRA), S&P 2022, the "logit scaling"; Chang et al. (FTA), USENIX Security 2024, who form
    ln p_y - ln(the other probabilities + 1e-45), the same up to a margin of about 100.
    """

    def measure(self, probe: Probe) -> torch.Tensor:
        logits, label = probe.logits.double(), probe.y[:, None]
        return (logits.gather(1, label).squeeze(1) - logits.scatter(1, label, -torch.inf).logsumexp(1)).float()


class MaxProb(Signal):
    """Largest softmax probability. Source: Salem et al., NDSS 2019."""

    def measure(self, probe: Probe) -> torch.Tensor:
        return probe.logits.softmax(1).amax(1).float()


class StdProb(Signal):
    """Population standard deviation of the softmax vector. Source: Salem et al., NDSS 2019."""

    def measure(self, probe: Probe) -> torch.Tensor:
        return probe.logits.softmax(1).std(1, correction=0).float()


class Entropy(Signal):
    """-sum_i p_i ln p_i, in nats. Source: Salem et al., NDSS 2019."""

    def measure(self, probe: Probe) -> torch.Tensor:
        log_p = probe.logits.log_softmax(1)
        return -(log_p.exp() * log_p).sum(1).float()


class Logits(Signal):
    """The logits themselves, [n, C], as the model gives them: what an attack that learns reads."""

    vector = True

    def measure(self, probe: Probe) -> torch.Tensor:
        return probe.logits.float()


class UniformLoss(Signal):
    """Mean over the classes of -ln p_c = logsumexp(z) - mean(z): the cross-entropy of a label that says nothing.

    In float64, where no class saturates. Training on soft labels lowers it on members, beside the loss of the label.
    """

    def measure(self, probe: Probe) -> torch.Tensor:
        logits = probe.logits.double()
        return (logits.logsumexp(1) - logits.mean(1)).float()


class Margin(Signal):
    """Logit margin z_y - max_{j != y} z_j: > 0 exactly where the label alone has the largest logit (a tie gives 0).

    Source: the hinge score of Carlini et al. (LiRA), S&P 2022; its sign is the decision of Yeom et al., CSF 2018.
    """

    def measure(self, probe: Probe) -> torch.Tensor:
        logits, label = probe.logits.float(), probe.y[:, None]
        return logits.gather(1, label).squeeze(1) - logits.scatter(1, label, -torch.inf).amax(1)


class ModifiedEntropy(Signal):
    """-(1 - p_y) ln p_y - sum_{i != y} p_i ln(1 - p_i). Source: Song & Mittal, USENIX Security 2021."""

    def measure(self, probe: Probe) -> torch.Tensor:
        log_p = probe.logits.log_softmax(1)
        log_q = _log_complement(log_p)
        label = probe.y[:, None]
        wrong = (log_p.exp() * log_q).scatter(1, label, 0.0).sum(1)
        right = (log_q.exp() * log_p).gather(1, label).squeeze(1)
        return -(right + wrong).float()


def _log_complement(log_p: torch.Tensor) -> torch.Tensor:
    """ln(1 - p), [n, C], finite for finite logits: only the top class can have p near 1; it is summed from the rest."""
    top = log_p.argmax(1, keepdim=True)
    of_top = log_p.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    return torch.log1p(-log_p.exp().scatter(1, top, 0.0)).scatter(1, top, of_top)
