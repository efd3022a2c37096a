"""Federations as a user trains them, in plain torch, and as files for `fedbench audit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from fedbench.core.recording import Recorder, describe, save_holdout, save_samples

EQUAL = (150,) * 6
UNEQUAL = (40, 60, 100, 150, 250, 300)
State = dict[str, torch.Tensor]


def digits_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def frozen_net() -> nn.Module:
    net = small_net()
    net[0].requires_grad_(False)
    return net


def not_a_module() -> int:
    return 7


class DigitsFederation:
    """FedAvg of six sites on digits, 30 % of the labels drawn anew; 15 rounds of two epochs."""

    def __init__(self, sizes: tuple[int, ...] = EQUAL) -> None:
        torch.manual_seed(1)
        images, y = load_digits(return_X_y=True)
        x = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
        rng = np.random.default_rng(1)
        order = rng.permutation(len(x))
        x, y = x[order], y[order].astype(np.int64)
        noisy = rng.random(len(y)) < 0.3
        y[noisy] = rng.integers(0, 10, noisy.sum())
        ends = np.cumsum([0, *sizes])
        self.sites = {f"site-{k}": (x[a:b], y[a:b]) for k, (a, b) in enumerate(pairwise(ends))}
        self.holdout = x[900:1400], y[900:1400]
        self.test = x[1400:], y[1400:]
        self.model = digits_net().state_dict()

    def rounds(self) -> Iterator[tuple[State, dict[str, tuple[State, int]]]]:
        """(what was sent, what came back with its weight) of each round, then the final model."""
        for _ in range(15):
            uploads = {
                name: (self.local(*map(torch.from_numpy, site)), len(site[1]))
                for name, site in self.sites.items()
            }
            yield self.model, uploads
            total = sum(weight for _, weight in uploads.values())
            self.model = {
                a: sum(state[a] * (weight / total) for state, weight in uploads.values())
                for a in self.model
            }
        yield self.model, {}

    def local(self, x: torch.Tensor, y: torch.Tensor) -> State:
        net = digits_net()
        net.load_state_dict(self.model)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            for batch in torch.randperm(len(y)).split(20):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
                optimizer.step()
        return net.state_dict()


def write(
    folder: Path,
    sites: dict[str, Any],
    holdouts: dict[str | None, Any],
    rounds: Iterator[Any],
    changed: Callable[[State, State], State] = lambda received, state: state,
    **described: Any,
) -> Path:
    """A recording; ``changed`` makes of (received, uploaded) what the file of a client holds."""
    recorder = Recorder(folder)
    for received, uploads in rounds:
        if not uploads:
            recorder.final(received)
            break
        with recorder.round(received) as upload:
            for name, (state, weight) in uploads.items():
                upload(name, changed(received, state), weight, described.get("uploads", "model"))
    for name, (x, y) in sites.items():
        save_samples(folder, name, x, y)
    for site, (x, y) in holdouts.items():
        save_holdout(folder, x, y, client=site)
    describe(folder, **described)
    return folder


def small(folder: Path, n: int = 3, **changes: Any) -> Path:
    """Three sites of a dozen samples; clients move the model at random, in milliseconds."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    def samples() -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(size=(12, 4)).astype(np.float32), rng.integers(0, 3, 12)

    def moved(state: State) -> State:
        return {
            a: v + torch.rand_like(v) if v.is_floating_point() else v + 3 for a, v in state.items()
        }

    def rounds() -> Iterator[Any]:
        model = small_net().state_dict()
        for _ in range(n):
            uploads = {name: (moved(model), k + 1.0) for k, name in enumerate("abc")}
            yield model, uploads
            model = {
                a: (sum(s[a] * w for s, w in uploads.values()) / 6).to(v.dtype)
                for a, v in model.items()
            }
        yield model, {}

    fields = {"model": "federations:small_net", "classes": 3} | changes
    return write(folder, {c: samples() for c in "abc"}, {None: samples()}, rounds(), **fields)
