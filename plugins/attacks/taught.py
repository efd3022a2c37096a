"""Attacks that learn from a colluding client or from half of the candidates; no candidate is scored
by a model it taught.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from threadpoolctl import threadpool_limits

from fedbench.core import Attack, Audit, Colluder, Observations, Params, SkipCell
from fedbench.plugins.attacks.measures import last_known, last_round

FOLDS = 2


class CrossFitted(Attack):
    """Learns from one colluding client: its own models, its own members against the rest of the
    pool.

    A sample may be in the colluder's pool and among the candidates; it is scored by the net that
    never saw it. A subclass implements ``_features``, ``_learn`` and ``_logit``.
    """

    colluders = 1

    def _features(self, observations: Observations, y: np.ndarray) -> np.ndarray:
        """[n, ...] float32: what the net reads about each sample, labelled ``y`` [n], on the
        target's row.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not implement _features(observations, y)"
        )

    def _learn(self, x: np.ndarray, member: np.ndarray, generator: torch.Generator) -> Any:
        """A net fitted to ``x`` [n, ...] and ``member`` [n] bool."""
        raise NotImplementedError(
            f"{type(self).__name__} does not implement _learn(x, member, generator)"
        )

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
                raise SkipCell(
                    "the colluding client has too few samples to learn from in each fold"
                )
            self._nets.append(self._learn(x[seen], member[seen], audit.generator))

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        x, fold = self._features(observations, audit.y), folds(audit.ids, self._key)
        score = np.empty(len(fold), np.float64)
        for f, net in enumerate(self._nets):
            unseen = fold == f
            score[unseen] = self._logit(net, x[unseen])
        return score


def folds(ids: np.ndarray, key: int) -> np.ndarray:
    """[n] 0 or 1 by a keyed hash of the id alone, so that a sample is in one fold wherever it
    appears.
    """
    secret = (key & (2**64 - 1)).to_bytes(8, "little")
    return np.array(
        [
            hashlib.blake2b(str(i).encode(), key=secret, digest_size=1).digest()[0] % FOLDS
            for i in ids
        ]
    )


class Teaching(Params):
    """Which models an attack reads, and who teaches it."""

    view: Literal["server", "client"] = Field(
        "server",
        description="which models it reads: the target's uploads (server), or the global model "
        "(client)",
    )
    teacher: Literal["colluder", "half"] = Field(
        "colluder",
        description="which membership it knows: a colluding client's (its own samples against its "
        "test part or, where clients "
        "have none, the rest of the pool), or that of a random half of the candidates, judged on "
        "the other half (the papers' "
        "supervised attacker, an upper bound)",
    )


class Taught(Attack):
    """What every attack with a teacher declares.

    Lessons of a colluder are of its own models in the view ``server``, and of the global model in
    the view ``client``. Where clients have no test part, the other participants' samples are among
    its non-members there, since it does not know their they are.
    """

    Params = Teaching
    _key = 0

    @property
    def view(self) -> Literal["server", "client"]:  # type: ignore[override]
        """As the parameter says."""
        return self.params.view  # type: ignore[no-any-return]

    @property
    def colluders(self) -> int:  # type: ignore[override]
        """One, where a colluder teaches."""
        return int(self.params.teacher == "colluder")

    @property
    def knows_half(self) -> bool:  # type: ignore[override]
        """Whether it is taught by half of the candidates."""
        return self.params.teacher == "half"

    @property
    def threshold(self) -> float | None:  # type: ignore[override]
        """0; None where half of the candidates teaches: two halves are put on one scale by ranks,
        which have no zero.
        """
        return None if self.knows_half else 0.0

    def _folds(self, ids: np.ndarray) -> np.ndarray:
        """[n] which model scores each sample: the one that has not learnt from it. The engine keeps
        the halves apart itself.
        """
        return np.zeros(len(ids), np.int64) if self.knows_half else folds(ids, self._key)

    def _lessons(self, ids: np.ndarray, member: np.ndarray) -> list[np.ndarray]:
        """[n] bool for each model: what it learns from. Raises ``SkipCell`` where a side is
        missing.
        """
        fold = self._folds(ids)
        chosen = [np.ones(len(ids), bool)] if self.knows_half else [fold != f for f in range(FOLDS)]
        if any(np.unique(member[seen]).size < 2 for seen in chosen):
            raise SkipCell(
                "there are too few samples to learn from: each fold needs members and non-members"
            )
        return chosen


