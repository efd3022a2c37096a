"""SeqMIA's attack net: an LSTM with attention over its own states, and its training loop."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

HIDDEN, BATCH = 50, 100


class SequenceNet(nn.Module):
    """LSTM -> attention of the last state over all states -> Linear on [last state, context].

    [n, T, 5] -> [n, 2]. Source: Li et al. (CCS 2024), attack model. The weights are drawn from ``generator``
    by PyTorch's usual rule (uniform, one over the root of the width), not from the global one.
    """

    def __init__(self, inputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("std", torch.ones(inputs))
        # made on the meta device: the layers' own initialisers would draw from the global generator
        self.lstm = nn.LSTM(inputs, HIDDEN, batch_first=True, device="meta").to_empty(device="cpu")
        self.head = nn.Linear(2 * HIDDEN, 2, device="meta").to_empty(device="cpu")
        for layer, width in ((self.lstm, HIDDEN), (self.head, 2 * HIDDEN)):
            for p in layer.parameters():
                nn.init.uniform_(p, -(width**-0.5), width**-0.5, generator=generator)

    def standardise_by(self, x: torch.Tensor) -> None:
        """Take each signal's mean and deviation over the samples and rounds of ``x`` [n, T, 5]."""
        self.mean = x.mean((0, 1))
        self.std = x.std((0, 1), correction=0).clamp_min(1e-12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, _ = self.lstm((x - self.mean) / self.std)  # [n, T, hidden]
        last = h[:, -1]
        weight = (h @ last.unsqueeze(2)).softmax(1)  # [n, T, 1]
        return self.head(torch.cat([last, (weight * h).sum(1)], dim=1))


def train(x: torch.Tensor, y: torch.Tensor, epochs: int, standardise: bool, generator: torch.Generator) -> SequenceNet:
    """A net fitted to ``x`` [n, T, 5], ``y`` [n] 0 or 1, on the CPU.

    Adam, rate 0.01 times 0.9 every 10 epochs down to 5e-4, weight decay 1e-4, batches of 100.
    """
    net = SequenceNet(x.shape[2], generator)
    if standardise:
        net.standardise_by(x)
    adam = Adam(list(net.parameters()), weight_decay=1e-4)
    for epoch in range(epochs):
        rate = max(0.01 * 0.9 ** (epoch // 10), 5e-4)
        for batch in torch.randperm(len(x), generator=generator).split(BATCH):
            adam.step(cross_entropy(net(x[batch]), y[batch]), rate)
    return net.eval()


class Adam:
    """Adam with weight decay in the gradient; as ``torch.optim.Adam``, whose first use costs seconds of imports.

    Source: Kingma & Ba, ICLR 2015, algorithm 1.
    """

    def __init__(self, params: list[nn.Parameter], weight_decay: float) -> None:
        self._params, self._weight_decay, self._steps = params, weight_decay, 0
        self._moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in params]

    def step(self, loss: torch.Tensor, rate: float, beta1: float = 0.9, beta2: float = 0.999) -> None:
        """One step down the gradient of ``loss``."""
        self._steps += 1
        scale1, scale2 = 1 - beta1**self._steps, 1 - beta2**self._steps
        grads = torch.autograd.grad(loss, self._params)
        with torch.no_grad():
            for p, g, (m, v) in zip(self._params, grads, self._moments, strict=True):
                g = g + self._weight_decay * p
                m.lerp_(g, 1 - beta1)
                v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
                p.addcdiv_(m, (v / scale2).sqrt_().add_(1e-8), value=-rate / scale1)
