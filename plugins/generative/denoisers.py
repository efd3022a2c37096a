"""Denoisers: frozen networks with one trainable vector for each class.

Clients learn and upload ``embedding`` [10, d] alone; all its rows start from one vector, as those
of Liang et al. (ECCV 2024) from the embedding of one common word. The network is pretrained on the
data's public part with words of its own: one for each class, and a common one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from fedbench.core import Data, Model, Params, UserError
from fedbench.plugins.generative.diffusion import CLASSES, Denoising, parts_of

_TIME = 32  # features of the time
_COMMON = 0.1  # share of the public samples that the common word stands for
_RATE = 0.001  # Adam's, of the pretraining


class Denoiser(nn.Module):
    """Predicts noises [n, D] of rows [n, D + 2]; ``network``: images, times and words to noises."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network = network.requires_grad_(False)
        self.embedding = nn.Parameter(torch.randn(size).repeat(CLASSES, 1))

    def forward(self, rows: Tensor) -> Tensor:
        return self.denoise(rows, self.embedding)

    def denoise(self, rows: Tensor, words: Tensor) -> Tensor:
        """Return noises, of classes with other embeddings ``words`` [C, d]."""
        images, time, y = parts_of(rows)
        # n=rows: by a product, since the gradient of an index is not deterministic on a GPU
        one_hot = (y[:, None] == torch.arange(len(words), device=y.device)).to(words)
        noise: Tensor = self.network(images, time_features(time, images), one_hot @ words)
        return noise


