"""Divide the training samples among the clients, and each client's into training, validation and
test parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedbench.core.contract.errors import UserError
from fedbench.core.numerics.rng import numpy_rng

Shards = list[np.ndarray]


def iid(y: np.ndarray, clients: int, rng: np.random.Generator) -> Shards:
    """Equal shares of a random permutation (sizes differ by at most one)."""
    return [np.sort(part) for part in np.array_split(rng.permutation(len(y)), clients)]


def dirichlet(y: np.ndarray, clients: int, rng: np.random.Generator, beta: float) -> Shards:
    """For each class, client shares drawn from Dirichlet(beta * 1_K); beta = inf is an equal split
    of every class.

    Source: Hsu et al., 2019, as FedMIA and CoFedMID use it. Cut points are rounded, so no remainder
    piles up on a client.
    """
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for c in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == c))
        share = (
            np.full(clients, 1 / clients)
            if np.isinf(beta)
            else rng.dirichlet(np.full(clients, beta))
        )
        cuts = np.round(np.cumsum(share)[:-1] * len(members)).astype(int)
        for k, part in enumerate(np.split(members, cuts)):
            parts[k].append(part)
    return [np.sort(np.concatenate(p)) for p in parts]


def dirichlet_sizes(y: np.ndarray, clients: int, rng: np.random.Generator, beta: float) -> Shards:
    """One draw from Dirichlet(beta * 1_K) gives the clients' SIZES; who gets which sample is
    random, so labels stay IID.

    Source: "Dirichlet non-IID" in MemberShield's released code (docs/methods/quirks.md#m2).
    """
    share = (
        np.full(clients, 1 / clients) if np.isinf(beta) else rng.dirichlet(np.full(clients, beta))
    )
    cuts = np.round(np.cumsum(share)[:-1] * len(y)).astype(int)
    return [np.sort(part) for part in np.split(rng.permutation(len(y)), cuts)]


def group_bias(y: np.ndarray, clients: int, rng: np.random.Generator, bias: float) -> Shards:
    """Label skew by groups of clients: a sample goes to its label's group with probability ``bias``
    (q), to each other group with (1 - q) / (G - 1); a group's clients get equal random shares of
    it.

    Source: Fang et al., USENIX Security 2020, section 4.1; FedPoisonMIA, section 6.1.6. There the L
    classes make L groups. With fewer clients than classes some groups would have no client and
    their samples no home, so there are G = min(clients, L) groups: label y belongs to group y mod
    G, client k to group k mod G. For L <= clients that is the papers' rule; with 10 clients and 100
    classes, each client is a group that prefers 10 classes. bias = 1/G is uniform; 1 sends each
    class to one group only. Groups with one client fewer than others make larger shards.
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
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet-sizes": dirichlet_sizes,
    "group-bias": group_bias,
}
_REMEDY = {
    "dirichlet": "a larger beta, ",
    "dirichlet-sizes": "a larger beta, ",
    "group-bias": "a smaller bias, ",
}


def remedy_of(name: str) -> str:
    """What to change in the rule ``name`` when a client has too few samples, with a comma behind;
    nothing for equal shares.
    """
    return _REMEDY.get(name, "")


def partition(
    y: np.ndarray,
    clients: int,
    seed: int,
    name: str = "iid",
    beta: float = 1.0,
    min_samples: int = 1,
    bias: float = 0.5,
) -> Shards:
    """Sorted sample positions of each client; disjoint, together all of ``y``.

    ``beta`` is the concentration of dirichlet and dirichlet-sizes, ``bias`` (0..1) group-bias's
    probability of a label's own group. Raises ``UserError`` when there are fewer samples than
    clients, or a client ends below ``min_samples``, all its parts together.
    """
    if len(y) < clients:
        raise UserError(
            f"{len(y)} training samples for {clients} clients: use fewer clients or more data"
        )
    rng = numpy_rng(seed, f"partition:{name}")
    shards = _RULES[name](y, clients, rng, **_given(name, beta, bias))
    short = [(k, len(s)) for k, s in enumerate(shards) if len(s) < min_samples]
    if short:
        k, n = short[0]
        raise UserError(
            f"the {name} partition leaves client {k} with {n} samples (at least {min_samples} "
            "wanted; "
            f"{len(short)} of {clients} clients are short, seed {seed}): use "
            f"{remedy_of(name)}fewer clients or more data"
        )
    return shards


def _given(name: str, beta: float, bias: float) -> dict[str, float]:
    """The parameter of a rule."""
    return {"group-bias": {"bias": bias}, "iid": {}}.get(name, {"beta": beta})


