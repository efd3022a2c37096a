"""Random forests in NumPy: the trees of many forests grow together, level by level, and a forest answers all samples at once.

An attack's lessons are a hundred samples: a call for every tree, its checks and its dispatch, costs ten times what the tree does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedbench.plugins.attacks.trained.base import Prepared
from fedbench.plugins.attacks.trained.growth import Bags, Ranked, Trees, grown

BLOCK = 2**16  # samples of trees that grow together: what a level fills stays in the cache


@dataclass(frozen=True, kw_only=True)
class Forest:
    """T trees with at most S splits, those with the most splits first; a tree's leaves are numbered from left to right.

    ``splits``: [T] how many a tree has; they come from the root downwards. ``feature``, ``threshold``: [T, S], larger values go
    right. ``first``: [T, S] the first leaf below a split, ``right``: [T, S] the first one on its right. ``share``: [T, S + 1] of
    members in each leaf.
    """

    splits: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    first: np.ndarray
    right: np.ndarray
    share: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[Trees]) -> Forest:
        """The trees of ``parts``, together."""
        splits = np.concatenate([part.splits for part in parts])
        order, width = np.argsort(-splits, kind="stable"), int(splits.max())

        def together(name: str, columns: int) -> np.ndarray:
            arrays = [getattr(part, name) for part in parts]
            return np.concatenate([np.pad(a, ((0, 0), (0, max(0, columns - a.shape[1]))))[:, :columns] for a in arrays])[order]

        named = {name: together(name, width) for name in ("feature", "threshold", "first", "right")}
        return cls(splits=splits[order], share=together("share", width + 1), **named)

    def leaves(self, x: np.ndarray) -> np.ndarray:
        """[T, n]: the leaf in which each of ``x`` [n, d] ends.

        A sample stands at the first leaf below the node that it has come to. Splits are gone through from the root downwards, so
        it has come to a split if it stands at that split's first leaf; it moves to the first one on the right, or stays.
        """
        columns, at = np.ascontiguousarray(x.T), np.zeros((len(self.splits), len(x)), np.int32)
        for i in range(self.feature.shape[1]):
            t = int(np.searchsorted(-self.splits, -i))  # trees with more than i splits
            goes = columns[self.feature[:t, i]] > self.threshold[:t, i, None]
            goes &= at[:t] == self.first[:t, i, None]
            np.copyto(at[:t], self.right[:t, i, None], where=goes)
        return at

    def shares(self, x: np.ndarray) -> np.ndarray:
        """[n]: the trees' mean share of members where each of ``x`` [n, d] ends."""
        where = self.leaves(x)
        where += np.arange(len(where), dtype=np.int32)[:, None] * self.share.shape[1]
        return np.asarray(self.share.ravel()[where].mean(axis=0))


def grow(lessons: Sequence[Prepared], trees: int, leaf: int, asked: int) -> list[Forest]:
    """A forest of ``trees`` for each lesson, each tree on a bootstrap sample of its own.

    A node of 2 ``leaf`` samples and more, not all of one kind, is split by the best of ``asked`` features that are drawn for it:
    the lowest Gini impurity, with ``leaf`` samples at least on either side, midway between two of them. Where none of these
    features can split it, the next ones are asked. What a forest draws depends on its own lesson alone.
    Source: Breiman, Machine Learning 2001; the rules are those of scikit-learn's ``RandomForestClassifier``.
    """
    parts: list[list[Trees]] = [[] for _ in lessons]
    for block in _blocks(_bags(lessons, trees)):
        whole = grown([(Ranked.of(lessons[k].x, lessons[k].member), bags) for k, bags in block], leaf, asked)
        for (k, _), part in zip(block, whole, strict=True):
            parts[k].append(part)
    return [Forest.of(each) for each in parts]


def _bags(lessons: Sequence[Prepared], trees: int) -> Iterator[tuple[int, Bags]]:
    """(which lesson, the bootstrap samples of some of its trees), lesson by lesson."""
    for k, lesson in enumerate(lessons):
        rng, n = np.random.default_rng(lesson.seed), len(lesson.x)
        keys = rng.integers(0, 2**64, trees, np.uint64)
        for some in np.split(keys, range(max(1, BLOCK // n), trees, max(1, BLOCK // n))):
            drawn = rng.integers(0, n, (len(some), n)) + n * np.arange(len(some))[:, None]
            yield k, Bags(np.bincount(drawn.ravel(), minlength=n * len(some)).reshape(-1, n), some)


def _blocks(bags: Iterator[tuple[int, Bags]]) -> Iterator[list[tuple[int, Bags]]]:
    """As many at a time as stay in the cache."""
    block: list[tuple[int, Bags]] = []
    for k, bag in bags:
        if block and bag.counts.size + sum(b.counts.size for _, b in block) > BLOCK:
            yield block
            block = []
        block.append((k, bag))
    yield block
