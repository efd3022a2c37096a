"""Draw training, test and hold-out samples by seed, class by class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.core import UserError

_TEST_SHARE = 0.2  # of a data set without a test set of its own


@dataclass(frozen=True)
class Wanted:
    """How many samples: a count, a share of the pool (a float below 1), or None for what is left."""

    train: int | None
    test: int | float | None
    holdout: int | float


@dataclass(frozen=True)
class Split:
    """Sorted positions: ``train`` in the training pool; ``test`` and ``holdout`` in the test pool, or in the training
    pool where there is no other. ``None`` stands for the whole pool."""

    train: np.ndarray | None
    test: np.ndarray
    holdout: np.ndarray


def split(train_y: np.ndarray, test_y: np.ndarray | None, want: Wanted, seed: int, name: str, things: str = "images") -> Split:
    """Disjoint splits in which each class keeps its share; ``holdout`` and ``test`` do not depend on ``want.train``.

    With a test pool the hold-out is set aside from it (docs/methods/protocol.md: never trained on, never used for test
    accuracy); without one (``test_y`` None) all three are drawn from the training pool. Raises ``UserError`` when
    there are fewer samples than asked, or a class is left without one to train on; ``things`` is what it calls them.
    """
    pool_y = train_y if test_y is None else test_y
    kind = things if test_y is None else f"test {things}"
    n_holdout = _count(want.holdout, len(pool_y))
    default = _count(_TEST_SHARE, len(pool_y)) if test_y is None else len(pool_y) - n_holdout
    n_test = default if want.test is None else _count(want.test, len(pool_y))
    if min(n_holdout, n_test) < 1 or n_holdout + n_test > len(pool_y):
        raise UserError(
            f"{name} has {len(pool_y):,} {kind}: a hold-out of {n_holdout:,} (holdout) and {n_test:,} to test (test) "
            "cannot both be drawn from them with at least one each; change them"
        )
    everything = np.arange(len(pool_y))
    holdout = draw(everything, pool_y, n_holdout, rng_for(seed, "holdout"))
    rest = np.setdiff1d(everything, holdout, assume_unique=True)
    test = draw(rest, pool_y, n_test, rng_for(seed, "test"))
    free = np.arange(len(train_y)) if test_y is not None else np.setdiff1d(rest, test, assume_unique=True)
    return Split(_train(free, train_y, want.train, seed, name, things), test, holdout)


def draw(pool: np.ndarray, y: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """``n`` of the positions ``pool``, sorted; each class of ``y[pool]`` gets its share by largest remainder, ties by lot."""
    classes, counts = np.unique(y[pool], return_counts=True)
    exact = n * counts / max(len(pool), 1)
    take = np.floor(exact).astype(int)
    lots = rng.permutation(len(classes))
    order = np.lexsort((lots, -np.round(exact - take, 9)))
    take[order[: n - take.sum()]] += 1
    drawn = [rng.permutation(pool[y[pool] == c])[:k] for c, k in zip(classes, take, strict=True)]
    return np.sort(np.concatenate([*drawn, np.zeros(0, int)])).astype(np.int64)


def rng_for(seed: int, purpose: str) -> np.random.Generator:
    """One stream a purpose, so that changing one count leaves the other draws alone."""
    return np.random.Generator(np.random.Philox([seed, int.from_bytes(purpose.encode()[:8], "little")]))


def _train(free: np.ndarray, y: np.ndarray, n: int | None, seed: int, name: str, things: str) -> np.ndarray | None:
    if n is not None and n > len(free):
        raise UserError(f"{name} has {len(free):,} training {things}, {n:,} asked for (train): lower it")
    chosen = free if n is None else draw(free, y, n, rng_for(seed, "train"))
    classes = np.unique(y)
    absent = np.setdiff1d(classes, y[chosen])
    if len(absent):
        raise UserError(
            f"{name}: with {len(chosen):,} training {things} {len(absent)} of {len(classes)} classes have none (the first: "
            f"class {absent[0]}); raise train, lower test and holdout, or add {things}"
        )
    return None if len(chosen) == len(y) else chosen


def _count(amount: int | float, pool: int) -> int:
    return amount if isinstance(amount, int) else round(amount * pool)
