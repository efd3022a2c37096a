"""The built-in signals: logits, gradients, and predictions on perturbed copies of a sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from fedbench.core import EVERY_TASK, Params, Probe, Signal
from fedbench.core.numerics.gradients import gradient_features
from fedbench.core.signals.measure import GRADIENT_BYTES, chunk_of


class Loss(Signal):
    """Loss of the task, in classification cross-entropy. Source: Yeom et al., CSF 2018."""

    tasks = EVERY_TASK

    def measure(self, probe: Probe) -> Tensor:
        return probe.losses().float()


class Confidence(Signal):
    """Softmax probability of the label, p_y."""

    def measure(self, probe: Probe) -> Tensor:
        return torch.exp(-cross_entropy(probe.logits, probe.y, reduction="none")).float()


class LogitConfidence(Signal):
    """Log odds ln(p_y / (1 - p_y)) = z_y - logsumexp of the other logits, in float64.

    Computed without p_y, which is 1 in float32 from a margin of 17 on. Source: Carlini et al.
    (LiRA), S&P 2022, the "logit scaling"; Chang et al. (FTA), USENIX Security 2024, who form
    ln p_y - ln(the other probabilities + 1e-45), the same up to a margin of about 100.
    """

    def measure(self, probe: Probe) -> Tensor:
        logits = probe.logits.double()
        label = probe.y[:, None]
        rest = logits.scatter(1, label, -torch.inf).logsumexp(1)
        return (logits.gather(1, label).squeeze(1) - rest).float()


class MaxProb(Signal):
    """Largest softmax probability. Source: Salem et al., NDSS 2019."""

    def measure(self, probe: Probe) -> Tensor:
        return probe.logits.softmax(1).amax(1).float()


class StdProb(Signal):
    """Population standard deviation of the softmax vector. Source: Salem et al., NDSS 2019."""

    def measure(self, probe: Probe) -> Tensor:
        return probe.logits.softmax(1).std(1, correction=0).float()


class Entropy(Signal):
    """-sum_i p_i ln p_i, in nats. Source: Salem et al., NDSS 2019."""

    def measure(self, probe: Probe) -> Tensor:
        log_p = probe.logits.log_softmax(1)
        return -(log_p.exp() * log_p).sum(1).float()


class Logits(Signal):
    """Logits [n, C] as the model gives them, for attacks that learn."""

    vector = True

    def measure(self, probe: Probe) -> Tensor:
        return probe.logits.float()


class UniformLoss(Signal):
    """Cross-entropy of a uniform label: mean over the classes of -ln p_c = logsumexp(z) - mean(z).

    In float64, where no class saturates. Training on soft labels lowers it on members.
    """

    def measure(self, probe: Probe) -> Tensor:
        logits = probe.logits.double()
        return (logits.logsumexp(1) - logits.mean(1)).float()


class Margin(Signal):
    """Logit margin z_y - max_{j != y} z_j, 0 for a tie.

    Source: the hinge score of Carlini et al. (LiRA), S&P 2022; its sign is the decision of Yeom et
    al., CSF 2018.
    """

    def measure(self, probe: Probe) -> Tensor:
        logits = probe.logits.float()
        label = probe.y[:, None]
        return logits.gather(1, label).squeeze(1) - logits.scatter(1, label, -torch.inf).amax(1)


class ModifiedEntropy(Signal):
    """Entropy that includes the label, -(1 - p_y) ln p_y - sum_{i != y} p_i ln(1 - p_i).

    Source: Song & Mittal, USENIX Security 2021.
    """

    def measure(self, probe: Probe) -> Tensor:
        log_p = probe.logits.log_softmax(1)
        log_q = _log_complement(log_p)
        label = probe.y[:, None]
        wrong = (log_p.exp() * log_q).scatter(1, label, 0.0).sum(1)
        right = (log_q.exp() * log_p).gather(1, label).squeeze(1)
        return -(right + wrong).float()


def _log_complement(log_p: Tensor) -> Tensor:
    """ln(1 - p) [n, C], finite for finite logits: that of the top class is summed from the rest."""
    top = log_p.argmax(1, keepdim=True)
    rest = log_p.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    return torch.log1p(-log_p.exp().scatter(1, top, 0.0)).scatter(1, top, rest)


# --- gradients ------------------------------------------------------------------------------------


class _GradientSignal(Signal):
    """A signal that ``Recorder`` (measure.py) computes for all clients in one pass, at the model
    that each received.
    """

    tasks = EVERY_TASK

    def measure(self, probe: Probe) -> Tensor:
        raise NotImplementedError(
            "the engine measures this signal for all clients at once; name it in an attack's "
            "`needs`"
        )


class GradDot(_GradientSignal):
    """Product <g_i, I_k> of a sample's gradient with received minus uploaded parameters.

    Source: Li et al., ICLR 2023.
    """


class GradSq(_GradientSignal):
    """Squared norm |g_i|^2. Source: Nasr et al., CCS 2018."""


class UpdateSq(_GradientSignal):
    """Squared norm |I_k|^2, for all samples of a client."""


class UploadGradSq(Signal):
    """Squared norm of a sample's gradient at the UPLOADED model, over all trainable parameters.

    ``grad-sq`` is at the model that the client received. Source: Nasr et al., S&P 2019.
    """

    tasks = EVERY_TASK

    def measure(self, probe: Probe) -> Tensor:
        task = probe.task
        x, target = task.rows(probe.normalise(probe.x), probe.y, "audit")
        no_updates = probe.update.new_zeros(0, len(probe.update))
        chunk = chunk_of(x, GRADIENT_BYTES)
        return gradient_features(probe.model, x, target, no_updates, chunk, task).sq.float()


# --- perturbed copies -----------------------------------------------------------------------------


_KEY = 2021  # of the draws, for every sample, row and round


class Robustness(Signal):
    """Share of perturbed copies of a sample that the model still gives its label, in [0, 1].

    Reads nothing but predicted classes. Copies have Gaussian noise on the normalised input; images
    [C, H, W] are also shifted and mirrored; features that are all 0 or 1 have flipped bits in place
    of noise. The draws are fixed, so that a sample's value depends on no other sample.

    Source: Choquette-Choo et al. (ICML 2021), "Label-only membership inference attacks": noise,
    data augmentation, and Bernoulli noise for binary features.
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

    def measure(self, probe: Probe) -> Tensor:
        x = probe.normalise(probe.x)
        if not x.is_floating_point():
            dtype = str(x.dtype).removeprefix("torch.")
            raise ValueError(f"it perturbs floats and byte images; these samples are {dtype}")
        bits = ((x == 0) | (x == 1)).flatten(1).all(1)
        share = torch.zeros(len(x), device=x.device)
        for rows, perturbed in ((bits, self._flipped), (~bits, self._noised)):
            if bool(rows.any()):
                share[rows] = self._share(probe, probe.y[rows], perturbed(x[rows]))
        return share

    def _share(
        self,
        probe: Probe,
        y: Tensor,
        copies: Iterator[Tensor],
    ) -> Tensor:
        right = [probe.model(copy).argmax(1) == y for copy in copies]
        return torch.stack(right).float().mean(0)

    def _noised(self, x: Tensor) -> Iterator[Tensor]:
        g = torch.Generator().manual_seed(_KEY)
        for level in self.params.levels:
            for _ in range(self.params.copies):
                yield x + level * torch.randn(x.shape[1:], generator=g).to(x)
        if x.dim() == 4 and (self.params.shift or self.params.mirror):
            yield from self._moved(x, g)

    def _moved(self, x: Tensor, g: torch.Generator) -> Iterator[Tensor]:
        """Shifted and mirrored images; the border is repeated outside the image."""
        shift, (height, width) = self.params.shift, x.shape[2:]
        wide = x
        if shift:
            wide = pad(x, (shift,) * 4, mode="replicate")
        for _ in range(self.params.copies):
            top, left, mirrored = (
                int(torch.randint(0, n, (), generator=g)) for n in (2 * shift + 1, 2 * shift + 1, 2)
            )
            moved = wide[:, :, top : top + height, left : left + width]
            if mirrored and self.params.mirror:
                moved = moved.flip(3)
            yield moved

    def _flipped(self, x: Tensor) -> Iterator[Tensor]:
        g = torch.Generator().manual_seed(_KEY)
        for rate in self.params.rates:
            for _ in range(self.params.copies):
                flip = (torch.rand(x.shape[1:], generator=g) < rate).to(x)
                yield (x - flip).abs()
