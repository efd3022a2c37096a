"""Divide the training samples among the clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedbench.core.contract.errors import UserError
from fedbench.core.numerics.rng import numpy_rng

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


def dirichlet_sizes(y: np.ndarray, clients: int, rng: np.random.Generator, beta: float) -> Shards:
    """One draw from Dirichlet(beta * 1_K) gives the clients' SIZES; who gets which sample is random, so labels stay IID.

    Source: MemberShield's released code, whose "Dirichlet non-IID" this is (docs/methods/quirks.md#m2).
    """
    share = np.full(clients, 1 / clients) if np.isinf(beta) else rng.dirichlet(np.full(clients, beta))
    cuts = np.round(np.cumsum(share)[:-1] * len(y)).astype(int)
    return [np.sort(part) for part in np.split(rng.permutation(len(y)), cuts)]


def group_bias(y: np.ndarray, clients: int, rng: np.random.Generator, bias: float) -> Shards:
    """Label skew by groups of clients: a sample goes to its label's group with probability ``bias`` (q), to each other
    group with (1 - q) / (G - 1); a group's clients get equal random shares of it.

    Source: Fang et al., USENIX Security 2020, section 4.1; FedPoisonMIA, section 6.1.6. There the L classes make L groups.
    With fewer clients than classes some groups would have no client and their samples no home, so there are
    G = min(clients, L) groups: label y belongs to group y mod G, client k to group k mod G. For L <= clients that is the
    papers' rule; with 10 clients and 100 classes, each client is a group that prefers 10 classes. bias = 1/G is uniform;
    1 sends each class to one group only. Groups with one client fewer than others make larger shards.
    """
    label = np.unique(y, return_inverse=True)[1]
    groups = min(clients, int(label.max()) + 1)
    own = label % groups
    elsewhere = (own + rng.integers(1, max(groups, 2), len(y))) % groups
    group = np.where(rng.random(len(y)) < bias, own, elsewhere)
    shards: Shards = [np.zeros(0, np.int64)] * clients
    for g in range(groups):
        serving = range(g, clients, groups)
        members = rng.permutation(np.flatnonzero(group == g))
        for k, part in zip(serving, np.array_split(members, len(serving)), strict=True):
            shards[k] = np.sort(part)
    return shards


_RULES: dict[str, Callable[..., Shards]] = {
    "iid": iid, "dirichlet": dirichlet, "dirichlet-sizes": dirichlet_sizes, "group-bias": group_bias,
}  # fmt: skip
_REMEDY = {"dirichlet": "a larger beta, ", "dirichlet-sizes": "a larger beta, ", "group-bias": "a smaller bias, "}


def remedy_of(name: str) -> str:
    """What to change in the rule ``name`` when a client has too few samples, with a comma behind; nothing for equal shares."""
    return _REMEDY.get(name, "")


def partition(
    y: np.ndarray, clients: int, seed: int, name: str = "iid", beta: float = 1.0, min_samples: int = 1, bias: float = 0.5
) -> Shards:
    """Sorted sample positions of each client; disjoint, together all of ``y``.

    ``beta`` is the concentration of dirichlet and dirichlet-sizes, ``bias`` (0..1) group-bias's probability of a label's own
    group. Raises ``UserError`` when there are fewer samples than clients, the bias is no probability, or a client ends below
    ``min_samples``, all its parts together.
    """
    if not 0 <= bias <= 1:
        raise UserError(f"partition.bias is a probability, 0..1, not {bias}")
    if len(y) < clients:
        raise UserError(f"{len(y)} training samples for {clients} clients: use fewer clients or more data")
    rng = numpy_rng(seed, f"partition:{name}")
    shards = _RULES[name](y, clients, rng, **_given(name, beta, bias))
    short = [(k, len(s)) for k, s in enumerate(shards) if len(s) < min_samples]
    if short:
        k, n = short[0]
        raise UserError(
            f"the {name} partition leaves client {k} with {n} samples (at least {min_samples} wanted; "
            f"{len(short)} of {clients} clients are short, seed {seed}): use {remedy_of(name)}fewer clients or more data"
        )
    return shards


def _given(name: str, beta: float, bias: float) -> dict[str, float]:
    """The parameter of a rule."""
    return {"group-bias": {"bias": bias}, "iid": {}}.get(name, {"beta": beta})
