"""The built-in signals: of the logits, of the gradient, and of perturbed copies of a sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch.nn.functional import cross_entropy, pad

from fedbench.core import Params, Probe, Signal
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.signals.measure import GRADIENT_BYTES, chunk_of


class Loss(Signal):
    """Cross-entropy. Source: Yeom et al., CSF 2018."""

    def measure(self, probe: Probe) -> torch.Tensor:
        return cross_entropy(probe.logits, probe.y, reduction="none").float()


class Confidence(Signal):
    """Softmax probability of the label, p_y."""

    def measure(self, probe: Probe) -> torch.Tensor:
        return torch.exp(-cross_entropy(probe.logits, probe.y, reduction="none")).float()


class LogitConfidence(Signal):
    """ln(p_y / (1 - p_y)) = z_y - logsumexp of the other logits, in float64, stored as float32; no
    prediction saturates.

    Nothing is computed from p_y, which is 1 in float32 from a margin of 17 on, so that different
    logits give different values. Source: Carlini et al. (LiRA), S&P 2022, the "logit scaling";
    Chang et al. (FTA), USENIX Security 2024, who form ln p_y - ln(the other probabilities + 1e-45),
    the same up to a margin of about 100.
    """

    def measure(self, probe: Probe) -> torch.Tensor:
        logits, label = probe.logits.double(), probe.y[:, None]
        return (
            logits.gather(1, label).squeeze(1) - logits.scatter(1, label, -torch.inf).logsumexp(1)
        ).float()


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
    """Mean over the classes of -ln p_c = logsumexp(z) - mean(z): the cross-entropy of a label that
    says nothing.

    In float64, where no class saturates. Training on soft labels lowers it on members, beside the
    loss of the label.
    """

    def measure(self, probe: Probe) -> torch.Tensor:
        logits = probe.logits.double()
        return (logits.logsumexp(1) - logits.mean(1)).float()


class Margin(Signal):
    """Logit margin z_y - max_{j != y} z_j: > 0 exactly where the label alone has the largest logit
    (a tie gives 0).

    Source: the hinge score of Carlini et al. (LiRA), S&P 2022; its sign is the decision of Yeom et
    al., CSF 2018.
    """

    def measure(self, probe: Probe) -> torch.Tensor:
        logits, label = probe.logits.float(), probe.y[:, None]
        return logits.gather(1, label).squeeze(1) - logits.scatter(1, label, -torch.inf).amax(1)


class ModifiedEntropy(Signal):
    """-(1 - p_y) ln p_y - sum_{i != y} p_i ln(1 - p_i). Source: Song & Mittal, USENIX Security
    2021.
    """

    def measure(self, probe: Probe) -> torch.Tensor:
        log_p = probe.logits.log_softmax(1)
        log_q = _log_complement(log_p)
        label = probe.y[:, None]
        wrong = (log_p.exp() * log_q).scatter(1, label, 0.0).sum(1)
        right = (log_q.exp() * log_p).gather(1, label).squeeze(1)
        return -(right + wrong).float()


def _log_complement(log_p: torch.Tensor) -> torch.Tensor:
    """ln(1 - p), [n, C], finite for finite logits: only the top class can have p near 1; it is
    summed from the rest.
    """
    top = log_p.argmax(1, keepdim=True)
    of_top = log_p.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    return torch.log1p(-log_p.exp().scatter(1, top, 0.0)).scatter(1, top, of_top)


# --- of the gradient ------------------------------------------------------------------------------


class _OfTheEngine(Signal):
    """``Recorder`` (measure.py) computes it from one pass over the samples, at the model that the
    client received.
    """

    def measure(self, probe: Probe) -> torch.Tensor:
        raise NotImplementedError(
            "the engine measures this signal for all clients at once; name it in an attack's "
            "`needs`"
        )


class GradDot(_OfTheEngine):
    """<g_i, I_k>: the sample's gradient and received minus uploaded parameters. Source: Li et al.,
    ICLR 2023.
    """


class GradSq(_OfTheEngine):
    """|g_i|^2. Source: Nasr et al., CCS 2018."""


class UpdateSq(_OfTheEngine):
    """|I_k|^2, the same for every sample."""


class UploadGradSq(Signal):
    """Squared length of the gradient of the sample's cross-entropy at the UPLOADED model, over all
    trainable parameters.

    It tells how well that model has learnt the sample; ``grad-sq`` is at the model that the client
    received, where it had not yet trained in the round. Source: Nasr et al., S&P 2019 (gradient
    norms of the attacked model itself).
    """

    def measure(self, probe: Probe) -> torch.Tensor:
        none = probe.update.new_zeros(0, len(probe.update))
        return gradient_features(
            probe.model, probe.x, probe.y, none, chunk_of(probe.x, GRADIENT_BYTES)
        ).sq.float()


# --- of perturbed copies --------------------------------------------------------------------------


_KEY = 2021  # of the draws: the same for every sample, row and round
Draws = list[torch.Tensor]


class Robustness(Signal):
    """Share of perturbed copies of the sample that the model still gives its label, in [0, 1].

    Reads the predicted class and nothing else of the model. The copies: Gaussian noise on the input
    as the model takes it (byte images are normalised first); of images [C, H, W] shifted and
    mirrored ones too; of a sample with features 0 and 1 alone flipped bits in place of noise. The
    draws are fixed, so that a sample's value depends on no other sample. Source: Choquette-Choo et
    al. (ICML 2021), "Label-only membership inference attacks": noise, data augmentation, and
    Bernoulli noise for binary features.
    """

    class Params(Params):
        copies: int = Field(
            5, ge=1, le=1000, description="copies for each level, rate, and for the shifts"
        )
        levels: tuple[Annotated[float, Field(gt=0, le=100)], ...] = Field(
            (0.1, 0.3, 1.0),
            min_length=1,
            max_length=20,
            description="standard deviations of the noise, in units of the normalised input",
        )
        rates: tuple[Annotated[float, Field(gt=0, le=0.5)], ...] = Field(
            (0.01, 0.05, 0.1),
            min_length=1,
            max_length=20,
            description="probabilities that a 0/1 feature is flipped",
        )
        shift: int = Field(
            4,
            ge=0,
            le=32,
            description="images are shifted by up to so many pixels, both ways; 0: not at all",
        )
        mirror: bool = Field(
            True,
            description="whether a shifted copy of an image is mirrored with probability one half",
        )

    def measure(self, probe: Probe) -> torch.Tensor:
        x = probe.normalise(probe.x)
        if not x.is_floating_point():
            raise ValueError(
                f"it perturbs floats and byte images; these samples are {x.dtype}".replace(
                    "torch.", ""
                )
            )
        bits = ((x == 0) | (x == 1)).flatten(1).all(1)
        share = torch.zeros(len(x), device=x.device)
        for mine, copies in ((bits, self._flipped), (~bits, self._noised)):
            if bool(mine.any()):
                share[mine] = self._share(probe, mine, copies(x[mine]))
        return share

    def _share(
        self, probe: Probe, mine: torch.Tensor, copies: Iterator[torch.Tensor]
    ) -> torch.Tensor:
        right = [probe.model(x).argmax(1) == probe.y[mine] for x in copies]
        return torch.stack(right).float().mean(0)

    def _noised(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        g = torch.Generator().manual_seed(_KEY)
        for level in self.params.levels:
            for _ in range(self.params.copies):
                yield x + level * torch.randn(x.shape[1:], generator=g).to(x)
        if x.dim() == 4 and (self.params.shift or self.params.mirror):
            yield from self._moved(x, g)

    def _moved(self, x: torch.Tensor, g: torch.Generator) -> Iterator[torch.Tensor]:
        """Images of which the border is repeated where nothing is known."""
        s, (h, w) = self.params.shift, x.shape[2:]
        wide = pad(x, (s, s, s, s), mode="replicate") if s else x
        for _ in range(self.params.copies):
            top, left, turned = (
                int(torch.randint(0, n, (), generator=g)) for n in (2 * s + 1, 2 * s + 1, 2)
            )
            moved = wide[:, :, top : top + h, left : left + w]
            yield moved.flip(3) if turned and self.params.mirror else moved

    def _flipped(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        g = torch.Generator().manual_seed(_KEY)
        for rate in self.params.rates:
            for _ in range(self.params.copies):
                flip = (torch.rand(x.shape[1:], generator=g) < rate).to(x)
                yield (x - flip).abs()
