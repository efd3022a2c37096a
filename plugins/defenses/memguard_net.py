"""MemGuard's defense classifier: member or not, by a confidence vector."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedbench.plugins.attacks.adam import Adam

RATE = 1e-3


class Classifier:
    """g = sigmoid(h): a confidence vector to the probability that its sample was trained on.

    In float64: a search that stops where h changes its sign must not depend on how many samples are searched at once.
    The weights are drawn by Glorot's uniform rule, as the authors' are.
    """

    def __init__(self, classes: int, hidden: Sequence[int], order: str, generator: torch.Generator, device: torch.device) -> None:
        self._sorted = order == "sorted"
        widths = [classes, *hidden, 1]
        self.layers: list[tuple[nn.Parameter, nn.Parameter]] = []
        for into, out in pairwise(widths):
            w = torch.rand(into, out, generator=generator, dtype=torch.float64) * 2 - 1
            w = w * (6 / (into + out)) ** 0.5
            b = torch.zeros(out, dtype=torch.float64)
            self.layers.append((nn.Parameter(w.to(device)), nn.Parameter(b.to(device))))

    def h(self, p: torch.Tensor) -> torch.Tensor:
        """[n]: g's logit on confidence vectors ``p`` [n, C] float64."""
        x = p.sort(dim=1, descending=True).values if self._sorted else p
        for i, (w, b) in enumerate(self.layers):
            x = torch.addmm(b, x.relu() if i else x, w)
        return x.squeeze(1)


def trained(lessons: Sequence[torch.Tensor], params: Any, key: int) -> Classifier | None:
    """A classifier that learnt from every member's ``lessons`` [2m, C], logits on its own samples, then on as many references;
    None without any."""
    if not lessons:
        return None
    device = lessons[0].device
    generator = torch.Generator().manual_seed(key >> 1)
    g = Classifier(lessons[0].shape[1], params.hidden, params.order, generator, device)
    p = torch.cat(list(lessons)).softmax(1)
    inside = torch.cat([torch.arange(len(z), device=device) < len(z) // 2 for z in lessons]).double()
    weight = torch.cat([torch.full((len(z),), 1 / (len(z) * len(lessons)), device=device).double() for z in lessons])
    weights = [t for layer in g.layers for t in layer]
    with torch.enable_grad():
        adam = Adam(weights, weight_decay=0.0)
        for _ in range(params.epochs):
            adam.step((binary_cross_entropy_with_logits(g.h(p), inside, reduction="none") * weight).sum(), RATE)
    for t in weights:
        t.requires_grad_(False)
    return g
