"""Divide the training samples among the clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedbench.core.contract.errors import UserError
from fedbench.core.rng import numpy_rng

Shards = list[np.ndarray]


def iid(y: np.ndarray, clients: int, rng: np.random.Generator) -> Shards:
    """Equal shares of a random permutation (sizes differ by at most one)."""
    return [np.sort(part) for part in np.array_split(rng.permutation(len(y)), clients)]


def dirichlet(y: np.ndarray, clients: int, rng: np.random.Generator, beta: float) -> Shards:
    """For each class, client shares drawn from Dirichlet(beta * 1_K); beta = inf is an equal split of every class.

    Source: Hsu et al., 2019, as FedMIA and CoFedMID use it. Cut points are rounded, so no remainder piles up on a client.
    """
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for c in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == c))
        share = np.full(clients, 1 / clients) if np.isinf(beta) else rng.dirichlet(np.full(clients, beta))
        cuts = np.round(np.cumsum(share)[:-1] * len(members)).astype(int)
        for k, part in enumerate(np.split(members, cuts)):
            parts[k].append(part)
    return [np.sort(np.concatenate(p)) for p in parts]


_RULES: dict[str, Callable[..., Shards]] = {"iid": iid, "dirichlet": dirichlet}


def partition(
    y: np.ndarray, clients: int, seed: int, name: str = "iid", beta: float = 1.0, min_samples: int = 1
) -> Shards:
    """Sorted sample positions of each client; disjoint, together all of ``y``.

    Raises ``UserError`` when there are fewer samples than clients or a client ends below ``min_samples``.
    """
    if len(y) < clients:
        raise UserError(f"{len(y)} training samples for {clients} clients: use fewer clients or more data")
    rng = numpy_rng(seed, f"partition:{name}")
    shards = _RULES[name](y, clients, rng, **({"beta": beta} if name == "dirichlet" else {}))
    short = [(k, len(s)) for k, s in enumerate(shards) if len(s) < min_samples]
    if short:
        k, n = short[0]
        raise UserError(
            f"the {name} partition leaves client {k} with {n} samples (at least {min_samples} wanted; "
            f"{len(short)} of {clients} clients are short, seed {seed}): use a larger beta, fewer clients or more data"
        )
    return shards
