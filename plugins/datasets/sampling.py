"""Training, test and hold-out samples drawn by seed, class by class, and mislabelled canaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field

from fedbench.core import Data, Params, UserError
from fedbench.core.toolkit import Arrays

Part = tuple[np.ndarray, np.ndarray]  # samples, labels [n] int64
_TEST_SHARE = 0.2  # of a data set without a test set of its own


# --- parameters -----------------------------------------------------------------------------------


def _check_amount(amount: int | float) -> int | float:
    if isinstance(amount, float) and amount >= 1:
        raise ValueError(f"{amount} is neither a whole number of samples nor a share below 1")
    return amount


# a number of samples, or a share of the pool below 1
Amount = Annotated[int | float, Field(gt=0), AfterValidator(_check_amount)]
TEST = "test samples, clean labels; a count, or a share of all below 1"
HOLDOUT = "outside non-members, never trained on; a count, or a share of all below 1"


class Noise(Params):
    """Parameter of every data set with canaries."""

    label_noise: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of mislabelled canaries in train and hold-out, as a fraction",
    )


class Drawn(Noise):
    """Parameters of training samples that are drawn by seed."""

    train: int | None = Field(
        None,
        ge=1,
        description="training samples, drawn by seed, each class keeping its share; null: all that "
        "is left",
    )


class Resplit(Drawn):
    """Parameters of a data set with three splits drawn from all samples."""

    test: Amount = Field(0.25, description=TEST)
    holdout: Amount = Field(0.25, description=HOLDOUT)


# --- splits ---------------------------------------------------------------------------------------


class Split(NamedTuple):
    """Sorted positions: to train on and ``spare`` in the training pool, the others in the test
    pool.
    """

    train: np.ndarray
    test: np.ndarray
    holdout: np.ndarray
    spare: np.ndarray
    """of the hold-out, too"""


def split(train_y: np.ndarray, test_y: np.ndarray | None, want: Any, seed: int, name: str) -> Split:
    """Draw disjoint splits in which each class keeps its share.

    With a test pool the hold-out is set aside from it (docs/methods/protocol.md: never trained on,
    never used for test accuracy); where it has too few samples, the rest comes from those of the
    training pool that ``want.train`` leaves. Without one all three splits are drawn from the
    training pool. ``holdout`` and ``test`` do not depend on ``want.train``.

    Args:
        test_y: labels of the test pool, or None.
        want: train, test and holdout, each a count, a share of the pool (a float below 1), or None
            for what is left.

    Raises:
        UserError: there are fewer samples than wanted.
    """
    fewer = 0
    if test_y is None:
        default = _count(_TEST_SHARE, len(train_y))
        rest, test, holdout = _set_aside(train_y, want, default, seed, name)
        train = np.setdiff1d(rest, test, assume_unique=True)
    else:
        default = len(test_y) - _count(want.holdout, len(test_y))
        fewer = _beyond(want, len(train_y), len(test_y))
        pool = f"the test set of {name}"
        _, test, holdout = _set_aside(test_y, want, default, seed, pool, fewer)
        train = np.arange(len(train_y))
    if want.train is not None:
        if want.train > len(train):
            raise UserError(
                f"{name} has {len(train):,} training samples, {want.train:,} asked for (train): "
                "lower it"
            )
        train = draw(train, train_y, want.train, rng_for(seed, "train"))
    unused = np.setdiff1d(np.arange(len(train_y)), train, assume_unique=True)
    spare = draw(unused, train_y, fewer, rng_for(seed, "spare")) if fewer else unused[:0]
    return Split(train, test, holdout, spare)


def _beyond(want: Any, train: int, test: int) -> int:
    """Return how many samples of the hold-out a test pool of ``test`` cannot give and a training
    pool of ``train`` can; 0 where it cannot either.
    """
    if want.train is None or want.test is None:
        return 0
    missing = _count(want.holdout, test) + _count(want.test, test) - test
    return missing if 0 < missing <= train - want.train else 0


def _set_aside(
    y: np.ndarray, want: Any, default_test: int, seed: int, pool: str, fewer: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw the hold-out, then the test samples.

    Returns:
        positions outside the hold-out, to test on, and to hold out.
    """
    n_holdout = _count(want.holdout, len(y)) - fewer
    n_test = default_test if want.test is None else _count(want.test, len(y))
    if min(n_holdout, n_test) < 1 or n_holdout + n_test > len(y):
        raise UserError(
            f"{pool} has {len(y):,} samples: a hold-out of {n_holdout:,} (holdout) and "
            f"{n_test:,} to test (test) cannot both be drawn from them with at least one each; "
            "change them"
        )
    everything = np.arange(len(y))
    holdout = draw(everything, y, n_holdout, rng_for(seed, "holdout"))
    rest = np.setdiff1d(everything, holdout, assume_unique=True)
    return rest, draw(rest, y, n_test, rng_for(seed, "test")), holdout


