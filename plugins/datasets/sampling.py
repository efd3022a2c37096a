"""Training, test and hold-out samples drawn by seed, class by class, and mislabelled canaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import Field, field_validator

from fedbench.core import Data, Params, UserError
from fedbench.core.toolkit import Arrays

_TEST_SHARE = 0.2  # of a data set without a test set of its own


Split = tuple[np.ndarray | None, np.ndarray, np.ndarray]
"""sorted positions to train on in the training pool (None: all of it), and to test on and to hold
out in the test pool
"""


def split(
    train_y: np.ndarray,
    test_y: np.ndarray | None,
    want: Any,
    seed: int,
    name: str,
    things: str = "images",
) -> Split:
    """Disjoint splits in which each class keeps its share; ``holdout`` and ``test`` do not depend
    on ``want.train``.

    ``want``: train, test and holdout, each a count, a share of the pool (a float below 1), or None
    for what is left.

    With a test pool the hold-out is set aside from it (docs/methods/protocol.md: never trained on,
    never used for test accuracy); without one (``test_y`` None) all three are drawn from the
    training pool. Raises ``UserError`` when there are fewer samples than asked, or a class is left
    without one to train on; ``things`` is what it calls them.
    """
    pool_y = train_y if test_y is None else test_y
    kind = things if test_y is None else f"test {things}"
    n_holdout = _count(want.holdout, len(pool_y))
    default = _count(_TEST_SHARE, len(pool_y)) if test_y is None else len(pool_y) - n_holdout
    n_test = default if want.test is None else _count(want.test, len(pool_y))
    if min(n_holdout, n_test) < 1 or n_holdout + n_test > len(pool_y):
        raise UserError(
            f"{name} has {len(pool_y):,} {kind}: a hold-out of {n_holdout:,} (holdout) and "
            f"{n_test:,} to test (test) "
            "cannot both be drawn from them with at least one each; change them"
        )
    everything = np.arange(len(pool_y))
    holdout = draw(everything, pool_y, n_holdout, rng_for(seed, "holdout"))
    rest = np.setdiff1d(everything, holdout, assume_unique=True)
    test = draw(rest, pool_y, n_test, rng_for(seed, "test"))
    free = (
        np.arange(len(train_y))
        if test_y is not None
        else np.setdiff1d(rest, test, assume_unique=True)
    )
    return _train(free, train_y, want.train, seed, name, things), test, holdout


def draw(pool: np.ndarray, y: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """``n`` of the positions ``pool``, sorted; each class of ``y[pool]`` gets its share by largest
    remainder, ties by lot.
    """
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
    return np.random.Generator(
        np.random.Philox([seed, int.from_bytes(purpose.encode()[:8], "little")])
    )


def _train(
    free: np.ndarray, y: np.ndarray, n: int | None, seed: int, name: str, things: str
) -> np.ndarray | None:
    if n is not None and n > len(free):
        raise UserError(
            f"{name} has {len(free):,} training {things}, {n:,} asked for (train): lower it"
        )
    chosen = free if n is None else draw(free, y, n, rng_for(seed, "train"))
    classes = np.unique(y)
    absent = np.setdiff1d(classes, y[chosen])
    if len(absent):
        raise UserError(
            f"{name}: with {len(chosen):,} training {things} {len(absent)} of {len(classes)} "
            "classes have none (the first: "
            f"class {absent[0]}); raise train, lower test and holdout, or add {things}"
        )
    return None if len(chosen) == len(y) else chosen


def _count(amount: int | float, pool: int) -> int:
    return amount if isinstance(amount, int) else round(amount * pool)


def mislabel(
    y: np.ndarray, share: float, n_classes: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """``(labels, canary)``: exactly round(share * n) random samples get a uniformly drawn WRONG
    label.

    y: [n] int -> labels [n] int64, canary [n] bool. Canaries audit the most vulnerable samples
    rather than the average one (Aerni, Zhang and Tramer, CCS 2024).
    """
    canary = np.zeros(len(y), bool)
    canary[rng.choice(len(y), round(share * len(y)), replace=False)] = True
    shift = rng.integers(1, n_classes, size=len(y))
    return np.where(canary, (y + shift) % n_classes, y).astype(np.int64), canary


def test_share(default: float) -> Any:
    """The field ``test`` of :class:`Resplit` for images, with another default."""
    return Field(
        default, gt=0, description="test images, clean labels; a count, or a share of all below 1"
    )


def holdout_share(default: float) -> Any:
    """The field ``holdout`` of :class:`Resplit`, with another default."""
    return Field(
        default,
        gt=0,
        description="outside non-members, never trained on; a count, or a share of all below 1",
    )


class Resplit(Params):
    """Train, test and hold-out are drawn from all samples, disjoint, each class keeping its share
    in every split.
    """

    train: int | None = Field(
        None,
        ge=1,
        description="training samples, drawn by seed, each class keeping its share; null: all that "
        "is left",
    )
    test: int | float = Field(
        0.25, gt=0, description="test samples, clean labels; a count, or a share of all below 1"
    )
    holdout: int | float = holdout_share(0.25)
    label_noise: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of mislabelled canaries in train and hold-out, as a fraction",
    )

    @field_validator("test", "holdout")
    @classmethod
    def _count_or_share(cls, value: int | float) -> int | float:
        if isinstance(value, float) and value >= 1:
            raise ValueError(f"{value} is neither a whole number of samples nor a share below 1")
        return value


def drawn(
    a: Arrays,
    want: Any,
    seed: int,
    name: str,
    things: str = "images",
    decode: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    **facts: Any,
) -> Data:
    """Splits of ``train_x``, ``train_y`` and, where there is a test set, ``test_x`` and ``test_y``,
    with mislabelled canaries.

    ``want``: parameters train, test, holdout and label_noise; ``decode``: samples as stored to what
    a model reads; ``facts``: fields of :class:`Data`. Raises as ``split`` does.
    """
    test_x, test_y = (a["test_x"], a["test_y"]) if "test_y" in a else (a["train_x"], a["train_y"])
    train, test, holdout = split(a["train_y"], a.get("test_y"), want, seed, name, things)
    chosen, n_classes = slice(None) if train is None else train, int(a["train_y"].max()) + 1
    (train_y, train_canary), (hold_y, hold_canary) = (
        mislabel(y, want.label_noise, n_classes, rng_for(seed, f"noise-{part}"))
        for part, y in (("t", a["train_y"][chosen]), ("h", test_y[holdout]))
    )
    return Data(
        train_x=decode(a["train_x"][chosen]),
        train_y=train_y,
        test_x=decode(test_x[test]),
        test_y=test_y[test],
        holdout_x=decode(test_x[holdout]),
        holdout_y=hold_y,
        n_classes=n_classes,
        train_canary=train_canary,
        holdout_canary=hold_canary,
        **facts,
    )
