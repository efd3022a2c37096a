"""How SeqMIA's attack net learns."""

from __future__ import annotations

import numpy as np
import torch

from fedbench.plugins.attacks.flat_adam import FlatAdam
from fedbench.plugins.attacks.seqmia_net import Room, SequenceNet

BATCH, WEIGHT_DECAY = 100, 1e-4


def train(x: np.ndarray, y: np.ndarray, epochs: int, standardise: bool, generator: torch.Generator) -> SequenceNet:
    """A net fitted to ``x`` [n, T, 5], ``y`` [n] bool.

    Adam, rate 0.01 times 0.9 every 10 epochs down to 5e-4, weight decay 1e-4, batches of 100.
    """
    net = SequenceNet(x.shape[2], generator, x.dtype)
    if standardise:
        net.standardise_by(x)
    read, adam, gradient, rooms = net.read(x), FlatAdam(net.flat, WEIGHT_DECAY), np.empty_like(net.flat), {}
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