# --- training, validation and test parts of each client -------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Outsiders:
    """Samples that no client trains on, candidates of a target. ``ids``: positions in train ++
    holdout; for messages, ``where``: where they come from, and ``more``: the setting to raise for
    more of them.
    """

    ids: np.ndarray
    where: str = "the hold-out"
    more: str = "the dataset's hold-out"


@dataclass(frozen=True, kw_only=True)
class Split:
    """Who holds which of ``n_train`` training samples: [K] sorted positions of what each client
    trains on (``train``), watches without training on it (``validation``) and keeps for its audit
    (``test``). ``n_holdout``: hold-out samples, which follow.

    The parts of all clients are disjoint, except that ``validation`` is ``test`` with
    ``validation_on: nonmembers``.
    """

    train: Shards
    validation: Shards
    test: Shards
    n_train: int
    n_holdout: int

    @cached_property
    def has_test(self) -> bool:
        """Whether the targets' own test parts stand in for the hold-out."""
        return any(len(ids) for ids in self.test)

    def own(self, k: int) -> np.ndarray:
        """[n] sorted positions of client ``k``'s own data as it gets them: what it trains on and
        what it validates on.
        """
        return np.sort(np.concatenate([self.train[k], self.validation[k]]))

    def validated(self) -> np.ndarray:
        """Ids of the samples excluded from the audit: validation samples that are in no test part."""
        return np.setdiff1d(np.concatenate(self.validation), np.concatenate(self.test))

    def trained_by(self) -> np.ndarray:
        """[n_train + n_holdout] the client that trains on a sample, -1 for none."""
        return self._client_of(self.train)

    def tested_by(self) -> np.ndarray:
        """[n_train + n_holdout] the client that has a sample in its test part, -1 for none."""
        return self._client_of(self.test)

    def home(self) -> np.ndarray:
        """[n_train + n_holdout] the client that owns a sample; hold-out sample i looks like the
        images of client i mod K.
        """
        home = self._client_of(self.train, self.validation, self.test)
        home[self.n_train :] = np.arange(self.n_holdout) % len(self.train)
        return home

    def _client_of(self, *parts: Shards) -> np.ndarray:
        client = np.full(self.n_train + self.n_holdout, -1)
        for part in parts:
            for k, ids in enumerate(part):
                client[ids] = k
        return client

    def outsiders(self, clients: np.ndarray, who: str) -> Outsiders:
        """The outsiders of ``clients`` [k] (``who`` in messages): their test parts or, without any,
        the hold-out samples i with i mod K among them, which have their images' deformation.
        """
        if self.has_test:
            ids = np.sort(
                np.concatenate([self.test[k] for k in clients] or [np.zeros(0, np.int64)])
            )
            return Outsiders(ids=ids, where=f"the test part of {who}", more="federation.test")
        free = np.flatnonzero(np.isin(np.arange(self.n_holdout) % len(self.train), clients))
        everybody = len(clients) == len(self.train)
        return Outsiders(
            ids=self.n_train + free, where="the hold-out" if everybody else f"the hold-out of {who}"
        )

    def digest(self) -> str:
        """Hex sha256 of who holds what."""
        h = hashlib.sha256()
        for part in (self.train, self.validation, self.test):
            for ids in part:
                h.update(
                    len(ids).to_bytes(8, "little")
                    + np.ascontiguousarray(ids, dtype=np.int64).tobytes()
                )
        return h.hexdigest()


def whole(shards: Shards, n_holdout: int) -> Split:
    """Clients that train on all they hold."""
    empty = [np.zeros(0, np.int64)] * len(shards)
    return Split(
        train=shards,
        validation=empty,
        test=empty,
        n_train=sum(len(s) for s in shards),
        n_holdout=n_holdout,
    )


def cut_all(
    y: np.ndarray,
    shards: Shards,
    n_holdout: int,
    seed: int,
    *,
    validation: float = 0.0,
    test: float = 0.0,
    on_test: bool = False,
    rule: str = "iid",
) -> Split:
    """The shards of labels ``y`` cut by :func:`cut`. ``on_test``: the test part is the validation
    part, too (released code).

    ``rule``: how the shards were made, for the remedy. Raises ``UserError`` for a client with an
    empty part.
    """
    if not validation and not test:
        return whole(shards, n_holdout)
    parts = [cut(y[s], validation, test, seed, k) for k, s in enumerate(shards)]
    wanted = {"training": 1.0 - validation - test, "validation": validation, "test": test}
    for i, (name, share) in enumerate(wanted.items()):
        empty = [k for k, of_client in enumerate(parts) if share and not len(of_client[i])]
        if empty:
            raise UserError(
                _empty_part(empty, y[shards[empty[0]]], name, share, len(shards), seed, rule)
            )
    train, validated, tested = (
        [s[p[i]] for s, p in zip(shards, parts, strict=True)] for i in range(3)
    )
    return Split(
        train=train,
        validation=tested if on_test else validated,
        test=tested,
        n_train=sum(len(s) for s in shards),
        n_holdout=n_holdout,
    )


