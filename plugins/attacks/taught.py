"""Attacks on one round that learn: a model for every audited round, and no candidate is scored by one that it taught."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedbench.core import Attack, Audit, Colluder, Observations, Params, SkipCell
from fedbench.plugins.attacks.crossfit import FOLDS, folds
from fedbench.plugins.attacks.one_thread import one_thread


class Teaching(Params):
    """Whose models an attack reads, and who teaches it."""

    view: Literal["server", "client"] = Field(
        "server", description="whose models it reads: the target's uploads (server), or the global model (client)"
    )
    teacher: Literal["colluder", "half"] = Field(
        "colluder",
        description="whose membership it knows: a colluding client's (its own samples against its test part or, where clients "
        "have none, the rest of the pool), or that of a random half of the candidates, judged on the other half (the papers' "
        "supervised attacker, an upper bound)",
    )


class Taught(Attack):
    """What every attack with a teacher declares.

    Lessons of a colluder are of its own models in the view ``server``, and of the global model in the view ``client``. Where
    clients have no test part, the other participants' samples are among its non-members there, since it does not know whose
    they are.
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
        """0; None where half of the candidates teaches: two halves are put on one scale by ranks, which have no zero."""
        return None if self.knows_half else 0.0

    def _folds(self, ids: np.ndarray) -> np.ndarray:
        """[n] which model scores each sample: the one that has not learnt from it. The engine keeps the halves apart itself."""
        return np.zeros(len(ids), np.int64) if self.knows_half else folds(ids, self._key)

    def _lessons(self, ids: np.ndarray, member: np.ndarray) -> list[np.ndarray]:
        """[n] bool for each model: what it learns from. Raises ``SkipCell`` where a side is missing."""
        fold = self._folds(ids)
        chosen = [np.ones(len(ids), bool)] if self.knows_half else [fold != f for f in range(FOLDS)]
        if any(np.unique(member[seen]).size < 2 for seen in chosen):
            raise SkipCell("there are too few samples to learn from: each fold needs members and non-members")
        return chosen


class Lesson(NamedTuple):
    """What one model learns from in one round: ``x`` [n, d], ``member`` [n] bool, labels ``y`` [n]; ``rng``: its own draws."""

    x: np.ndarray
    member: np.ndarray
    y: np.ndarray
    rng: np.random.Generator


class TaughtByRound(Taught):
    """Score = what a model says that has learnt from the same round of its teacher; the last round of the target counts.

    In a round without the colluder, its last lessons before it stand in; before its first ones, those.
    A subclass implements ``_features``, ``_learn`` and ``_answer``.
    """

    def _features(self, observations: Observations, y: np.ndarray) -> np.ndarray:
        """[R, n, d] float64: what is read of each sample on the target's row, NaN in a round without the target."""
        raise NotImplementedError(f"{type(self).__name__} does not implement _features(observations, y)")

    def _learn(self, x: np.ndarray, member: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Any:
        """A model fitted to ``x`` [n, d], ``member`` [n] bool and labels ``y`` [n]."""
        raise NotImplementedError(f"{type(self).__name__} does not implement _learn(x, member, y, rng)")

    def _answer(self, models: Sequence[Any], fold: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """[n]: the scores of ``x`` [n, d], higher = member; ``models[fold[i]]`` has not learnt from sample i."""
        return self._each_by_its_own(models, fold, x, y)

    def _each_by_its_own(self, models: Sequence[Any], fold: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """[n]: what the model of each sample's fold says of it."""
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
        x, member, y = self._features(shadow.observations, shadow.y), np.asarray(shadow.member), np.asarray(shadow.y)
        lessons = self._lessons(shadow.ids, member)
        taught = rounds_taught(x)
        rounds = sorted({*taught})
        # draws of their own: what one model learns changes nothing in another
        draws = [rng.spawn(len(lessons)) for rng in audit.rng.spawn(len(rounds))]
        each = [
            Lesson(x[r, seen], member[seen], y[seen], own)
            for r, of_round in zip(rounds, draws, strict=True) for seen, own in zip(lessons, of_round, strict=True)
        ]  # fmt: skip
        with one_thread():
            learnt = iter(self._learn_each(each))
        models = {r: list(islice(learnt, len(lessons))) for r in rounds}
        self._models = [models[r] for r in taught]

    def _learn_each(self, lessons: Sequence[Lesson]) -> list[Any]:
        """A model for every lesson; a subclass that can learn several at once does so here."""
        return [self._learn(*lesson) for lesson in lessons]

    def score_rounds(self, observations: Observations, audit: Audit) -> np.ndarray | None:
        """[R, n]; a row of NaN for a round without the target."""
        x = self._features(observations, audit.y)
        return np.stack([self._round(r, x[r], audit) for r in range(len(x))])

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        x = self._features(observations, audit.y)
        there = np.flatnonzero(~np.isnan(x).any(axis=(1, 2)))
        if len(there) == 0:
            raise SkipCell("the target took part in no audited round that this attack can use")
        return self._round(int(there[-1]), x[there[-1]], audit)

    def _round(self, r: int, x: np.ndarray, audit: Audit) -> np.ndarray:
        if np.isnan(x).any():
            return np.full(len(x), np.nan)
        with one_thread():
            return self._answer(self._models[r], self._folds(audit.ids), x, np.asarray(audit.y))


def rounds_taught(x: np.ndarray) -> list[int]:
    """For each round of ``x`` [R, n, d], the one whose lessons are used: itself, or the last before it without NaN, or the
    first there is. Raises ``SkipCell`` where there is none."""
    there = ~np.isnan(x).any(axis=(1, 2))
    if not there.any():
        raise SkipCell("the teacher took part in no audited round")
    latest = np.maximum.accumulate(np.where(there, np.arange(len(x)), -1))
    return [int(r) for r in np.where(latest < 0, np.argmax(there), latest)]


def balanced(member: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Positions of as many members as non-members of ``member`` [n] bool, drawn without replacement; in order."""
    sides = [np.flatnonzero(member), np.flatnonzero(~member)]
    fewest = min(map(len, sides))
    return np.sort(np.concatenate([rng.permutation(side)[:fewest] for side in sides]))
