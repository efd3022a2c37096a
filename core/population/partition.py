"""Division of the training samples among the clients, and into each client's training, validation
and test parts.

A division may be skewed by an ``attribute`` [n] of the samples: in classification their labels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from fedbench.core.contract.errors import UserError
from fedbench.core.numerics.rng import numpy_rng

Shards = list[ndarray]


def iid(attribute: ndarray, clients: int, rng: Generator) -> Shards:
    """Equal shares of a random permutation (sizes differ by at most one)."""
    order = rng.permutation(len(attribute))
    return [np.sort(part) for part in np.array_split(order, clients)]


def dirichlet(
    attribute: ndarray,
    clients: int,
    rng: Generator,
    beta: float,
) -> Shards:
    """For each class, client shares drawn from Dirichlet(beta * 1_K); beta = inf is an equal split.

    Source: Hsu et al., 2019, as FedMIA and CoFedMID use it. Cut points are rounded, so no remainder
    piles up on a client.
    """
    parts = []
    for value in np.unique(attribute):
        members = rng.permutation(np.flatnonzero(attribute == value))
        parts.append(_split(members, _shares(clients, rng, beta)))
    return [np.sort(np.concatenate(of_client)) for of_client in zip(*parts, strict=True)]


def dirichlet_sizes(
    attribute: ndarray,
    clients: int,
    rng: Generator,
    beta: float,
) -> Shards:
    """Client SIZES from one draw from Dirichlet(beta * 1_K); labels stay IID.

    Source: "Dirichlet non-IID" in MemberShield's released code (docs/methods/quirks.md#m2).
    """
    shares = _shares(clients, rng, beta)
    order = rng.permutation(len(attribute))
    return [np.sort(part) for part in _split(order, shares)]


def _shares(clients: int, rng: Generator, beta: float) -> ndarray:
    if np.isinf(beta):
        return np.full(clients, 1 / clients)
    return rng.dirichlet(np.full(clients, beta))


def _split(ids: ndarray, shares: ndarray) -> list[ndarray]:
    ends = np.cumsum(shares)[:-1] * len(ids)
    return np.split(ids, np.round(ends).astype(int))


def group_bias(
    attribute: ndarray,
    clients: int,
    rng: Generator,
    bias: float,
) -> Shards:
    """Label skew by groups of clients.

    A sample goes to its label's group with probability ``bias`` (q), to each other group with
    (1 - q) / (G - 1); a group's clients get equal random shares of it.

    Source: Fang et al., USENIX Security 2020, section 4.1; FedPoisonMIA, section 6.1.6. There the L
    classes make L groups. With fewer clients than classes some groups would have no client, hence G
    = min(clients, L) groups: label y belongs to group y mod G, client k to group k mod G. For L <=
    clients that is the papers' rule; with 10 clients and 100 classes, each client is a group that
    prefers 10 classes. bias = 1/G is uniform; 1 sends each class to one group only. Groups with one
    client fewer make larger shards.
    """
    label = np.unique(attribute, return_inverse=True)[1]
    groups = min(clients, int(label.max()) + 1)
    group = _preferred(label % groups, groups, bias, rng)
    shards: Shards = [np.zeros(0, np.int64)] * clients
    for g in range(groups):
        serving = range(g, clients, groups)
        members = rng.permutation(np.flatnonzero(group == g))
        parts = np.array_split(members, len(serving))
        for k, part in zip(serving, parts, strict=True):
            shards[k] = np.sort(part)
    return shards


def _preferred(
    home: ndarray,
    groups: int,
    bias: float,
    rng: Generator,
) -> ndarray:
    """[n] group of each sample: its home [n] with probability ``bias``, else another one."""
    n = len(home)
    elsewhere = (home + rng.integers(1, max(groups, 2), n)) % groups
    stays = rng.random(n) < bias
    return np.where(stays, home, elsewhere)


def given(owner: ndarray | None, clients: int) -> Shards:
    """Division that the data set states.

    Args:
        owner: [n] the client of each training sample.

    Raises:
        UserError: there is none, or it is of other clients than 0 to ``clients`` - 1.
    """
    if owner is None:
        raise UserError(
            "partition given: the data set does not say which client a training sample belongs to "
            "(Data.train_client); use another partition"
        )
    outside = owner[(owner < 0) | (owner >= clients)]
    empty = np.setdiff1d(np.arange(clients), owner)
    if len(outside) or len(empty):
        misfit = f"samples of client {outside[0]}" if len(outside) else ""
        misfit = misfit or f"client {empty[0]} without samples"
        raise UserError(
            f"partition given: the data have {misfit}, and federation.clients is {clients}: the "
            f"clients of the data are 0 to {owner.max()}"
        )
    return [np.flatnonzero(owner == k) for k in range(clients)]


_RULES: dict[str, Callable[..., Shards]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet-sizes": dirichlet_sizes,
    "group-bias": group_bias,
}
# what to change in a rule when a client has too few samples
_REMEDIES = {
    "iid": "",
    "dirichlet": "a larger beta, ",
    "dirichlet-sizes": "a larger beta, ",
    "group-bias": "a smaller bias, ",
    "given": "",
}


def partition(
    attribute: ndarray,
    clients: int,
    seed: int,
    name: str = "iid",
    beta: float = 1.0,
    min_samples: int = 1,
    bias: float = 0.5,
    owner: ndarray | None = None,
) -> Shards:
    """Sorted sample positions of each client; disjoint, together all.

    Args:
        beta: concentration of dirichlet and dirichlet-sizes.
        bias: group-bias's probability (0..1) of a label's own group.
        owner: [n] the client of each sample, of given.

    Raises:
        UserError: fewer samples than clients, or a client with less than ``min_samples``, all its
            parts together.
    """
    if len(attribute) < clients:
        raise UserError(
            f"{len(attribute)} training samples for {clients} clients: use fewer clients or more "
            "data"
        )
    if name == "given":
        shards = given(owner, clients)
    else:
        skew = {"iid": (), "group-bias": (bias,)}.get(name, (beta,))
        shards = _RULES[name](attribute, clients, numpy_rng(seed, f"partition:{name}"), *skew)
    short = [k for k, shard in enumerate(shards) if len(shard) < min_samples]
    if short:
        k = short[0]
        raise UserError(
            f"the {name} partition leaves client {k} with {len(shards[k])} samples (at least "
            f"{min_samples} wanted; {len(short)} of {clients} clients are short, seed {seed}): use "
            f"{_REMEDIES[name]}fewer clients or more data"
        )
    return shards


# --- training, validation and test parts of each client -------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Outsiders:
    """Samples that no client trains on, candidates of a target."""

    ids: ndarray
    """positions in train ++ holdout"""
    origin: str = "the hold-out"
    """in messages"""
    remedy: str = "the dataset's hold-out"
    """in messages: the setting to raise for more of them"""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Sorted positions of each client's parts.

    The parts of all clients are disjoint, except that ``validation`` is ``test`` with
    ``validation_on: nonmembers``.
    """

    train: Shards
    """trained on"""
    validation: Shards
    """watched without training on it"""
    test: Shards
    """kept for the client's audit"""
    n_train: int
    n_holdout: int
    """hold-out samples, which follow the training samples"""
    holdout_client: ndarray | None = None
    """[n_holdout] the client of each hold-out sample's site, -1 for none; None where the data set
    does not say
    """

    @cached_property
    def has_test(self) -> bool:
        """Whether the targets' own test parts replace the hold-out."""
        return any(len(ids) for ids in self.test)

    def own(self, k: int) -> ndarray:
        """[n] sorted positions of client ``k``'s training and validation parts."""
        return np.sort(np.concatenate([self.train[k], self.validation[k]]))

    def validated(self) -> ndarray:
        """Ids of validation samples that are in no test part; the audit excludes them."""
        watched = np.concatenate(self.validation)
        return np.setdiff1d(watched, np.concatenate(self.test))

    def trained_by(self) -> ndarray:
        """[n_train + n_holdout] the client that trains on a sample, -1 for none."""
        return self._client_of(self.train)

    def tested_by(self) -> ndarray:
        """[n_train + n_holdout] the client that has a sample in its test part, -1 for none."""
        return self._client_of(self.test)

    def home(self) -> ndarray:
        """[n_train + n_holdout] the client that owns a sample; hold-out sample i is of its site or,
        without one, looks like the images of client i mod K.
        """
        home = self._client_of(self.train, self.validation, self.test)
        site = np.arange(self.n_holdout) % len(self.train)
        if self.holdout_client is not None:
            site = np.where(self.holdout_client < 0, site, self.holdout_client)
        home[self.n_train :] = site
        return home

    def _client_of(self, *parts: Shards) -> ndarray:
        client = np.full(self.n_train + self.n_holdout, -1)
        for part in parts:
            for k, ids in enumerate(part):
                client[ids] = k
        return client

    def outsiders(self, clients: ndarray, words: str) -> Outsiders:
        """Outsiders of ``clients`` [k], ``words`` in messages.

        Their test parts or, without any, the hold-out of their sites, and that of no site for those
        without one. Where the data set does not tell sites apart, the hold-out samples i with i mod
        K among them, which have their images' deformation.
        """
        if self.has_test:
            parts = [self.test[k] for k in clients]
            ids = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
            return Outsiders(ids=ids, origin=f"the test part of {words}", remedy="federation.test")
        owners = self.holdout_client
        if owners is None:
            owners = np.arange(self.n_holdout) % len(self.train)
        of_clients = np.isin(owners, clients)
        if len(np.setdiff1d(clients, owners)):
            of_clients |= owners < 0
        free = np.flatnonzero(of_clients)
        outsiders = Outsiders(ids=self.n_train + free)
        if len(clients) == len(self.train):
            return outsiders
        return replace(outsiders, origin=f"the hold-out of {words}")

    def digest(self) -> str:
        """Hex sha256 of all parts."""
        h = hashlib.sha256()
        for ids in (*self.train, *self.validation, *self.test):
            h.update(len(ids).to_bytes(8, "little"))
            h.update(np.ascontiguousarray(ids, dtype=np.int64).tobytes())
        return h.hexdigest()


