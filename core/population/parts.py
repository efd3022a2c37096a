"""Cut each client's own samples, class by class, into what it trains on, what it validates on and what nobody trains on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedbench.core.contract.errors import UserError
from fedbench.core.numerics.rng import numpy_rng
from fedbench.core.population.partition import Shards, remedy_of


@dataclass(frozen=True, kw_only=True)
class Outsiders:
    """Samples that nobody trains on and that a target may be asked about. ``ids``: positions in train ++ holdout; ``where``:
    whose they are, and ``more``: what to raise for more of them, in words."""

    ids: np.ndarray
    where: str = "the hold-out"
    more: str = "the dataset's hold-out"


@dataclass(frozen=True, kw_only=True)
class Split:
    """Who holds which of ``n_train`` training samples: [K] sorted positions of what each client trains on (``train``), watches
    without training on it (``validation``) and keeps for its audit (``test``). ``n_holdout``: samples of nobody, which follow.

    The parts of all clients are disjoint, but that ``validation`` is ``test`` where the released code's quirk is asked for.
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
        """[n] sorted positions of client ``k``'s own data as it gets them: what it trains on and what it validates on."""
        return np.sort(np.concatenate([self.train[k], self.validation[k]]))

    def validated(self) -> np.ndarray:
        """Ids of the samples that leave the audit: watched by their client, and neither trained on nor in a test part."""
        return np.setdiff1d(np.concatenate(self.validation), np.concatenate(self.test))

    def trained_by(self) -> np.ndarray:
        """[n_train + n_holdout] the client that trains on a sample, -1 for nobody."""
        return self._whose(self.train)

    def tested_by(self) -> np.ndarray:
        """[n_train + n_holdout] the client in whose test part a sample lies, -1 where it lies in none."""
        return self._whose(self.test)

    def home(self) -> np.ndarray:
        """[n_train + n_holdout] the client whose sample it is; of the hold-out, client i mod K, whose images it looks like."""
        whose = self._whose(self.train, self.validation, self.test)
        whose[self.n_train :] = np.arange(self.n_holdout) % len(self.train)
        return whose

    def _whose(self, *parts: Shards) -> np.ndarray:
        whose = np.full(self.n_train + self.n_holdout, -1)
        for part in parts:
            for k, ids in enumerate(part):
                whose[ids] = k
        return whose

    def outsiders(self, clients: np.ndarray, who: str) -> Outsiders:
        """Those of ``clients`` [k], called ``who``: their own test parts or, without any, the hold-out samples that look like
        theirs (sample i as client i mod K's)."""
        if self.has_test:
            ids = np.sort(np.concatenate([self.test[k] for k in clients] or [np.zeros(0, np.int64)]))
            return Outsiders(ids=ids, where=f"the test part of {who}", more="federation.test")
        free = np.flatnonzero(np.isin(np.arange(self.n_holdout) % len(self.train), clients))
        everybody = len(clients) == len(self.train)
        return Outsiders(ids=self.n_train + free, where="the hold-out" if everybody else f"the hold-out of {who}")

    def digest(self) -> str:
        """Hex sha256 of who holds what."""
        h = hashlib.sha256()
        for part in (self.train, self.validation, self.test):
            for ids in part:
                h.update(len(ids).to_bytes(8, "little") + np.ascontiguousarray(ids, dtype=np.int64).tobytes())
        return h.hexdigest()


def whole(shards: Shards, n_holdout: int) -> Split:
    """Clients that train on all they hold."""
    empty = [np.zeros(0, np.int64)] * len(shards)
    return Split(train=shards, validation=empty, test=empty, n_train=sum(len(s) for s in shards), n_holdout=n_holdout)


