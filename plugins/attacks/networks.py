"""Small networks of attacks: Adam, and a network of one hidden layer with its training."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

HIDDEN, BATCH, RATE = 64, 128, 1e-3


class Adam:
    """Adam with weight decay in the gradient; as ``torch.optim.Adam``, of which the first use costs seconds of imports.

    Source: Kingma & Ba, ICLR 2015, algorithm 1.
    """

    def __init__(self, params: list[nn.Parameter], weight_decay: float = 0.0) -> None:
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


class HiddenLayerNet(nn.Module):
    """Linear(inputs, 64) -> ReLU -> Linear(64, 1); [n, inputs] -> [n], the value before the sigmoid.

    The weights are drawn from ``generator`` by PyTorch's usual rule (uniform, one over the root of the inputs).
    ``mean``, ``std``: [inputs], which inputs are shifted and divided by.
    """

    def __init__(self, inputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.mean, self.std = torch.zeros(inputs), torch.ones(inputs)
        # made on the meta device: the layers' own initialisers would draw from the global generator
        self.hidden = nn.Linear(inputs, HIDDEN, device="meta").to_empty(device="cpu")
        self.out = nn.Linear(HIDDEN, 1, device="meta").to_empty(device="cpu")
        for layer in (self.hidden, self.out):
            for p in layer.parameters():
                nn.init.uniform_(p, -(layer.in_features**-0.5), layer.in_features**-0.5, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.hidden((x - self.mean) / self.std).relu()).squeeze(1)

    def logits(self, x: torch.Tensor) -> np.ndarray:
        """[n] float64 for ``x`` [n, inputs]."""
        with torch.no_grad():
            return self(x).double().numpy()


def trained_net(
    x: torch.Tensor, member: torch.Tensor, epochs: int, generator: torch.Generator, weight_decay: float = 0.0,
    standardise: bool = False,
) -> HiddenLayerNet:  # fmt: skip
    """A net fitted to ``x`` [n, inputs] float32 and ``member`` [n] bool: Adam, rate 1e-3, batches of 128, cross-entropy."""
    net, y = HiddenLayerNet(x.shape[1], generator), member.float()
    if standardise:
        net.mean, net.std = x.mean(0), x.std(0, correction=0).clamp_min(1e-12)
    adam = Adam(list(net.parameters()), weight_decay)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH):
            adam.step(binary_cross_entropy_with_logits(net(x[batch]), y[batch]), RATE)
    return net