def whole(shards: Shards, n_holdout: int) -> Split:
    """Clients that train on all they hold."""
    empty = [np.zeros(0, np.int64)] * len(shards)
    n_train = sum(len(s) for s in shards)
    return Split(train=shards, validation=empty, test=empty, n_train=n_train, n_holdout=n_holdout)


def cut_all(
    attribute: ndarray,
    shards: Shards,
    n_holdout: int,
    seed: int,
    *,
    validation: float = 0.0,
    test: float = 0.0,
    by_coin: bool = False,
    on_test: bool = False,
    rule: str = "iid",
) -> Split:
    """Cut each shard by :func:`cut`.

    Args:
        by_coin: each sample is in the test part with probability ``test``, independently.
        on_test: the test part is the validation part, too (released code).
        rule: how the shards were made, for the remedy.

    Raises:
        UserError: a client has an empty part.
    """
    split = whole(shards, n_holdout)
    if not validation and not test:
        return split
    if by_coin:
        cuts = [_by_coin(len(shard), test, seed, k) for k, shard in enumerate(shards)]
    else:
        cuts = [cut(attribute[s], validation, test, seed, k) for k, s in enumerate(shards)]
    shares = {"training": 1.0 - validation - test, "validation": validation, "test": test}
    parts = []
    for i, (name, share) in enumerate(shares.items()):
        pairs = zip(shards, cuts, strict=True)
        parts.append([shard[positions[i]] for shard, positions in pairs])
        empty = [k for k, ids in enumerate(parts[i]) if not len(ids)]
        if share and empty:
            k = empty[0]
            remedy = "a larger share" if i else "smaller shares"
            raise UserError(
                f"client {k} {_too_few(attribute[shards[k]], name, share)}; "
                f"{len(empty)} of {len(shards)} clients, seed {seed}): use {remedy}, "
                f"{_REMEDIES[rule]}fewer clients or more data"
            )
    train, validated, tested = parts
    if on_test:
        validated = tested
    return replace(split, train=train, validation=validated, test=tested)


