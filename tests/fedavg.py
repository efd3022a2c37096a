"""FedAvg in plain torch, one client after the other: the slow reference of the round loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy

import torch
from parties import generator
from torch import nn
from torch.nn.functional import cross_entropy

from fedbench.core.federation.optimizer import lr_at
from fedbench.core.federation.setup import Setup
from fedbench.core.numerics.rng import key_for

State = dict[str, torch.Tensor]


def mean_of(states: list[State], sizes: list[int]) -> State:
    """The states weighed by ``sizes``, integers rounded; what all agree on as it is."""
    mean, shares = {}, torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    for name, first in states[0].items():
        stacked = torch.stack([state[name] for state in states])
        mean[name] = torch.einsum("k,k...->...", shares, stacked.double())
        if not first.is_floating_point():
            mean[name] = mean[name].round().to(first.dtype)
        if (stacked == first).all():
            mean[name] = first
    return mean


def optimizer_of(rule, module: nn.Module) -> torch.optim.Optimizer:
    """torch's optimiser of a federation's rule."""
    fields = {"weight_decay": rule.weight_decay}
    if rule.name == "adam":
        return torch.optim.Adam(module.parameters(), betas=rule.betas or (0.9, 0.999), **fields)
    return torch.optim.SGD(module.parameters(), momentum=rule.momentum, **fields)


def slow_fedavg(
    setup: Setup, sent: list[tuple[int, ...]], make: Callable[[], nn.Module]
) -> Iterator[list[State]]:
    """Train the clients of each round in ``sent`` with modules of ``make`` and torch's optimisers.

    Yields the states of the clients and, last, their mean.
    """
    c, rule, module, kept = setup.config, setup.config.optimizer, make(), {}
    for t, cohort in enumerate(sent, 1):
        ends, weights = [], []
        for k in cohort:
            data = setup.clients[k]
            if k not in kept or not rule.keep_state:
                local = make()
                kept[k] = local, optimizer_of(rule, local)
            local, optimizer = kept[k]
            local.load_state_dict(module.state_dict())
            optimizer.param_groups[0]["lr"] = lr_at(c, t)
            torch.manual_seed(key_for(setup.seed, "module", t, k) >> 1)
            shuffle = generator(key_for(setup.seed, "shuffle", t, k) >> 1)
            targets = data.y if data.soft is None else data.soft
            for _ in range(c.local_epochs):
                order = data.trainable[torch.randperm(len(data.trainable), generator=shuffle)]
                for pick in order.split(c.batch_size)[: c.local_batches]:
                    for p in local.parameters():
                        # torch's optimisers pass over a parameter without one
                        p.grad = torch.zeros_like(p)
                    cross_entropy(local(data.x[pick]), targets[pick]).backward()
                    optimizer.step()
            ends.append(deepcopy(local.state_dict()))
            weights.append(1 if c.weights == "equal" else len(data.trainable))
        ends.append(mean_of(ends, weights))
        module.load_state_dict(ends[-1])
        yield ends