class TaughtByRound(Taught):
    """Score = what a model says that has learnt from the same round of its teacher; the last round
    of the target counts.

    In a round without the colluder, its last lessons before it stand in; before its first ones,
    those. A subclass implements ``_features``, ``_learn`` and ``_answer``.
    """

    def _features(self, observations: Observations, y: np.ndarray) -> np.ndarray:
        """[R, n, d] float64: what is read of each sample on the target's row, NaN in a round
        without the target.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not implement _features(observations, y)"
        )

    def _learn(
        self, x: np.ndarray, member: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> Any:
        """A model fitted to ``x`` [n, d], ``member`` [n] bool and labels ``y`` [n]."""
        raise NotImplementedError(
            f"{type(self).__name__} does not implement _learn(x, member, y, rng)"
        )

    def _answer(
        self, models: Sequence[Any], fold: np.ndarray, x: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        """[n]: the scores of ``x`` [n, d], higher = member; ``models[fold[i]]`` has not learnt from
        sample i.
        """
        score = np.empty(len(y), np.float64)
        for f, model in enumerate(models):
            mine = fold == f
            if mine.any():
                score[mine] = self._predict(model, x[mine], y[mine])
        return score

    def _predict(self, model: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """[n]: one model's scores."""
        raise NotImplementedError(f"{type(self).__name__} does not implement _predict(model, x, y)")

    def fit(self, shadows: Sequence[Colluder], audit: Audit) -> None:
        if not shadows:
            raise SkipCell("no client other than the target is left to collude with the attacker")
        shadow, self._key = shadows[0], audit.key
        x, member, y = (
            self._features(shadow.observations, shadow.y),
            np.asarray(shadow.member),
            np.asarray(shadow.y),
        )
        lessons = self._lessons(shadow.ids, member)
        teaching = last_known(~np.isnan(x).any(axis=(1, 2))).tolist()
        rounds = sorted({*teaching})
        # draws of their own: what one model learns changes nothing in another
        draws = [rng.spawn(len(lessons)) for rng in audit.rng.spawn(len(rounds))]
        with threadpool_limits(limits=1):
            learnt = {
                r: [
                    self._learn(x[r, seen], member[seen], y[seen], own)
                    for seen, own in zip(lessons, of_round, strict=True)
                ]
                for r, of_round in zip(rounds, draws, strict=True)
            }
        self._models = [learnt[r] for r in teaching]

    def score_rounds(self, observations: Observations, audit: Audit) -> np.ndarray | None:
        """[R, n]; a row of NaN for a round without the target."""
        x = self._features(observations, audit.y)
        return np.stack([self._round(r, x[r], audit) for r in range(len(x))])

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        x = self._features(observations, audit.y)
        last = last_round(x)
        return self._round(last, x[last], audit)

    def _round(self, r: int, x: np.ndarray, audit: Audit) -> np.ndarray:
        if np.isnan(x).any():
            return np.full(len(x), np.nan)
        with threadpool_limits(limits=1):
            return self._answer(self._models[r], self._folds(audit.ids), x, np.asarray(audit.y))


def balanced(member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Positions of as many members as non-members of ``member`` [n] bool, drawn without
    replacement; in order.
    """
    sides = [np.flatnonzero(member), np.flatnonzero(~member)]
    fewest = min(map(len, sides))
    return np.sort(np.concatenate([rng.permutation(side)[:fewest] for side in sides]))