def _by_coin(
    n: int,
    test: float,
    seed: int,
    client: int,
) -> tuple[ndarray, ndarray, ndarray]:
    """Sorted positions of the (training, validation, test) part: Bernoulli(``test``) draws."""
    tested = numpy_rng(seed, "coins", client=client).random(n) < test
    return np.flatnonzero(~tested), np.zeros(0, np.int64), np.flatnonzero(tested)


def _too_few(attribute: ndarray, name: str, share: float) -> str:
    classes, counts = np.unique(attribute, return_counts=True)
    single = int((counts == 1).sum())
    option = f"federation.{name}: {share:g}"
    remark = f", {single} of them with a single sample, which stays in training" if single else ""
    if name == "training":
        option = "what federation.validation and federation.test leave"
    return (
        f"has {len(attribute)} samples of {len(classes)} classes{remark}: its {name} part would be "
        f"empty ({option}"
    )


def cut(
    attribute: ndarray,
    validation: float,
    test: float,
    seed: int,
    client: int,
) -> tuple[ndarray, ndarray, ndarray]:
    """Sorted positions of the (training, validation, test) part of a client's samples.

    The parts have their shares of the samples by largest remainder, of equals training first. Each
    has its share of every class, rounded down or up: the classes of the largest remainders are
    rounded up until the sizes are met, of equals a random one. A class of one sample stays in
    training. Drawn by (seed, client), independent of other clients' samples.
    """
    rng = numpy_rng(seed, "parts", client=client)
    classes, label, counts = np.unique(attribute, return_inverse=True, return_counts=True)
    # decides between equal remainders: else the first classes would have all of them
    tie_order = rng.permutation(len(classes))
    out, tested = _taken_out(counts, validation, test, tie_order)
    empty = np.zeros(0, np.int64)
    parts = [empty], [empty], [empty]
    for c, count in enumerate(counts):
        members = rng.permutation(np.flatnonzero(label == c))
        ends = [count - out[c], count - tested[c]]
        pieces = np.split(members, ends)
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    train, validated, test_part = map(np.concatenate, parts)
    return np.sort(train), np.sort(validated), np.sort(test_part)


