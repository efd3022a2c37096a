"""How SeqMIA's attack net learns."""

from __future__ import annotations

import numpy as np
import torch

from fedbench.plugins.attacks.seqmia_net import Room, SequenceNet

BATCH, WEIGHT_DECAY = 100, 1e-4


def train(x: np.ndarray, y: np.ndarray, epochs: int, standardise: bool, generator: torch.Generator) -> SequenceNet:
    """A net fitted to ``x`` [n, T, 5], ``y`` [n] bool.

    Adam, rate 0.01 times 0.9 every 10 epochs down to 5e-4, weight decay 1e-4, batches of 100.
    """
    net = SequenceNet(x.shape[2], generator, x.dtype)
    if standardise:
        net.standardise_by(x)
    read, adam, gradient, rooms = net.read(x), Adam(net.flat, WEIGHT_DECAY), np.empty_like(net.flat), {}
    for epoch in range(epochs):
        rate = max(0.01 * 0.9 ** (epoch // 10), 5e-4)
        order = torch.randperm(len(x), generator=generator).numpy()
        shuffled, labels = read[:, :, order], y[order]
        for start in range(0, len(x), BATCH):
            batch, member = shuffled[:, :, start : start + BATCH], labels[start : start + BATCH]
            n = len(member)
            if n not in rooms:
                rooms[n] = Room(net, len(read), n)
            net.gradient(rooms[n], wrong_by(net.forward(rooms[n], batch), member), gradient)
            adam.step(gradient, rate)
    return net


def wrong_by(logits: np.ndarray, member: np.ndarray) -> np.ndarray:
    """[2, n]: the derivative of the mean cross-entropy by ``logits`` [2, n]; ``member`` [n] 0 or 1."""
    says = 0.5 + 0.5 * np.tanh(0.5 * (logits[1] - logits[0]))
    by = (says - member) / np.asarray(len(member), logits.dtype)
    return np.stack([-by, by]).astype(logits.dtype, copy=False)


class Adam:
    """Adam with weight decay in the gradient, on one vector. Source: Kingma & Ba, ICLR 2015, algorithm 1."""

    def __init__(self, flat: np.ndarray, weight_decay: float) -> None:
        self._flat, self._weight_decay, self._steps = flat, weight_decay, 0
        self._m, self._v, self._room = np.zeros_like(flat), np.zeros_like(flat), np.empty_like(flat)

    def step(self, g: np.ndarray, rate: float, beta1: float = 0.9, beta2: float = 0.999) -> None:
        """One step down ``g`` [P], which is used up."""
        self._steps += 1
        room, m, v = self._room, self._m, self._v
        g += np.multiply(self._flat, self._weight_decay, out=room)
        m *= beta1
        m += np.multiply(g, 1 - beta1, out=room)
        v *= beta2
        g *= g
        g *= 1 - beta2
        v += g
        np.sqrt(np.divide(v, 1 - beta2**self._steps, out=room), out=room)
        room += 1e-8
        np.divide(m, room, out=room)
        room *= rate / (1 - beta1**self._steps)
        self._flat -= room