def draw(pool: np.ndarray, y: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ``n`` of the positions ``pool``, sorted.

    Each class of ``y[pool]`` gets its share by largest remainder, ties by lot.
    """
    classes, counts = np.unique(y[pool], return_counts=True)
    exact = n * counts / max(len(pool), 1)
    sizes = np.floor(exact).astype(int)
    lots = rng.permutation(len(classes))
    order = np.lexsort((lots, -np.round(exact - sizes, 9)))
    sizes[order[: n - sizes.sum()]] += 1
    chosen = [np.zeros(0, int)]
    for label, size in zip(classes, sizes, strict=True):
        chosen.append(rng.permutation(pool[y[pool] == label])[:size])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def rng_for(seed: int, purpose: str) -> np.random.Generator:
    """Return the generator of one purpose: changing one count leaves the other draws alone."""
    return np.random.Generator(
        np.random.Philox([seed, int.from_bytes(purpose.encode()[:8], "little")])
    )


def _count(amount: int | float, pool: int) -> int:
    return amount if isinstance(amount, int) else round(amount * pool)


def mislabel(
    y: np.ndarray, share: float, n_classes: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Give exactly round(share * n) random samples a uniformly drawn wrong label.

    Canaries audit the most vulnerable samples rather than the average one (Aerni, Zhang and Tramer,
    CCS 2024).

    Returns:
        labels [n] int64, canary [n] bool.
    """
    canary = np.zeros(len(y), bool)
    canary[rng.choice(len(y), round(share * len(y)), replace=False)] = True
    shift = rng.integers(1, n_classes, size=len(y))
    return np.where(canary, (y + shift) % n_classes, y).astype(np.int64), canary


def with_canaries(
    train: Part,
    test: Part,
    holdout: Part,
    share: float,
    n_classes: int,
    rngs: Sequence[np.random.Generator],
    **facts: Any,
) -> Data:
    """Return data of three parts, a share of train and of hold-out mislabelled.

    Args:
        rngs: of train and of hold-out.
        facts: further fields of ``Data``.
    """
    train_y, train_canary = mislabel(train[1], share, n_classes, rngs[0])
    holdout_y, holdout_canary = mislabel(holdout[1], share, n_classes, rngs[1])
    return Data(
        train_x=train[0],
        train_y=train_y,
        test_x=test[0],
        test_y=test[1],
        holdout_x=holdout[0],
        holdout_y=holdout_y,
        n_classes=n_classes,
        train_canary=train_canary,
        holdout_canary=holdout_canary,
        **facts,
    )


def draw_data(
    dataset: Any,
    arrays: Arrays,
    seed: int,
    decode: Callable[[np.ndarray], np.ndarray] = np.asarray,
    **facts: Any,
) -> Data:
    """Split ``train_x``, ``train_y`` and, where there is a test set, ``test_x`` and ``test_y``.
    ``train_client`` [n], where there is one, goes with them.

    Args:
        dataset: its ``name``, ``n_classes`` (None for as many as there are labels) and parameters
            train, test, holdout and label_noise are used.
        decode: turns samples as stored into what a model reads.
        facts: further fields of ``Data``.

    Raises:
        UserError: a split cannot be drawn, or a class is left without a sample to train on.
    """
    want, name = dataset.params, dataset.name
    train_x, train_y = arrays["train_x"], arrays["train_y"]
    pool_x, pool_y = arrays.get("test_x", train_x), arrays.get("test_y", train_y)
    train, test, holdout, spare = split(train_y, arrays.get("test_y"), want, seed, name)
    n_classes = dataset.n_classes or int(train_y.max()) + 1
    _require_every_class(train_y[train], n_classes, name)
    holdout_x, holdout_y = pool_x[holdout], pool_y[holdout]
    if len(spare):
        holdout_x = np.concatenate([holdout_x, train_x[spare]])
        holdout_y = np.concatenate([holdout_y, train_y[spare]])
    facts |= _clients(arrays, train, holdout, spare)
    if len(train) < len(train_y):  # all of them need no copy
        train_x, train_y = train_x[train], train_y[train]
    return with_canaries(
        (decode(train_x), train_y),
        (decode(pool_x[test]), pool_y[test]),
        (decode(holdout_x), holdout_y),
        want.label_noise,
        n_classes,
        (rng_for(seed, "noise-t"), rng_for(seed, "noise-h")),
        **facts,
    )


def number_clients(train: np.ndarray, test: np.ndarray | None = None) -> Arrays:
    """Return ``train_client`` and ``test_client`` [n] int64 of clients' names: numbers in the order
    of the sorted names of train; -1 for a client that train lacks.
    """
    names, numbers = np.unique(train, return_inverse=True)
    arrays = {"train_client": numbers.astype(np.int64)}
    if test is not None:
        position = np.searchsorted(names, test).clip(max=len(names) - 1)
        arrays["test_client"] = np.where(names[position] == test, position, -1)
    return arrays


def _clients(
    arrays: Arrays, train: np.ndarray, holdout: np.ndarray, spare: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the clients of training and hold-out samples, where a data set has them."""
    client = arrays.get("train_client")
    if client is None:
        return {}
    pool = arrays.get("test_client", client)
    return {
        "train_client": client[train],
        "holdout_client": np.concatenate([pool[holdout], client[spare]]),
    }


def _require_every_class(y: np.ndarray, n_classes: int, name: str) -> None:
    absent = np.setdiff1d(np.arange(n_classes), y)
    if len(absent):
        raise UserError(
            f"{name}: with {len(y):,} training samples {len(absent)} of {n_classes} classes have "
            f"none (the first: class {absent[0]}); raise train, lower test and holdout, or add "
            "samples"
        )
