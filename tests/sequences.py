"""Models of sequences [n, T, d] or [n, T] tokens, right and wrong ones, and the slow gradients they are compared with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

WIDTH, HIDDEN, CLASSES, VOCABULARY, LONGEST = 4, 6, 3, 9, 16


def one_backward_a_sample(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """[n, P]: the definition, in the model's mode."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(len(x)):
        loss = cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        pairs = zip(parameters, grads, strict=True)
        rows.append(torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs]))
    return torch.stack(rows)


class Recurrent(nn.Module):
    """Any of torch's recurrent layers; with ``first`` False it is called sequence-first, the axes turned around it."""

    def __init__(self, kind: type[nn.RNNBase], first: bool = True, **options):
        super().__init__()
        self.layer, self.first = kind(WIDTH, HIDDEN, batch_first=first, **options), first
        width = (options.get("proj_size") or HIDDEN) * (2 if options.get("bidirectional") else 1)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        if self.first:
            return self.head(self.layer(x)[0][:, -1])
        return self.head(self.layer(x.transpose(0, 1))[0][-1])


class Steps(nn.Module):
    """Known layers on [T, n, d]."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.head = nn.Linear(WIDTH, HIDDEN), nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.up(x.transpose(0, 1)))).mean(0))


class LastStep(Steps):
    """The same, but one step alone reaches the logits."""

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.up(x.transpose(0, 1))))[-1])


class Rows(Steps):
    """The same on [n, T, d]: here the layer-wise way is right."""

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.up(x))).mean(1))


class Backwards(Steps):
    """Turns the samples round, and back at the end."""

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.up(x.flip(0)))).mean(1).flip(0))


class Halves(Steps):
    """Takes every other sample first: two, or an even number, stay a permutation that a smaller probe would not notice."""

    def forward(self, x):
        h = self.head(torch.tanh(self.norm(self.up(torch.cat([x[::2], x[1::2]])))).mean(1))
        n = (len(x) + 1) // 2
        first, second = h[:n], h[n:]
        rows = [part[i // 2] for i in range(len(x)) for part in ([first] if i % 2 == 0 else [second])]
        return torch.stack(rows)


class Sorted(Steps):
    """In the order of the samples' first value, as packed sequences are in that of their length; and back at the end."""

    def forward(self, x):
        order = x[:, 0, 0].argsort(stable=True)
        return self.head(torch.tanh(self.norm(self.up(x[order]))).mean(1))[order.argsort()]


class Attention(nn.Module):
    def __init__(self, first: bool):
        super().__init__()
        self.layer, self.first = nn.MultiheadAttention(WIDTH, 2, batch_first=first), first
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        if self.first:
            return self.head(self.layer(x, x, x)[0].mean(1))
        x = x.transpose(0, 1)
        return self.head(self.layer(x, x, x)[0].mean(0))


class Encoder(nn.Module):
    def __init__(self, first: bool):
        super().__init__()
        self.layer, self.first = nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=first), first
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.layer(x).mean(1) if self.first else self.layer(x.transpose(0, 1)).mean(0))


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Conv1d(WIDTH, HIDDEN, 2, padding=1), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x.mT)).mean(2))


class Tied(nn.Module):
    """One weight in two layers, and one layer for every step."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.two.weight = self.one.weight

    def forward(self, x):
        h = x.new_zeros(len(x), WIDTH)
        for t in range(x.shape[1]):
            h = torch.tanh(self.one(h) + self.two(x[:, t]))
        return self.head(h)


class Normal(nn.Module):
    """BatchNorm over the steps."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.head = nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.up(x).mT)).mean(2))


class Undecided(nn.Module):
    """What is computed depends on the values: no `vmap` goes through it."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        layers = [self.one if float(sample.sum()) > 0 else self.two for sample in x]
        return self.head(torch.stack([torch.tanh(layer(sample)).mean(0) for layer, sample in zip(layers, x, strict=True)]))


class Text(nn.Module):
    """Tokens through an embedding and a recurrent layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.layer = nn.Embedding(VOCABULARY, WIDTH, padding_idx=0), nn.GRU(WIDTH, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        return self.head(self.layer(self.embed(x))[1][-1])


class Placed(nn.Module):
    """Tokens with an embedding of their places, which has T rows, and no sample's."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(torch.tanh(self.embed(x) + self.place(torch.arange(x.shape[1]))).mean(1))


RIGHT: dict[str, Callable[[], nn.Module]] = {
    "rnn": lambda: Recurrent(nn.RNN),
    "gru": lambda: Recurrent(nn.GRU),
    "lstm": lambda: Recurrent(nn.LSTM),
    "lstm-projected": lambda: Recurrent(nn.LSTM, proj_size=3),
    "lstm-deep": lambda: Recurrent(nn.LSTM, num_layers=2),
    "gru-both-ways": lambda: Recurrent(nn.GRU, bidirectional=True),
    "rnn-sequence-first": lambda: Recurrent(nn.RNN, first=False),
    "gru-sequence-first": lambda: Recurrent(nn.GRU, first=False),
    "lstm-projected-sequence-first": lambda: Recurrent(nn.LSTM, first=False, proj_size=3, bidirectional=True),
    "steps": Steps, "last-step": LastStep, "rows": Rows, "backwards": Backwards, "halves": Halves, "sorted": Sorted,
    "attention": lambda: Attention(True), "attention-sequence-first": lambda: Attention(False),
    "encoder": lambda: Encoder(True), "encoder-sequence-first": lambda: Encoder(False),
    "convolved": Convolved, "tied": Tied, "normal": Normal, "undecided": Undecided, "text": Text, "placed": Placed,
}  # fmt: skip
TOKENS = {"text", "placed"}
AT_ONCE = {"rows", "normal"}  # the layer-wise way serves these, and no other
ONE_BY_ONE = {name for name in RIGHT if name.startswith(("rnn", "gru", "lstm"))} | {"undecided", "text"}


def made(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """In eval mode with drawn parameters and running statistics."""
    generator = torch.Generator().manual_seed(0)
    model = RIGHT[name]().to(dtype).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.5 * torch.randn(p.shape, generator=generator))
        for key, b in model.named_buffers():
            if b.is_floating_point():
                b.copy_(("var" in key) + 0.5 * torch.rand(b.shape, generator=generator))
    return model


def samples(name: str, n: int, steps: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """(x, y) of ``n`` sequences of ``steps`` that the model takes."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (n, steps), generator=generator)
    x = tokens if name in TOKENS else torch.randn(n, steps, WIDTH, generator=generator, dtype=dtype)
    return x, torch.arange(n) % CLASSES