def cut_all(
    y: np.ndarray, shards: Shards, n_holdout: int, seed: int, *, validation: float = 0.0, test: float = 0.0,
    on_test: bool = False, rule: str = "iid",
) -> Split:  # fmt: skip
    """The shards of labels ``y`` cut by :func:`cut`. ``on_test``: the test part is the validation part, too (released code).

    ``rule``: how the shards were made, for the remedy. Raises ``UserError`` for a client with an empty part.
    """
    if not validation and not test:
        return whole(shards, n_holdout)
    parts = [cut(y[s], validation, test, seed, k) for k, s in enumerate(shards)]
    wanted = {"training": 1.0 - validation - test, "validation": validation, "test": test}
    for i, (name, share) in enumerate(wanted.items()):
        empty = [k for k, of_client in enumerate(parts) if share and not len(of_client[i])]
        if empty:
            raise UserError(_empty_part(empty, y[shards[empty[0]]], name, share, len(shards), seed, rule))
    train, validated, tested = ([s[p[i]] for s, p in zip(shards, parts, strict=True)] for i in range(3))
    return Split(
        train=train, validation=tested if on_test else validated, test=tested, n_train=sum(len(s) for s in shards),
        n_holdout=n_holdout,
    )  # fmt: skip


def _empty_part(empty: Sequence[int], y: np.ndarray, name: str, share: float, clients: int, seed: int, rule: str) -> str:
    classes, counts = np.unique(y, return_counts=True)
    alone = int((counts == 1).sum())
    kept = f", {alone} of them with a single sample, which stays in training" if alone else ""
    what = f"federation.{name}: {share:g}" if name != "training" else "what federation.validation and federation.test leave"
    raise_it = "a larger share" if name != "training" else "smaller shares"
    return (
        f"client {empty[0]} has {len(y)} samples of {len(classes)} classes{kept}: its {name} part would be empty ({what}; "
        f"{len(empty)} of {clients} clients, seed {seed}): use {raise_it}, {remedy_of(rule)}fewer clients or more data"
    )


def cut(y: np.ndarray, validation: float, test: float, seed: int, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted positions in ``y`` [n] of the (training, validation, test) part of a client with these labels.

    The parts have their shares of the samples by largest remainder, of equals training first. Each has its share of every
    class, rounded down or up: the classes of the largest remainders are rounded up until the sizes are met, of equals a random
    one. A class of one sample stays in training. Drawn by (seed, client); nobody else's samples matter.
    """
    rng = numpy_rng(seed, "parts", client=client)
    classes, label = np.unique(y, return_inverse=True)
    lots = rng.permutation(len(classes))  # decides between equal remainders: else the first classes would have all of them
    counts = np.bincount(label, minlength=len(classes)) if len(y) else np.zeros(0, np.int64)
    many = np.where(counts > 1, counts, 0)
    sizes = _totals(int(many.sum()), validation, test)
    wish_v, wish_t = _exact(many * validation), _exact(many * test)
    wish = _exact(many * (validation + test))
    held = _rounded(wish, np.floor(wish), np.ceil(wish), sum(sizes), lots)
    # whatever is held and not tested is validated on: the bounds leave both within one sample of their shares
    least = np.maximum(np.floor(wish_t), held - np.ceil(wish_v))
    most = np.minimum(np.ceil(wish_t), held - np.floor(wish_v))
    tested = _rounded(wish_t, least, most, sizes[1], lots)
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    for c in range(len(classes)):
        mine = rng.permutation(np.flatnonzero(label == c))
        for part, ids in zip(parts, np.split(mine, [counts[c] - held[c], counts[c] - tested[c]]), strict=True):
            part.append(ids)
    train, validated, test_part = (np.sort(np.concatenate(p or [np.zeros(0, np.int64)])) for p in parts)
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


def _rounded(exact: np.ndarray, least: np.ndarray, most: np.ndarray, total: int, lots: np.ndarray) -> np.ndarray:
    """[C] whole numbers from ``least`` to ``most`` (at most one more) that sum to ``total`` or as near as can be; what exceeds
    ``least`` the most is rounded up first, of equals the first in ``lots`` [C]."""
    out = least.astype(int)
    can = lots[(most > least)[lots]]
    first = can[np.argsort((least - exact)[can], kind="stable")]
    out[first[: max(0, total - int(out.sum()))]] += 1
    return out
