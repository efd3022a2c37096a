"""Attribute a non-finite update or model to the training, a defense, the aggregation rule or the
adversary.

The cause is the step that made finite numbers non-finite; the rule only if no row is too large to
be squared. The cause is the adversary where only its rows are too large, or where training fails
from a model that took rows of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from fedbench.core.contract.defense import Defense, innermost, overrides
from fedbench.core.contract.errors import Diverged
from fedbench.core.contract.phases import phases
from fedbench.core.federation.setup import Setup, Uploads

_LEAST = 0.1  # of the largest honest row: smaller ones of an adversary move no model


class DivergedByAdversary(Diverged):
    """An adversary's success: a result of the run, not a failure."""


def finite(rows: torch.Tensor) -> bool:
    """Whether all elements are. A sum of finite float32 numbers can overflow: only then each is
    looked at.
    """
    return bool(torch.isfinite(rows.sum())) or bool(torch.isfinite(rows).all())


def _ordinary(rows: torch.Tensor) -> bool:
    """Whether the squared norm of every row [n, P] is a float32, too."""
    return bool(torch.isfinite(rows.square().sum(1)).all())


def _largest(rows: torch.Tensor) -> float:
    """The largest absolute value in the rows [n, P]; 0 without rows. Norms of large rows
    overflow.
    """
    return float(rows.abs().max()) if len(rows) else 0.0


class Causes:
    """The causes known so far in one training: phases that made a row non-finite, and models that
    took an adversary's rows.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self._started = setup, setup.flat.state.clone()
        self._spoilt: dict[int, str] = {}  # client -> the phase that made its row what it is
        # global model -> the first round in which it took rows of the adversary's that count
        self._since: dict[int, int] = {}

    def watch(
        self, members: Sequence[int], before: Sequence[bool], after: torch.Tensor, phase: str
    ) -> None:
        """The members' rows [m, P] after a phase, and whether each was finite before it."""
        for k, was, row in () if finite(after) else zip(members, before, after, strict=True):
            if was and not finite(row):
                self._spoilt[k] = _names(self._setup.defense, (phase,))

    def require_rows(self, uploads: Uploads) -> None:
        """Raise :class:`Diverged` where a row of a round is not finite. Of an adversary's own, none
        such are left.
        """
        if finite(uploads.updates):
            return
        who = zip(uploads.participants, uploads.model_of, strict=True)
        bad = [(k, j) for (k, j), row in zip(who, uploads.updates, strict=True) if not finite(row)]
        trained = [(k, j) for k, j in bad if k not in self._spoilt]
        if trained:
            for k, j in trained:
                x, flat = self._setup.clients[k].x, self._setup.flat
                start = replace(self._started, params=self._setup.initial[j])
                if not finite(flat.logits(start, x)):
                    raise Diverged(
                        f"round {uploads.round}: the outputs of the initial model for client {k} "
                        "are not "
                        "finite, before any training; fix the model or the data"
                    )
            text = (
                f"round {uploads.round}: the local training of client "
                f"{_list(k for k, _ in trained)} is not finite"
            )
            if poisoned := [self._since[j] for _, j in trained if j in self._since]:
                raise DivergedByAdversary(
                    f"{text}, from a model that took {self._adversary()} since round "
                    f"{min(poisoned)}"
                )
            raise Diverged(f"{text}; {self._remedy()}")
        phase = next(iter(self._spoilt.values()))
        raise Diverged(
            f"round {uploads.round}: {phase} made the upload of client {_list(k for k, _ in bad)} "
            "not finite; fix it"
        )

    def require_models(self, uploads: Uploads, starts: torch.Tensor, models: torch.Tensor) -> None:
        """Raise :class:`Diverged` where one of the ``models`` [s, P] that were ``starts`` is not
        finite; note who sent rows.
        """
        for j in sorted(set(uploads.model_of)):
            mine = [r for r, to in enumerate(uploads.model_of) if to == j]
            theirs = [r for r in mine if uploads.participants[r] in self._active(uploads.round)]
            honest = [r for r in mine if r not in theirs]
            if not finite(models[j]):
                self._blame(uploads, j, starts[j], mine, honest)
            if theirs and _largest(uploads.updates[theirs]) >= _LEAST * _largest(
                uploads.updates[honest]
            ):
                self._since.setdefault(j, uploads.round)

    def _blame(
        self, uploads: Uploads, j: int, start: torch.Tensor, mine: list[int], honest: list[int]
    ) -> None:
        text = f"round {uploads.round}: the aggregated model is not finite"
        rule = _names(self._setup.defense, ("aggregate",))
        theirs = [r for r in mine if r not in honest]
        if rule and _ordinary(start[None]) and _ordinary(uploads.updates[mine]):
            raise Diverged(
                f"{text}: {rule} made such a step of rows of an ordinary size; fix the rule"
            )
        if not _ordinary(uploads.updates[theirs]) and _ordinary(uploads.updates[honest]):
            passed = f", and {rule} let them in" if rule else ""
            raise DivergedByAdversary(f"{text}: {self._adversary()} are too large{passed}")
        if j in self._since:
            raise DivergedByAdversary(
                f"{text}, and it took {self._adversary()} since round {self._since[j]}"
            )
        raise Diverged(f"{text}; {self._remedy()}")

    def _active(self, round: int) -> tuple[int, ...]:
        """The clients that the adversary controls in this round."""
        insider = self._setup.insider
        return self._setup.malicious if insider is not None and round >= insider.start_round else ()

    def _adversary(self) -> str:
        insider = self._setup.insider
        return (
            f"rows of the attack {type(insider.attack).__name__ if insider else ''} (client "
            f"{_list(self._setup.malicious)})"
        )

    def _remedy(self) -> str:
        names = _names(
            self._setup.defense,
            ("prepare", *phases(stage=("round", "batch", "upload", "rows", "server"))),
        )
        return "lower the learning rate" + (f" or fix {names}" if names else "")


def _list(clients: Iterable[int]) -> str:
    return ", ".join(map(str, clients))


def _names(defense: Defense, names: tuple[str, ...]) -> str:
    """``GradNoise.protect``, of a composite all its parts that act; empty where none does."""
    acting = (
        f"{type(part).__name__}.{name}"
        for part in innermost(defense)
        for name in names
        if overrides(part, name)
    )
    return " and ".join(dict.fromkeys(acting))
