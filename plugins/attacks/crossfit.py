"""Attacks that learn from a colluding client: sample-wise cross-fitting keeps learning and evaluation apart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedbench.core import Attack, Audit, Colluder, Observations, SkipCell

FOLDS = 2


class CrossFitted(Attack):
    """Learns from one colluding client: its own models, its own members against the rest of the pool.

    A sample may be in the colluder's pool and among the candidates; it is scored by the net that never saw it.
    A subclass implements ``_features``, ``_learn`` and ``_logit``.
    """

    colluders = 1

    def _features(self, observations: Observations, y: np.ndarray) -> np.ndarray:
        """[n, ...] float32: what the net reads about each sample, labelled ``y`` [n], on the target's row."""
        raise NotImplementedError(f"{type(self).__name__} does not implement _features(observations, y)")

    def _learn(self, x: np.ndarray, member: np.ndarray, generator: torch.Generator) -> Any:
        """A net fitted to ``x`` [n, ...] and ``member`` [n] bool."""
        raise NotImplementedError(f"{type(self).__name__} does not implement _learn(x, member, generator)")

    def _logit(self, net: Any, x: np.ndarray) -> np.ndarray:
        """[n] float64: the net's score of ``x``, higher = member."""
        raise NotImplementedError(f"{type(self).__name__} does not implement _logit(net, x)")

    def fit(self, shadows: Sequence[Colluder], audit: Audit) -> None:
        if not shadows:
            raise SkipCell("no client other than the target is left to collude with the attacker")
        shadow = shadows[0]
        x, member = self._features(shadow.observations, shadow.y), np.asarray(shadow.member, bool)
        self._key = audit.key
        fold = folds(shadow.ids, self._key)
        self._nets: list[Any] = []
        for f in range(FOLDS):
            seen = fold != f
            if len(np.unique(member[seen])) < 2:
                raise SkipCell("the colluding client has too few samples to learn from in each fold")
            self._nets.append(self._learn(x[seen], member[seen], audit.generator))

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        x, fold = self._features(observations, audit.y), folds(audit.ids, self._key)
        score = np.empty(len(fold), np.float64)
        for f, net in enumerate(self._nets):
            unseen = fold == f
            score[unseen] = self._logit(net, x[unseen])
        return score


def folds(ids: np.ndarray, key: int) -> np.ndarray:
    """[n] 0 or 1 by a keyed hash of the id alone, so that a sample is in one fold wherever it appears."""
    secret = (key & (2**64 - 1)).to_bytes(8, "little")
    return np.array([hashlib.blake2b(str(i).encode(), key=secret, digest_size=1).digest()[0] % FOLDS for i in ids])
