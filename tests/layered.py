"""Small models of the layers that gradients are taken through layer by layer, and models that must not fool that way."""

from __future__ import annotations

import torch
from torch import nn

CLASSES = 3


def filled(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in float64 with drawn parameters and running statistics, so that no affine part is trivial."""
    g = torch.Generator().manual_seed(seed)
    model.double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=g, dtype=p.dtype))
        for name, b in model.named_buffers():
            if b.is_floating_point():
                b.copy_((1 if "var" in name else 0) + 0.5 * torch.rand(b.shape, generator=g, dtype=b.dtype))
    return model


def randn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(n: int) -> torch.Tensor:
    return torch.arange(n) % CLASSES


def size_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


class Flat(nn.Module):
    """Anything in front of an average over positions, if there are any, and a linear head; features are the second axis
    (``mean``) or the last one."""

    def __init__(self, body: nn.Module, width: int, mean: bool = True):
        super().__init__()
        self.body, self.head, self.mean = body, nn.Linear(width, CLASSES), mean

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.head(h.reshape(*h.shape[:2], -1).mean(2) if self.mean else h.reshape(len(h), -1, h.shape[-1]).mean(1))


class Block(nn.Module):
    """A residual block with GroupNorm, in-place activations and an in-place sum."""

    def __init__(self, width: int, out: int, stride: int):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.GroupNorm(2, out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.GroupNorm(2, out)
        self.short, self.relu = nn.Conv2d(width, out, 1, stride), nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.relu(self.norm1(self.conv1(x)))
        h = self.norm2(self.conv2(h))
        h += self.short(x)
        return self.relu(h)


def cnn() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.ReLU(inplace=True), Block(4, 4, 1), Block(4, 8, 2))
    return filled(nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)))


class TextNet(nn.Module):
    """Tokens, a transformer-like row-wise MLP with LayerNorm, an average."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 6, padding_idx=0), nn.LayerNorm(6)
        self.up, self.down, self.head = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, CLASSES)
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.5)

    def forward(self, x):
        h = self.embed(x)
        h = h + self.down(self.relu(self.up(self.norm(h))))
        return self.head(self.drop(h).mean(1))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.head(torch.tanh(self.two(torch.tanh(self.one(x)))))


class Borrowed(Twice):
    """Calls the layer once and uses its weight a second time behind the layer's back."""

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x)) @ self.inner.weight)


class Loose(Twice):
    """A parameter outside any layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x)) * self.scale)


class Scaled(nn.Linear):
    """A subclass that computes something else."""

    def forward(self, x):
        return 3 * super().forward(x)


class Regrouped(Twice):
    """Moves positions to the sample axis."""

    def forward(self, x):
        return self.head(torch.tanh(self.inner(x.reshape(-1, 4))).reshape(len(x), -1, 4).sum(1))


class Overwritten(Twice):
    """Overwrites a part of a layer's output."""

    def forward(self, x):
        h = self.inner(x)
        h[:, :2].mul_(2)
        return self.head(torch.tanh(h))


class Unused(Twice):
    """A trainable layer that the loss does not depend on has a zero gradient."""

    def forward(self, x):
        self.inner(x)
        return self.head(x)


class ViewLinear(nn.Linear):
    """Returns a view: overwriting it replaces its place in the graph, and the hook there is never called."""

    def forward(self, x):
        return super().forward(x)[:]


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, CLASSES))
    model[0].register_forward_hook(lambda layer, args, out: out * 2)
    return model