def _empty_part(
    empty: Sequence[int], y: np.ndarray, name: str, share: float, clients: int, seed: int, rule: str
) -> str:
    classes, counts = np.unique(y, return_counts=True)
    alone = int((counts == 1).sum())
    kept = f", {alone} of them with a single sample, which stays in training" if alone else ""
    what = (
        f"federation.{name}: {share:g}"
        if name != "training"
        else "what federation.validation and federation.test leave"
    )
    raise_it = "a larger share" if name != "training" else "smaller shares"
    return (
        f"client {empty[0]} has {len(y)} samples of {len(classes)} classes{kept}: its {name} part "
        f"would be empty ({what}; "
        f"{len(empty)} of {clients} clients, seed {seed}): use {raise_it}, {remedy_of(rule)}fewer "
        "clients or more data"
    )


def cut(
    y: np.ndarray, validation: float, test: float, seed: int, client: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted positions in ``y`` [n] of the (training, validation, test) part of a client with these
    labels.

    The parts have their shares of the samples by largest remainder, of equals training first. Each
    has its share of every class, rounded down or up: the classes of the largest remainders are
    rounded up until the sizes are met, of equals a random one. A class of one sample stays in
    training. Drawn by (seed, client), independent of other clients' samples.
    """
    rng = numpy_rng(seed, "parts", client=client)
    classes, label = np.unique(y, return_inverse=True)
    # decides between equal remainders: else the first classes would have all of them
    tie_order = rng.permutation(len(classes))
    counts = np.bincount(label, minlength=len(classes)) if len(y) else np.zeros(0, np.int64)
    many = np.where(counts > 1, counts, 0)
    sizes = _totals(int(many.sum()), validation, test)
    wish_v, wish_t = _exact(many * validation), _exact(many * test)
    wish = _exact(many * (validation + test))
    held = _rounded(wish, np.floor(wish), np.ceil(wish), sum(sizes), tie_order)
    # whatever is held and not tested is validated on: the bounds leave both within one sample of
    # their shares
    least = np.maximum(np.floor(wish_t), held - np.ceil(wish_v))
    most = np.minimum(np.ceil(wish_t), held - np.floor(wish_v))
    tested = _rounded(wish_t, least, most, sizes[1], tie_order)
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for c in range(len(classes)):
        mine = rng.permutation(np.flatnonzero(label == c))
        for part, ids in zip(
            parts, np.split(mine, [counts[c] - held[c], counts[c] - tested[c]]), strict=True
        ):
            part.append(ids)
    train, validated, test_part = (
        np.sort(np.concatenate(p or [np.zeros(0, np.int64)])) for p in parts
    )
    return train, validated, test_part


def _exact(shares: np.ndarray) -> np.ndarray:
    """Without the last digits: 10 times 0.1 + 0.2 is 3, and no more."""
    return np.round(shares, 9)


def _totals(n: int, validation: float, test: float) -> tuple[int, int]:
    """Sizes of the validation and the test part of ``n`` samples, by largest remainder."""
    exact = _exact(n * np.array([1.0 - validation - test, test, validation]))
    sizes = np.floor(exact).astype(int)
    sizes[np.argsort(sizes - exact, kind="stable")[: n - int(sizes.sum())]] += 1
    return int(sizes[2]), int(sizes[1])


def _rounded(
    exact: np.ndarray, least: np.ndarray, most: np.ndarray, total: int, tie_order: np.ndarray
) -> np.ndarray:
    """[C] whole numbers from ``least`` to ``most`` (at most one more) that sum to ``total`` or as
    near as can be; what exceeds ``least`` the most is rounded up first, of equals the first in
    ``tie_order`` [C].
    """
    out = least.astype(int)
    can = tie_order[(most > least)[tie_order]]
    first = can[np.argsort((least - exact)[can], kind="stable")]
    out[first[: max(0, total - int(out.sum()))]] += 1
    return out
