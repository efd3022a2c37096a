"""How robust a prediction is: all that an attacker can measure who is told a label and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch
from pydantic import Field
from torch.nn.functional import pad

from fedbench.core import Params, Probe, Signal

_KEY = 2021  # of the draws: the same for every sample, row and round
Draws = list[torch.Tensor]


class Robustness(Signal):
    """Share of perturbed copies of the sample that the model still gives its label, in [0, 1].

    Reads the predicted class and nothing else of the model. The copies: Gaussian noise on the input as the model takes it (byte
    images are normalised first); of images [C, H, W] shifted and mirrored ones too; of a sample whose features are all 0 or 1
    flipped bits in place of noise. The draws are fixed, so that a sample's value depends on no other sample.
    Source: Choquette-Choo et al. (ICML 2021), "Label-only membership inference attacks": noise, data augmentation, and
    Bernoulli noise for binary features.
    """

    class Params(Params):
        copies: int = Field(5, ge=1, le=1000, description="copies for each level, rate, and for the shifts")
        levels: tuple[Annotated[float, Field(gt=0, le=100)], ...] = Field(
            (0.1, 0.3, 1.0), min_length=1, max_length=20,
            description="standard deviations of the noise, in units of the normalised input",
        )
        rates: tuple[Annotated[float, Field(gt=0, le=0.5)], ...] = Field(
            (0.01, 0.05, 0.1), min_length=1, max_length=20, description="probabilities that a 0/1 feature is flipped"
        )
        shift: int = Field(4, ge=0, le=32, description="images are shifted by up to so many pixels, both ways; 0: not at all")
        mirror: bool = Field(True, description="whether a shifted copy of an image is mirrored with probability one half")

    def measure(self, probe: Probe) -> torch.Tensor:
        x = probe.normalise(probe.x)
        if not x.is_floating_point():
            raise ValueError(f"it perturbs floats and byte images; these samples are {x.dtype}".replace("torch.", ""))
        bits = ((x == 0) | (x == 1)).flatten(1).all(1)
        share = torch.zeros(len(x), device=x.device)
        for mine, copies in ((bits, self._flipped), (~bits, self._noised)):
            if bool(mine.any()):
                share[mine] = self._share(probe, mine, copies(x[mine]))
        return share

    def _share(self, probe: Probe, mine: torch.Tensor, copies: Iterator[torch.Tensor]) -> torch.Tensor:
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
            top, left, turned = (int(torch.randint(0, n, (), generator=g)) for n in (2 * s + 1, 2 * s + 1, 2))
            moved = wide[:, :, top : top + h, left : left + w]
            yield moved.flip(3) if turned and self.params.mirror else moved

    def _flipped(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        g = torch.Generator().manual_seed(_KEY)
        for rate in self.params.rates:
            for _ in range(self.params.copies):
                flip = (torch.rand(x.shape[1:], generator=g) < rate).to(x)
                yield (x - flip).abs()
