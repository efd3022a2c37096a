"""How the trees of random forests grow: all of them by one level at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_ROUNDING = 1e-12  # gains that differ by less are equal
_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Bags(NamedTuple):
    """Bootstrap samples of T trees: ``counts`` [T, n], how often each sample was drawn; ``keys`` [T] uint64 of their features."""

    counts: np.ndarray
    keys: np.ndarray


class Ranked(NamedTuple):
    """n samples by their rank in every feature: ``rank`` [n, d], equal values alike; ``value`` [n, d], of rank r in row r;
    ``member`` [n] bool."""

    rank: np.ndarray
    value: np.ndarray
    member: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, member: np.ndarray) -> Ranked:
        """Of ``x`` [n, d], ``member`` [n] bool."""
        order = np.argsort(x, axis=0, kind="stable")
        value, larger = np.take_along_axis(x, order, axis=0), np.zeros(x.shape, np.int64)
        np.cumsum(value[1:] > value[:-1], axis=0, out=larger[1:])
        rank, of_rank = np.empty_like(larger), np.zeros_like(value)
        np.put_along_axis(rank, order, larger, axis=0)
        np.put_along_axis(of_rank, larger, value, axis=0)
        return cls(rank, of_rank, member)


class Trees(NamedTuple):
    """T trees with at most S splits, as ``Forest`` has them, but in any order."""

    splits: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    first: np.ndarray
    right: np.ndarray
    share: np.ndarray

    def some(self, which: slice) -> Trees:
        """Part of them."""
        return Trees(*(a[which] for a in self))


class _Level(NamedTuple):
    """The nodes of one depth: ``tree`` of each, its ``share`` of members and its split, if ``left`` > 0: the number of its left
    child, which the right one follows."""

    tree: np.ndarray
    share: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray


class _Samples(NamedTuple):
    """The samples in some nodes: ``row`` of each, how often it counts (``weight``), and its ``node``."""

    row: np.ndarray
    weight: np.ndarray
    node: np.ndarray


class _Cuts(NamedTuple):
    """Which nodes are split, by which feature, after the samples of which rank, and the next rank in the node."""

    node: np.ndarray
    feature: np.ndarray
    rank: np.ndarray
    next: np.ndarray


def grown(parts: Sequence[tuple[Ranked, Bags]], leaf: int, asked: int) -> list[Trees]:
    """The trees of each part; ``leaf`` and ``asked`` as for ``grow``."""
    ranked = Ranked(*(np.concatenate(arrays) for arrays in zip(*(r for r, _ in parts), strict=True)))
    begins = np.cumsum([0, *(len(r.member) for r, _ in parts)])
    trees = np.cumsum([0, *(len(bags.keys) for _, bags in parts)])
    where = [np.nonzero(bags.counts) for _, bags in parts]
    samples = _Samples(
        np.concatenate([b + row for b, (_, row) in zip(begins, where, strict=False)]),
        np.concatenate([bags.counts[at] for (_, bags), at in zip(parts, where, strict=True)]),
        np.concatenate([t + tree for t, (tree, _) in zip(trees, where, strict=False)]),
    )
    begin = np.repeat(begins[:-1], np.diff(trees))  # [T] of each tree's rows
    levels = _levels(ranked, samples, begin, np.concatenate([bags.keys for _, bags in parts]), leaf, asked)
    whole = _trees(levels)
    return [whole.some(slice(a, b)) for a, b in itertools.pairwise(trees)]


def _levels(ranked: Ranked, samples: _Samples, begin: np.ndarray, key: np.ndarray, leaf: int, asked: int) -> list[_Level]:
    """From the roots, one a tree, down to where nothing is split."""
    tree, made, levels = np.arange(len(begin)), len(begin), []
    while len(tree):
        row, weight, node = samples
        size, all_, members = (np.bincount(node, w, len(tree)) for w in (None, weight, weight * ranked.member[row]))
        mixed = np.flatnonzero((size >= 2 * leaf) & (members > 0) & (members < all_))
        cuts = _cuts(ranked, samples, mixed, key, leaf, asked)
        feature, left, threshold = np.zeros(len(tree), np.int64), np.zeros(len(tree), np.int64), np.zeros(len(tree))
        feature[cuts.node], left[cuts.node] = cuts.feature, made + 2 * np.arange(len(cuts.node))
        low, high = (ranked.value[begin[tree[cuts.node]] + rank, cuts.feature] for rank in (cuts.rank, cuts.next))
        middle = low / 2 + high / 2
        threshold[cuts.node] = np.where(middle < high, middle, low)  # of neighbours there is no middle
        levels.append(_Level(tree, members / all_, feature, threshold, left))
        last, child = np.zeros(len(tree), np.int64), left - made
        last[cuts.node] = cuts.rank
        kept = left[node] > 0
        row, weight, node = row[kept], weight[kept], node[kept]
        samples = _Samples(row, weight, child[node] + (ranked.rank[row, feature[node]] > last[node]))
        tree, made = tree[cuts.node].repeat(2), made + 2 * len(cuts.node)
        key = _mixed(key[cuts.node, None] + _GOLDEN * np.arange(1, 3, dtype=np.uint64)).ravel()
    return levels


def _cuts(ranked: Ranked, samples: _Samples, nodes: np.ndarray, key: np.ndarray, leaf: int, asked: int) -> _Cuts:
    """The best split of each of ``nodes`` that can be split, ordered by node."""
    d, found = ranked.rank.shape[1], []
    order = np.argsort(_mixed(key[nodes, None] ^ (_GOLDEN * np.arange(3, 3 + d, dtype=np.uint64))), axis=1)
    for tried in range(0, d, asked):
        if not len(nodes):
            break
        index = np.full(len(key), -1)
        index[nodes] = np.arange(len(nodes))
        mine = index[samples.node]
        row, weight, mine = (a[mine >= 0] for a in (samples.row, samples.weight, mine))
        best = _best(ranked, _Samples(row, weight, mine), order[:, tried : tried + asked], leaf)
        found.append(best._replace(node=nodes[best.node]))
        missed = np.ones(len(nodes), bool)
        missed[best.node] = False
        nodes, order = nodes[missed], order[missed]
    if not found:
        return _Cuts(*(np.zeros(0, np.int64),) * 4)
    together = _Cuts(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))
    by_node = np.argsort(together.node)
    return _Cuts(*(a[by_node] for a in together))


def _best(ranked: Ranked, samples: _Samples, features: np.ndarray, leaf: int) -> _Cuts:
    """Of each of A nodes the split by one of its ``features`` [A, m] with the lowest impurity, the first of equal ones.

    One sort puts the samples of every (node, feature) into the feature's order: the number that is sorted says all of a sample
    that is needed afterwards.
    """
    row, weight, node = samples
    (nodes, m), ranks, weights = features.shape, len(ranked.rank), int(weight.max()) + 1
    rank = ranked.rank[row[:, None], features[node]]  # [E, m]
    kind = 2 * weight + ranked.member[row]
    sorted_ = (((node[:, None] * m + np.arange(m)) * ranks + rank) * (2 * weights) + kind[:, None]).ravel()
    top = nodes * m * ranks * 2 * weights
    sorted_ = np.sort(sorted_.astype(np.uint32 if top < 2**32 else np.uint64))
    place, kind = np.divmod(sorted_, sorted_.dtype.type(2 * weights))
    weight = (kind >> 1).astype(np.int64)
    sizes = np.bincount(node, minlength=nodes).repeat(m)  # of each (node, feature)
    ends = np.cumsum(sizes)
    group = np.arange(nodes * m).repeat(sizes)
    at = np.arange(len(place)) - (ends - sizes)[group]  # how many stand before
    apart = np.append(place[1:] != place[:-1], False)
    open_ = np.flatnonzero(apart & (at + 1 >= leaf) & (at + 1 <= sizes[group] - leaf))
    of = group[open_]
    left, left_members = (_within(np.cumsum(w), open_, of, ends, sizes) for w in (weight, weight * (kind & 1)))
    all_, members = (np.bincount(node, w, nodes)[of // m] for w in (samples.weight, samples.weight * ranked.member[row]))
    # the Gini impurity of a split is lowest where this is largest
    gain = left_members**2 / left + (members - left_members) ** 2 / (all_ - left)
    of_node = of // m
    begins = np.flatnonzero(np.diff(of_node, prepend=-1))
    if not len(begins):
        return _Cuts(*(np.zeros(0, np.int64),) * 4)
    highest = np.maximum.reduceat(gain, begins)
    first = np.flatnonzero(gain >= (highest * (1 - _ROUNDING)).repeat(np.diff(begins, append=len(gain))))
    first = first[np.flatnonzero(np.diff(of_node[first], prepend=-1))]
    here, split = open_[first], of_node[first]
    low, high = (place[i].astype(np.int64) % ranks for i in (here, here + 1))
    return _Cuts(split, features[split, of[first] % m], low, high)


def _within(total: np.ndarray, at: np.ndarray, group: np.ndarray, ends: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The running ``total`` at each of ``at``, counted from where its group begins."""
    before = np.append(0, total)[ends - sizes]
    return (total[at] - before[group]).astype(np.float64)


