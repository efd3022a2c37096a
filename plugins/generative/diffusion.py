"""The task: predict the noise of an image, given its time and the embedding of its class.

Denoising diffusion (Ho et al., NeurIPS 2020) with T = 100 steps. A row of the model is the noised
image, flattened, then its time and its class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod

import torch
from torch import Generator, Tensor, nn

from fedbench.core import Data, Task, Utility

CLASSES = 10  # of FedMIA's generative federations (appendix A)
STEPS = 100
PAIRS = 16  # of time and noise, in audits and tests
# those of latent diffusion for 1,000 steps, .00085 to .012, times ten for a tenth of the steps
BETAS = (0.0085, 0.12)
_KEYS = {"audit": 1801, "test": 1802}


@cache
def signal_share() -> Tensor:
    """Return alpha bar [T], the share of an image's variance that is left (equation 4)."""
    return torch.cumprod(1 - torch.linspace(*BETAS, STEPS, dtype=torch.float64), 0)


def share_at(time: Tensor, like: Tensor) -> Tensor:
    """Return alpha bar of ``time`` [n], as [n, 1, ...] of the type and dimensions of ``like``."""
    share = signal_share()[time.cpu()].to(like)
    return share.view(-1, *[1] * (like.dim() - 1))


def noised(x: Tensor, time: Tensor, noise: Tensor) -> Tensor:
    """Return sqrt(a) x + sqrt(1 - a) noise of images [n, ...] at ``time`` [n] (equation 4)."""
    share = share_at(time, x)
    return share.sqrt() * x + (1 - share).sqrt() * noise


def rows_of(images: Tensor, time: Tensor, y: Tensor) -> Tensor:
    """Return the model's rows [n, D + 2] of noised images [n, ...], times [n] and classes [n]."""
    columns = torch.stack([time.to(y), y], 1)
    return torch.cat([images.flatten(1), columns.to(images)], 1)


def parts_of(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return images [n, D], times [n] and classes [n] of rows."""
    return rows[:, :-2], rows[:, -2].long(), rows[:, -1].long()


@cache
def grid(purpose: str, size: int) -> tuple[Tensor, Tensor]:
    """Return times [16], one drawn in each sixteenth of all, and noises [16, size]; both keyed."""
    draws = torch.Generator().manual_seed(_KEYS[purpose])
    first = torch.arange(PAIRS) * STEPS
    time = (first + torch.randint(STEPS, (PAIRS,), generator=draws)) // PAIRS
    return time, torch.randn(PAIRS, size, generator=draws)


class Denoising(Task):
    """Mean squared error of the predicted noise (Ho et al., equation 14).

    Training draws a time and a noise for each sample. Audits and tests have 16 fixed pairs of them,
    the same for all samples, models and rounds; tests put an image to the embedding of every class.
    """

    name = "denoising"
    views = PAIRS
    y_dtype = "int64"
    # the error of noise of the right length that has nothing to do with the image's is 2
    utilities = (
        Utility(
            name="denoising loss",
            unit="per pixel",
            values=lambda outputs, target, y: own_losses(class_losses(outputs, target), y),
            high=2.0,
            direction="lower",
        ),
    )

    def rows(
        self, x: Tensor, y: Tensor, purpose: str, generator: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return rows [n, D + 2] to train, [n * 16, D + 2] to audit, [n * 10 * 16, D + 2] to test,
        and their noises.
        """
        images = x.flatten(1)
        if purpose == "train":
            time = torch.randint(STEPS, y.shape, generator=generator).to(y)
            noise = torch.randn(images.shape, generator=generator).to(x)
            return rows_of(noised(images, time, noise), time, y), noise
        classes = y[:, None]
        if purpose == "test":
            classes = torch.arange(CLASSES).to(y).expand(len(y), -1)
        images = images.repeat_interleave(classes.shape[1] * PAIRS, 0)
        classes = classes.flatten()
        time, noise = grid(purpose, images.shape[1])
        time = time.to(y).repeat(len(classes))
        noise = noise.to(x).repeat(len(classes), 1)
        return rows_of(noised(images, time, noise), time, classes.repeat_interleave(PAIRS)), noise

    def losses(self, outputs: Tensor, target: Tensor) -> Tensor:
        return (outputs - target).square().mean(1)

    def predict(self, outputs: Tensor) -> Tensor:
        """Return the class [n] with the least loss of each sample of a test."""
        noise = grid("test", outputs.shape[1])[1].to(outputs)
        return class_losses(outputs, noise.repeat(len(outputs) // PAIRS, 1)).argmin(1)

    def missing_in_data(self, data: Data) -> str:
        if len(data.input_shape) != 3 or data.n_classes != prod(data.input_shape):
            return (
                f"its samples are {list(data.input_shape)} and n_classes is {data.n_classes}; "
                "expected images [channels, height, width], and n_classes the number of their "
                "values"
            )
        if not len(data.public_y):
            return "it has no public part (public_x, public_y), on which a denoiser is pretrained"
        labels = max(int(getattr(data, f"{split}_y").max()) for split in data.splits)
        if labels >= CLASSES:
            return f"it has a class {labels}; expected classes 0 to {CLASSES - 1}"
        return ""

    def missing_in_model(self, module: nn.Module) -> str:
        embedding = getattr(module, "embedding", None)
        if isinstance(embedding, nn.Parameter) and len(embedding) == CLASSES:
            return ""
        return (
            f"it has no parameter `embedding` [{CLASSES}, d], the classes' embeddings that clients "
            "learn and share; use the model 'denoiser-mlp' or 'denoiser-unet'"
        )


def class_losses(outputs: Tensor, target: Tensor) -> Tensor:
    """Return the loss [n, 10] of each test sample under the embedding of each class."""
    return Denoising().losses(outputs, target).view(-1, CLASSES, PAIRS).mean(2)


def own_losses(losses: Tensor, y: Tensor) -> Tensor:
    """Return those [n] of each sample's own class, of ``losses`` [n, 10]."""
    return losses.gather(1, y[:, None]).squeeze(1)


@torch.no_grad()
def sampled(model: Callable[[Tensor], Tensor], y: Tensor, noise: Tensor, steps: int = 50) -> Tensor:
    """Return images [n, D] of classes ``y`` [n], made of ``noise`` [n, D] by DDIM.

    Song et al. (ICLR 2021), equation 12 with sigma 0; the predicted image is cut to -1..1, where
    images are. The last of ``steps`` evenly spaced times is 0.
    """
    times = torch.linspace(STEPS - 1, 0, steps).round().long().tolist()
    predicted = noise
    for step in times:
        time = torch.full_like(y, step)
        images = noised(predicted, time, noise) if step < times[0] else noise
        share = share_at(time, images)
        output = model(rows_of(images, time, y))
        predicted = ((images - (1 - share).sqrt() * output) / share.sqrt()).clamp(-1, 1)
        # the noise that belongs to the cut image: with the model's own they drift apart
        noise = (images - share.sqrt() * predicted) / (1 - share).sqrt()
    return predicted
