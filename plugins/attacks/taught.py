"""Attacks that learn from a colluding client or from half of the candidates; no candidate is scored
by a model that learnt from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy import ndarray
from pydantic import Field
from threadpoolctl import threadpool_limits

from fedbench.core import Attack, Audit, Colluder, Observations, Params, SkipCell
from fedbench.plugins.attacks.measures import last_known, last_round

FOLDS = 2
Scorer = Callable[..., ndarray]  # features of n samples -> [n], higher = member


def folds(ids: ndarray, key: int) -> ndarray:
    """Return 0 or 1 for each of ``ids`` [n], by a keyed hash of the id alone: a sample is in one
    fold wherever it appears.
    """
    secret = (key & (2**64 - 1)).to_bytes(8, "little")
    digests = (hashlib.blake2b(str(i).encode(), key=secret, digest_size=1).digest() for i in ids)
    return np.array([digest[0] % FOLDS for digest in digests])


def score_by_fold(models: Sequence[Scorer], fold: ndarray, *x: ndarray) -> ndarray:
    """Return the scores [n] of samples with the features ``x`` [n, ...]: ``models[fold[i]]`` scores
    sample i.
    """
    score = np.empty(len(fold), np.float64)
    for f, model in enumerate(models):
        rows = fold == f
        if rows.any():
            score[rows] = model(*(features[rows] for features in x))
    return score


class Taught(Attack):
    """Base of the attacks that learn from samples of known membership.

    A sample may be in the teacher's pool and among the candidates. There is a model for each of two
    folds, and a sample is scored by the one that has not learnt from it. With ``knows_half`` the
    engine separates lessons and candidates, and there is one model.
    """

    colluders = 1
    _key = 0

    def fit(self, shadows: Sequence[Colluder], audit: Audit) -> None:
        if not shadows:
            raise SkipCell("no client other than the target is left to collude with the attacker")
        self._key = audit.key
        self._learn_from(shadows, audit)

    def _learn_from(self, shadows: Sequence[Colluder], audit: Audit) -> None:
        raise NotImplementedError

    def _folds(self, ids: ndarray) -> ndarray:
        """Return the number of the model that scores each of ``ids`` [n]."""
        if self.knows_half:
            return np.zeros(len(ids), np.int64)
        return folds(ids, self._key)

    def _lessons(self, ids: ndarray, member: ndarray) -> list[ndarray]:
        """Return which samples each model learns from, [n] bool.

        Raises ``SkipCell`` where a lesson lacks members or non-members.
        """
        if self.knows_half:
            lessons = [np.ones(len(ids), bool)]
        else:
            fold = self._folds(ids)
            lessons = [fold != f for f in range(FOLDS)]
        if any(np.unique(member[rows]).size < 2 for rows in lessons):
            raise SkipCell(
                "there are too few samples to learn from: each fold needs members and non-members"
            )
        return lessons


class TaughtBySeries(Taught):
    """Base of the nets that learn all rounds of one colluding client: its own models, its own
    members against the rest of the pool.
    """

    def _features(self, observations: Observations, y: ndarray) -> ndarray:
        """Return what the net reads about samples labelled ``y`` [n] on the target's row, [n, ...]
        float32.
        """
        raise NotImplementedError

    def _learn(self, x: ndarray, member: ndarray, generator: torch.Generator) -> Scorer:
        """Fit a net to ``x`` [n, ...] and ``member`` [n] bool."""
        raise NotImplementedError

    def _learn_from(self, shadows: Sequence[Colluder], audit: Audit) -> None:
        shadow = shadows[0]
        x = self._features(shadow.observations, shadow.y)
        member = np.asarray(shadow.member, bool)
        self._models = [
            self._learn(x[rows], member[rows], audit.generator)
            for rows in self._lessons(shadow.ids, member)
        ]

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        x = self._features(observations, audit.y)
        return score_by_fold(self._models, self._folds(audit.ids), x)


class Teaching(Params):
    """Parameters of an attack with a choice of teacher."""

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


class WithTeacher(Taught):
    """Base of the attacks that a colluder or half of the candidates teaches.

    Lessons of a colluder are of its own models in the view ``server``, and of the global model in
    the view ``client``. Where clients have no test part, its non-members include other
    participants' samples, since it does not know which they are.
    """

    Params = Teaching

    @property
    def view(self) -> Literal["server", "client"]:  # type: ignore[override]
        """The parameter ``view``."""
        return self.params.view  # type: ignore[no-any-return]

    @property
    def colluders(self) -> int:  # type: ignore[override]
        """1 where a colluder teaches."""
        return int(self.params.teacher == "colluder")

    @property
    def knows_half(self) -> bool:  # type: ignore[override]
        """Whether half of the candidates teaches."""
        return self.params.teacher == "half"

    @property
    def threshold(self) -> float | None:  # type: ignore[override]
        """0; None where half of the candidates teaches: ranks within two halves have no zero."""
        return None if self.knows_half else 0.0


class TaughtByRound(WithTeacher):
    """Base of the attacks that learn each round from the teacher's same round; the score is that of
    the target's last round.

    In a round without the colluder, its last lessons before it stand in; before its first ones,
    those.
    """

    def _features(self, observations: Observations, y: ndarray) -> ndarray:
        """Return what is read about samples labelled ``y`` [n] on the target's row, [R, n, d]
        float64; NaN in a round without the target.
        """
        raise NotImplementedError

    def _learn(self, x: ndarray, member: ndarray, y: ndarray, rng: np.random.Generator) -> Scorer:
        """Fit a model to ``x`` [n, d], ``member`` [n] bool and labels ``y`` [n]."""
        raise NotImplementedError

    def _answer(self, models: Sequence[Scorer], fold: ndarray, x: ndarray, y: ndarray) -> ndarray:
        """Return the scores [n] of ``x`` [n, d] with labels ``y`` [n] in one round."""
        return score_by_fold(models, fold, x)

    def _learn_from(self, shadows: Sequence[Colluder], audit: Audit) -> None:
        shadow = shadows[0]
        x = self._features(shadow.observations, shadow.y)
        member = np.asarray(shadow.member)
        y = np.asarray(shadow.y)
        lessons = self._lessons(shadow.ids, member)
        teaching_rounds = last_known(~np.isnan(x).any(axis=(1, 2))).tolist()
        rounds = sorted(set(teaching_rounds))
        models = {}
        with threadpool_limits(limits=1):
            for r, round_rng in zip(rounds, audit.rng.spawn(len(rounds)), strict=True):
                # a generator for each model: what one learns changes nothing in another
                generators = round_rng.spawn(len(lessons))
                models[r] = [
                    self._learn(x[r, rows], member[rows], y[rows], rng)
                    for rows, rng in zip(lessons, generators, strict=True)
                ]
        self._models = [models[r] for r in teaching_rounds]

    def score_rounds(self, observations: Observations, audit: Audit) -> ndarray | None:
        """Return [R, n], a row of NaN for a round without the target."""
        x = self._features(observations, audit.y)
        return np.stack([self._round(r, x[r], audit) for r in range(len(x))])

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        x = self._features(observations, audit.y)
        r = last_round(x)
        return self._round(r, x[r], audit)

    def _round(self, r: int, x: ndarray, audit: Audit) -> ndarray:
        if np.isnan(x).any():
            return np.full(len(x), np.nan)
        with threadpool_limits(limits=1):
            return self._answer(self._models[r], self._folds(audit.ids), x, np.asarray(audit.y))


def balanced(member: ndarray, permutation: Callable[[int], ndarray]) -> ndarray:
    """Draw as many members as non-members of ``member`` [n] bool without replacement; return their
    positions in order.
    """
    sides = [np.flatnonzero(member), np.flatnonzero(~member)]
    fewest = min(map(len, sides))
    drawn = [side[permutation(len(side))[:fewest]] for side in sides]
    return np.sort(np.concatenate(drawn))