def time_features(time: Tensor, like: Tensor) -> Tensor:
    """Return sines and cosines [n, 32] of times [n] at 16 frequencies (Ho et al., appendix B)."""
    frequencies = torch.exp(torch.arange(_TIME // 2) * (-math.log(10_000) / (_TIME // 2)))
    angles = time[:, None].to(like) * frequencies.to(like)
    return torch.cat([angles.sin(), angles.cos()], 1)


class DenoiserModel(Model):
    """Base of a denoiser: freezes its network, and pretrains it."""

    class Params(Params):
        steps: int = Field(3000, ge=1, le=10**6, description="steps of the pretraining")
        batch: int = Field(128, ge=1, le=10**5, description="public samples a step")
        embedding: int = Field(128, ge=1, le=10**5, description="length of a class's embedding")

    def _network(self, input_shape: tuple[int, ...]) -> nn.Module:
        """Return a network of images [n, D], time features [n, 32] and words [n, d] to [n, D]."""
        raise NotImplementedError(f"{type(self).__name__} does not implement _network(input_shape)")

    def build(self, input_shape: tuple[int, ...], n_classes: int) -> nn.Module:
        """Return a denoiser; raise ``UserError`` unless it gives one number a value of an image."""
        if n_classes != math.prod(input_shape):
            raise UserError(
                f"a denoiser predicts the noise of all {math.prod(input_shape)} values of a "
                f"sample, not {n_classes} classes; use it with the data set 'denoising'"
            )
        return Denoiser(self._network(input_shape), self.params.embedding)

    @torch.enable_grad()
    def pretrain(self, module: nn.Module, data: Data) -> None:
        """Train the network, and a word for each class and for all; freeze it, and let every
        class's embedding start from the common word.
        """
        assert isinstance(module, Denoiser)
        words = nn.Parameter(torch.randn(CLASSES + 1, self.params.embedding).to(module.embedding))
        module.network.requires_grad_(True)
        trained = [*module.network.parameters(), words]
        optimizer = torch.optim.Adam(trained, lr=_RATE, fused=True)
        task = Denoising()
        for x, word in self._batches(data, words.device):
            rows, noise = task.rows(x, word, "train")
            optimizer.zero_grad()
            task.loss(module.denoise(rows, words), noise).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        optimizer.zero_grad()
        module.network.requires_grad_(False)
        with torch.no_grad():
            module.embedding.copy_(words[CLASSES].expand(CLASSES, -1))

    def _batches(self, data: Data, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the public images and words of each step."""
        x, y = (torch.from_numpy(a).to(device) for a in (data.public_x, data.public_y))
        size = (self.params.batch,)
        for _ in range(self.params.steps):
            picked = torch.randint(len(y), size).to(device)
            common = (torch.rand(size) < _COMMON).to(device)
            yield x[picked], y[picked].masked_fill(common, CLASSES)


# --- networks -------------------------------------------------------------------------------------


class _MLP(nn.Module):
    def __init__(self, size: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(size + _TIME + embedding, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, size),
        )

    def forward(self, images: Tensor, time: Tensor, word: Tensor) -> Tensor:
        out: Tensor = self.layers(torch.cat([images, time, word], 1))
        return out


class MLPDenoiser(DenoiserModel):
    """Image, time features and embedding through two hidden layers with SiLU."""

    class Params(DenoiserModel.Params):
        hidden: int = Field(256, ge=1, le=10**4, description="width of both hidden layers")

    def _network(self, input_shape: tuple[int, ...]) -> nn.Module:
        return _MLP(math.prod(input_shape), self.params.embedding, self.params.hidden)


class _Block(nn.Module):
    """Two 3x3 convolutions behind GroupNorm and SiLU, the condition added between them, and a
    skip.
    """

    def __init__(self, width: int, wider: int, condition: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, wider, 3, padding=1)
        )
        self.condition = nn.Linear(condition, wider)
        self.last = nn.Sequential(
            nn.GroupNorm(8, wider), nn.SiLU(), nn.Conv2d(wider, wider, 3, padding=1)
        )
        self.skip = nn.Conv2d(width, wider, 1)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        out = self.first(x) + self.condition(condition)[:, :, None, None]
        return self.skip(x) + self.last(out)


class _UNet(nn.Module):
    def __init__(self, shape: tuple[int, ...], embedding: int, width: int) -> None:
        super().__init__()
        self._shape = shape
        wide, condition = 2 * width, 4 * width
        self.condition = nn.Sequential(
            nn.Linear(_TIME + embedding, condition), nn.SiLU(), nn.Linear(condition, condition)
        )
        self.stem = nn.Conv2d(shape[0], width, 3, padding=1)
        self.down = nn.ModuleList([_Block(width, width, condition), _Block(width, wide, condition)])
        self.middle = _Block(wide, wide, condition)
        self.up = nn.ModuleList(
            [_Block(2 * wide, width, condition), _Block(2 * width, width, condition)]
        )
        self.head = nn.Sequential(
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, shape[0], 3, padding=1)
        )

    def forward(self, images: Tensor, time: Tensor, word: Tensor) -> Tensor:
        condition = self.condition(torch.cat([time, word], 1))
        x = self.stem(images.unflatten(1, self._shape))
        skips = []
        for block in self.down:
            x = block(x, condition)
            skips.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self.middle(x, condition)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2)
            x = block(torch.cat([x, skips.pop()], 1), condition)
        out: Tensor = self.head(x).flatten(1)
        return out


class UNetDenoiser(DenoiserModel):
    """U-Net of two levels: time features and embedding are added in every block.

    In the manner of Ho et al. (NeurIPS 2020, appendix B), without attention. Raises ``UserError``
    for anything but images with sides that are multiples of 4.
    """

    class Params(DenoiserModel.Params):
        width: int = Field(
            64, ge=8, le=1024, multiple_of=8, description="channels of the first level"
        )

    def _network(self, input_shape: tuple[int, ...]) -> nn.Module:
        sides: Any = input_shape[1:]
        if len(input_shape) != 3 or any(side % 4 for side in sides):
            raise UserError(
                f"denoiser-unet needs images with sides that are multiples of 4, not "
                f"{list(input_shape)}; use the model 'denoiser-mlp'"
            )
        return _UNet(input_shape, self.params.embedding, self.params.width)
