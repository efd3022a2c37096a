"""Small networks for tests of gradients, and the slow gradients that others are compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core.models.sequential import SmallCNN

WIDTH, HIDDEN, CLASSES = 4, 6, 3
Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def one_backward_a_sample(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """[n, P]: the definition of per-sample gradients, in the model's mode."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for sample, label in zip(x.split(1), y.split(1), strict=True):
        grads = torch.autograd.grad(
            cross_entropy(model(sample), label), parameters, allow_unused=True
        )
        pairs = zip(parameters, grads, strict=True)
        rows.append(
            torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])
        )
    return torch.stack(rows)


def filled(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in float64 with drawn parameters and running statistics, so that no affine part is
    trivial.
    """
    g = torch.Generator().manual_seed(seed)
    model.double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=g, dtype=p.dtype))
        for name, b in model.named_buffers():
            if b.is_floating_point():
                b.copy_(
                    (1 if "var" in name else 0)
                    + 0.5 * torch.rand(b.shape, generator=g, dtype=b.dtype)
                )
    return model


def randn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(n: int) -> torch.Tensor:
    return torch.arange(n) % CLASSES


def size_of(model: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


class Flat(nn.Module):
    """A layer, an activation, an average over positions and a linear head; features are the second
    axis or the last one.
    """

    def __init__(self, body: nn.Module, activation: nn.Module, second: bool):
        super().__init__()
        self.body, self.activation, self.head, self.second = (
            body,
            activation,
            nn.Linear(WIDTH, CLASSES),
            second,
        )

    def forward(self, x):
        h = self.activation(self.body(x))
        return self.head(
            h.reshape(*h.shape[:2], -1).mean(2)
            if self.second
            else h.reshape(len(h), -1, h.shape[-1]).mean(1)
        )


def cnn() -> nn.Module:
    """A chain of convolutions, group norms and linear layers on [3, 8, 8]."""
    return filled(SmallCNN(channels=4, hidden=8).build((3, 8, 8), CLASSES))


# -- networks for which the layer-wise formulas would be wrong -------------------------------------


class Pair(nn.Module):
    """Two linear layers and a forward pass through them."""

    def __init__(self, forward: Forward):
        super().__init__()
        self.inner, self.head, self.run = nn.Linear(4, 4), nn.Linear(4, CLASSES), forward

    def forward(self, x):
        return self.run(self, x)


class Scaled(nn.Linear):
    """A subclass of a known layer that computes something else."""

    def forward(self, x):
        return 3 * super().forward(x)


def twice(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net.head(torch.tanh(net.inner(torch.tanh(net.inner(x)))))


def overwritten(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    h = net.inner(x)
    h[:, :2].mul_(2)
    return net.head(torch.tanh(h))


def tied() -> nn.Module:
    model = nn.Sequential(
        nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES)
    )
    model[2].weight = model[0].weight
    return model


def tied_and_unused() -> nn.Module:
    """As many parameters as layers have: two layers share one, and another is in no layer."""
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, CLASSES)
    )
    model[3].weight = model[1].weight
    model.extra = nn.Parameter(torch.zeros(4, 4))
    return model


def loose() -> nn.Module:
    """A parameter outside any layer."""
    model = Pair(lambda net, x: net.head(torch.tanh(net.inner(x)) * net.scale))
    model.scale = nn.Parameter(torch.ones(4))
    return model


def regrouped() -> nn.Module:
    """Moves positions to the first axis, and back."""
    model = Pair(
        lambda net, x: net.head(
            torch.tanh(net.inner(x.reshape(-1, 2))).reshape(len(x), 2, 4).sum(1)
        )
    )
    model.inner = nn.Linear(2, 4)
    return model


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, CLASSES))
    model[0].register_forward_hook(lambda layer, args, out: out * 2)
    return model


AWKWARD: dict[str, Callable[[], nn.Module]] = {
    "called-twice": lambda: Pair(twice),
    "tied": tied,
    "loose-parameter": loose,
    "subclass": lambda: nn.Sequential(Scaled(4, 4), nn.Tanh(), nn.Linear(4, CLASSES)),
    "foreign-hook": hooked,
    "weight-norm": lambda: nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, CLASSES)
    ),
    "samples-off-the-first-axis": regrouped,
    "overwritten": lambda: Pair(overwritten),
    "unused-layer": lambda: Pair(lambda net, x: (net.inner(x), net.head(x))[1]),
}


# -- models of sequences [n, T,
# WIDTH]-------------------------------------------------------------------------


class Steps(nn.Module):
    """Known layers on sequences and a forward pass through them."""

    def __init__(self, forward: Forward):
        super().__init__()
        self.up, self.norm, self.head = (
            nn.Linear(WIDTH, HIDDEN),
            nn.LayerNorm(HIDDEN),
            nn.Linear(HIDDEN, CLASSES),
        )
        self.run = forward

    def body(self, x):
        return torch.tanh(self.norm(self.up(x)))

    def forward(self, x):
        return self.run(self, x)


def rows(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """On [n, T, d], where the layer-wise formulas are right."""
    return net.head(net.body(x).mean(1))


def halves(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Every other sample first, and back at the end: two, or an even number, are a permutation that
    a small probe misses.
    """
    h, n = rows(net, torch.cat([x[::2], x[1::2]])), (len(x) + 1) // 2
    return torch.stack([(h[:n] if i % 2 == 0 else h[n:])[i // 2] for i in range(len(x))])


def in_order(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """In the order of the samples' first values, as packed sequences are in that of their lengths;
    and back at the end.
    """
    order = x[:, 0, 0].argsort(stable=True)
    return rows(net, x[order])[order.argsort()]


class Recurrent(nn.Module):
    """A recurrent layer; with ``first`` False it is called sequence-first, the axes turned around
    it.
    """

    def __init__(self, kind: type[nn.RNNBase], first: bool = True, **options):
        super().__init__()
        self.layer, self.first = kind(WIDTH, HIDDEN, batch_first=first, **options), first
        width = (options.get("proj_size") or HIDDEN) * (2 if options.get("bidirectional") else 1)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(
            self.layer(x)[0][:, -1] if self.first else self.layer(x.transpose(0, 1))[0][-1]
        )


SEQUENCES: dict[str, Callable[[], nn.Module]] = {
    "gru": lambda: Recurrent(nn.GRU),
    "lstm-sequence-first": lambda: Recurrent(nn.LSTM, first=False, proj_size=3, bidirectional=True),
    "rows": lambda: Steps(rows),
    "steps-first": lambda: Steps(lambda net, x: net.head(net.body(x.transpose(0, 1)).mean(0))),
    "last-step": lambda: Steps(lambda net, x: net.head(net.body(x.transpose(0, 1)))[-1]),
    "backwards": lambda: Steps(lambda net, x: rows(net, x.flip(0)).flip(0)),
    "halves": lambda: Steps(halves),
    "in-order": lambda: Steps(in_order),
}


def samples(n: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(x, y): ``n`` sequences of ``steps``."""
    return randn(n, steps, WIDTH), labels(n)
