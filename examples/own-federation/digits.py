"""Six sites with 40 to 300 handwritten digits each, a small network, and one site's training."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

SIZES = {
    "hospital-a": 40,
    "hospital-b": 60,
    "clinic-c": 100,
    "clinic-d": 150,
    "lab-e": 250,
    "lab-f": 300,
}
NAMES = list(SIZES)
_HOLDOUT = 500


class Net(nn.Sequential):
    """The network that all sites train: `model: digits:Net` of `federation.yaml`."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def sites():
    """Return the samples and labels of each site, by name, and those that no site trains on.

    Three labels in ten are drawn anew, so that there is something to memorise.
    """
    images, y = load_digits(return_X_y=True)
    x = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    random = np.random.default_rng(1)
    order = random.permutation(len(x))
    x, y = x[order], y[order]
    noisy = random.random(len(y)) < 0.3
    y[noisy] = random.integers(0, 10, noisy.sum())
    data, start = {}, 0
    for name, size in SIZES.items():
        data[name] = x[start : start + size], y[start : start + size]
        start += size
    return data, (x[start : start + _HOLDOUT], y[start : start + _HOLDOUT])


def train(state, x, y, seed):
    """Return the state of the network after two epochs on one site's samples."""
    torch.manual_seed(seed)
    model = Net()
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    samples, labels = torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(2):
        for batch in torch.randperm(len(labels)).split(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(samples[batch]), labels[batch]).backward()
            optimizer.step()
    return model.state_dict()
