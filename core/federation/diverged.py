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
    """Divergence that an adversary caused: a result of the run, not a failure."""


def finite(rows: torch.Tensor) -> bool:
    """Return whether all elements are finite. The sum of finite float32 numbers can overflow: only
    then each is looked at.
    """
    return bool(torch.isfinite(rows.sum())) or bool(torch.isfinite(rows).all())


def _ordinary(rows: torch.Tensor) -> bool:
    """Return whether the squared norm of every row [n, P] is a float32, too."""
    return bool(torch.isfinite(rows.square().sum(1)).all())


def _largest(rows: torch.Tensor) -> float:
    """Return the largest absolute value in the rows [n, P], 0 without rows: norms can overflow."""
    return float(rows.abs().max()) if len(rows) else 0.0


class Causes:
    """Causes noted so far in one training: phases that made a row non-finite, and models that took
    an adversary's rows.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._started = setup.flat.state.clone()
        self._spoilt: dict[int, str] = {}  # client -> the phase that made its row what it is
        # global model -> the first round in which it took rows of the adversary's that count
        self._since: dict[int, int] = {}

    def watch(
        self,
        members: Sequence[int],
        before: Sequence[bool],
        after: torch.Tensor,
        phase: str,
    ) -> None:
        """Note the phase that made members' rows non-finite.

        Args:
            before: whether the row of each member was finite before the phase.
            after: [m, P] their rows after it.
        """
        if finite(after):
            return
        for k, was_finite, row in zip(members, before, after, strict=True):
            if was_finite and not finite(row):
                self._spoilt[k] = _names(self._setup.defense, (phase,))

    def require_rows(self, uploads: Uploads) -> None:
        """Raise :class:`Diverged` where a row of a round is not finite; the adversary's are dropped
        before.
        """
        if finite(uploads.updates):
            return
        rows = zip(uploads.participants, uploads.model_of, uploads.updates, strict=True)
        bad = [(k, j) for k, j, row in rows if not finite(row)]
        trained = [(k, j) for k, j in bad if k not in self._spoilt]
        if trained:
            self._blame_training(uploads.round, trained)
        phase = next(iter(self._spoilt.values()))
        clients = _list(k for k, _ in bad)
        raise Diverged(
            f"round {uploads.round}: {phase} made the upload of client {clients} not finite; fix it"
        )

    def _blame_training(
        self,
        round: int,
        trained: list[tuple[int, int]],
    ) -> None:
        """Raise for the (client, global model) pairs that left their training not finite."""
        flat = self._setup.flat
        clients = self._setup.clients
        for k, j in trained:
            start = replace(self._started, params=self._setup.initial[j])
            if not finite(flat.logits(start, clients[k].x)):
                raise Diverged(
                    f"round {round}: the outputs of the initial model for client {k} are not "
                    "finite, before any training; fix the model or the data"
                )
        named = _list(k for k, _ in trained)
        text = f"round {round}: the local training of client {named} is not finite"
        if poisoned := [self._since[j] for _, j in trained if j in self._since]:
            raise DivergedByAdversary(
                f"{text}, from a model that took {self._adversary()} since round {min(poisoned)}"
            )
        raise Diverged(f"{text}; {self._remedy()}")

    def require_models(
        self,
        uploads: Uploads,
        starts: torch.Tensor,
        models: torch.Tensor,
    ) -> None:
        """Raise :class:`Diverged` where one of the ``models`` [s, P] that were ``starts`` is not
        finite; note which of them took rows of the adversary's that count.
        """
        active: tuple[int, ...] = ()
        insider = self._setup.insider
        if insider is not None and uploads.round >= insider.start_round:
            active = self._setup.malicious
        for j in sorted({*uploads.model_of}):
            rows = uploads.rows_of_model(j)
            malicious = [r for r in rows if uploads.participants[r] in active]
            honest = [r for r in rows if r not in malicious]
            if not finite(models[j]):
                self._blame_step(uploads, j, starts[j], malicious, honest)
            largest = _largest(uploads.updates[honest])
            if malicious and _largest(uploads.updates[malicious]) >= _LEAST * largest:
                self._since.setdefault(j, uploads.round)

    def blame_losses(self, loss: float, models: Iterable[int]) -> None:
        """Raise for global ``models`` with a training loss that is not finite, as finite parameters
        may give in the last round; ``loss``: the mean over clients.
        """
        text = f"the loss of the global models on training samples is {loss}"
        if poisoned := [self._since[j] for j in models if j in self._since]:
            raise DivergedByAdversary(
                f"{text}, and they took {self._adversary()} since round {min(poisoned)}"
            )
        raise Diverged(f"{text}; {self._remedy()}")

    def _blame_step(
        self,
        uploads: Uploads,
        j: int,
        start: torch.Tensor,
        malicious: list[int],
        honest: list[int],
    ) -> None:
        """Raise for global model ``j``, which its rows made non-finite."""
        text = f"round {uploads.round}: the aggregated model is not finite"
        rule = _names(self._setup.defense, ("aggregate",))
        ordinary = _ordinary(uploads.updates[honest])
        large = not _ordinary(uploads.updates[malicious])
        if rule and ordinary and not large and _ordinary(start[None]):
            raise Diverged(
                f"{text}: {rule} made such a step of rows of an ordinary size; fix the rule"
            )
        if large and ordinary:
            passed = f", and {rule} let them in" if rule else ""
            raise DivergedByAdversary(f"{text}: {self._adversary()} are too large{passed}")
        if j in self._since:
            since = self._since[j]
            raise DivergedByAdversary(
                f"{text}, and it took {self._adversary()} since round {since}"
            )
        raise Diverged(f"{text}; {self._remedy()}")

    def _adversary(self) -> str:
        insider = self._setup.insider
        attack = type(insider.attack).__name__ if insider else ""
        return f"rows of the attack {attack} (client {_list(self._setup.malicious)})"

    def _remedy(self) -> str:
        stages = phases(stage=("round", "batch", "upload", "rows", "server"))
        names = _names(self._setup.defense, ("prepare", *stages))
        return "lower the learning rate" + (f" or fix {names}" if names else "")


def _list(clients: Iterable[int]) -> str:
    return ", ".join(map(str, clients))


def _names(defense: Defense, names: tuple[str, ...]) -> str:
    """Return ``GradNoise.protect``, of a composite all parts that act; empty where none does."""
    acting = []
    for part in innermost(defense):
        acting += [f"{type(part).__name__}.{name}" for name in names if overrides(part, name)]
    return " and ".join(dict.fromkeys(acting))