def _mixed(keys: np.ndarray) -> np.ndarray:
    """uint64 that look drawn at random. Source: Steele et al., OOPSLA 2014 (SplitMix64)."""
    keys = (keys ^ (keys >> np.uint64(30))) * _FIRST
    keys = (keys ^ (keys >> np.uint64(27))) * _SECOND
    return np.asarray(keys ^ (keys >> np.uint64(31)))


def _trees(levels: list[_Level]) -> Trees:
    """The leaves of every tree numbered from left to right."""
    numbers = np.split(np.arange(sum(len(level.tree) for level in levels)), np.cumsum([len(level.tree) for level in levels])[:-1])
    tree, share, feature, threshold, left = (np.concatenate(arrays) for arrays in zip(*levels, strict=True))
    below, first = (left == 0).astype(np.int32), np.zeros(len(left), np.int32)
    for number in numbers[::-1]:
        at = number[left[number] > 0]
        below[at] = below[left[at]] + below[left[at] + 1]
    for number in numbers:
        at = number[left[number] > 0]
        first[left[at]], first[left[at] + 1] = first[at], first[at] + below[left[at]]
    trees = len(levels[0].tree)
    inner = np.flatnonzero(left)
    inner = inner[np.argsort(tree[inner], kind="stable")]
    splits = np.bincount(tree[inner], minlength=trees)
    slot = tree[inner], np.arange(len(inner)) - np.repeat(np.cumsum(splits) - splits, splits)
    shape = trees, int(splits.max())

    def table(of_splits: np.ndarray) -> np.ndarray:
        filled = np.zeros(shape, of_splits.dtype)
        filled[slot] = of_splits
        return filled

    shares, ends = np.zeros((trees, shape[1] + 1)), left == 0
    shares[tree[ends], first[ends]] = share[ends]
    right = table(first[left[inner] + 1])
    return Trees(splits, table(feature[inner]), table(threshold[inner]), table(first[inner]), right, shares)