def _taken_out(
    counts: ndarray,
    validation: float,
    test: float,
    tie_order: ndarray,
) -> tuple[ndarray, ndarray]:
    """Samples of each class [C] that leave training, and those of them that are tested on."""
    divisible = np.where(counts > 1, counts, 0)
    n = int(divisible.sum())
    exact = _exact(divisible * (validation + test))
    exact_validation = _exact(divisible * validation)
    exact_test = _exact(divisible * test)
    shares = np.array([1.0 - validation - test, test, validation])
    _, n_test, n_validation = largest_remainder(_exact(n * shares), n).tolist()
    n_out = n_validation + n_test
    out = _rounded(exact, np.floor(exact), np.ceil(exact), n_out, tie_order)
    # the rest is validated on: the bounds leave both within one sample of their shares
    least = np.maximum(np.floor(exact_test), out - np.ceil(exact_validation))
    most = np.minimum(np.ceil(exact_test), out - np.floor(exact_validation))
    return out, _rounded(exact_test, least, most, n_test, tie_order)


def _exact(shares: ndarray) -> ndarray:
    """Drop the last digits: 10 times 0.1 + 0.2 is 3, and no more."""
    return np.round(shares, 9)


def largest_remainder(exact: ndarray, total: int) -> ndarray:
    """Integers with the sum ``total``: largest remainders are rounded up, the first of equals."""
    sizes = np.floor(exact).astype(int)
    rest = total - int(sizes.sum())
    largest = np.argsort(sizes - exact, kind="stable")
    sizes[largest[:rest]] += 1
    return sizes


def _rounded(
    exact: ndarray,
    least: ndarray,
    most: ndarray,
    total: int,
    tie_order: ndarray,
) -> ndarray:
    """[C] integers from ``least`` to ``most`` (at most one more) with a sum nearest to ``total``.

    The one that exceeds ``least`` the most is rounded up first, of equals the first in
    ``tie_order`` [C].
    """
    sizes = least.astype(int)
    raisable = tie_order[(most > least)[tie_order]]
    excess = (least - exact)[raisable]
    first = raisable[np.argsort(excess, kind="stable")]
    rest = max(0, total - int(sizes.sum()))
    sizes[first[:rest]] += 1
    return sizes
