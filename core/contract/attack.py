"""Attacks score the candidates from what their view observes: higher = member."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy import ndarray

from fedbench.core.contract.components import Configured
from fedbench.core.contract.contexts import Federation, Randomness
from fedbench.core.contract.errors import SkipCell, UserError
from fedbench.core.contract.task import CLASSIFICATION, EVERY_TASK

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


View = Literal["server", "client", "coalition", "external"]
KnowledgeLevel = Literal["none", "own", "honest", "rule"]
LEVELS: tuple[KnowledgeLevel, ...] = get_args(KnowledgeLevel)  # ascending
# The note in the records of a defense with an `answer`; a board finds its rows by it.
ANSWERS = (
    "it answers for the global model: the views client and external and the test accuracy are of "
    "its answers; the views server and coalition are of the uploads, and signals of the gradient "
    "of the parameters, which every client is sent"
)


MEMBER, OFL, IFL = 0, 1, 2  # the target's own, outside the federation, another client's
# ignored: e.g. a sample that a defense held out of training, neither member nor non-member
EXCLUDED = -1

# The candidates that a metric is computed on. `ofl`: members vs outside-federation non-members,
# what boards rank on; `ifl`: vs other clients' training samples; `mix`: vs both in equal shares of
# the clients; `canary`: mislabelled members vs mislabelled outside non-members.
Group = Literal["mix", "ofl", "ifl", "canary"]


@dataclass(frozen=True, kw_only=True)
class ShadowModels:
    """Colluder models: the target's architecture and recipe on random halves of the attacker's own
    data.
    """

    logits: ndarray
    """[M, n, C] of the M shadow models on the candidates, on none of which any was trained"""
    shadow_logits: ndarray
    """[M, S, C] on the S shadow samples"""
    shadow_y: ndarray
    """[S]"""
    shadow_member: ndarray
    """[M, S] bool: the samples that each model was trained on"""
    target_logits: ndarray
    """[n, C] of the final global model that serves each candidate's client"""
    model_of: ndarray
    """[n] index of that global model among s"""
    target_shadow_logits: ndarray
    """[s, S, C] of all s"""


@dataclass(frozen=True, kw_only=True)
class Observations:
    """Measurements of one ``view`` about the candidates: arrays with the axes (round, client,
    sample).
    """

    view: View
    rounds: ndarray
    """[R] audited rounds, counted from 1"""
    clients: ndarray
    """[M] ids of the rows of the client axis, of other clients at most ``audit.references``. The
    view ``coalition`` has the weighted mean of the coalition's uploads (id -2) as its first row,
    the target's, then those of the clients outside it; ``client`` and ``external`` have one, the
    global model (-1).
    """
    target: int
    """POSITION of the target's row on that axis"""
    signals: Mapping[str, ndarray]
    """float32 [R, M, n], of a vector signal [R, M, n, d]; an axis along which a signal does not
    vary may have length 1 (``grad-sq``: [R, 1, n], ``update-sq``: [R, M, 1]), so plain broadcasting
    combines them; NaN: the client did not take part in the round
    """
    shadow_models: ShadowModels | None = None
    """for an attack that needs them"""
    hidden: frozenset[str] = frozenset()
    """signals of the attack's ``needs`` that the view does not contain"""
    shares: ndarray | None = None
    """[R, K] each client's share in the mean of the view ``coalition``, 0 where it is absent or
    outside; None in other views
    """
    defense: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """parameters of the components that the attack is ``against``, by name, as the row has them;
    read-only
    """

    def __getitem__(self, name: str) -> ndarray:
        """Values of a signal.

        Raises:
            SkipCell: this view does not contain it.
            UserError: it is none of the attack's ``needs``.
        """
        if name in self.hidden:
            raise SkipCell(f"the view '{self.view}' has no signal '{name}'")
        if name not in self.signals:
            needs = ", ".join(sorted({*self.signals, *self.hidden})) or "empty"
            raise UserError(
                f"it reads the signal '{name}', but its `needs` are {needs}: add '{name}' to them"
            )
        return self.signals[name]

    def of_target(self, name: str) -> ndarray:
        """Values [R, n] on the target's row; [R, n, d] of a vector signal."""
        values = self[name]
        return values[:, self.target if values.shape[1] > 1 else 0]

    def of_others(self, name: str) -> ndarray:
        """Values [R, M-1, n] on every other client's row, [R, M-1, n, d] of a vector signal; raises
        ``SkipCell`` when there is none.
        """
        values = self[name]
        rows = len(self.clients)
        if rows < 2:
            raise SkipCell(f"the view '{self.view}' shows no other client to compare with")
        shape = values.shape[0], rows, *values.shape[2:]
        return np.delete(np.broadcast_to(values, shape), self.target, axis=1)


@dataclass(frozen=True, kw_only=True)
class Audit(Randomness):
    """Audit set of one target as the attacker sees it: the candidates without their membership.

    ``key`` seeds the attack's own randomness (``audit.rng``, ``audit.generator``).
    """

    key: int
    device: torch.device
    ids: ndarray
    """[n] opaque sample ids, the same for every target, round and attack of a run"""
    y: ndarray
    """[n] labels"""
    n_classes: int
    """C"""
    target_client: int
    """the target's client id, negative for a target of many clients"""


@dataclass(frozen=True, kw_only=True)
class Colluder:
    """Labelled data for an attack: samples of a colluding client with observations and membership.

    The samples are the whole pool or, where clients have a test part, those it trained on and its
    own test part. With ``knows_half`` this is the target, by its code, and the known half of its
    candidates.
    """

    client: int
    observations: Observations
    """of it and its samples by the attack's view: its own row (``server``, ``coalition``) or the
    global model that serves it (the other views); ``observations.target`` is that row
    """
    ids: ndarray
    """[N]"""
    y: ndarray
    """[N]"""
    member: ndarray
    """[N] bool: its own samples"""
    defended: bool
    """whether the client is in the coalition"""


class Attack(Configured):
    """Base of an attack plugin. The attributes may be properties that depend on ``self.params``."""

    needs: frozenset[str] = frozenset()
    """names of the signals it reads; it gets no others"""
    view: View = "server"
    """party that it observes as"""
    against: frozenset[str] = frozenset()
    """names of defenses that it knows: it judges rows with one of them alone, and is given the
    parameters
    """
    colluders: int = 0
    """number of clients (never the target, undefended ones first) that share their own membership
    with the attacker; ``fit`` then receives them
    """
    knows_half: bool = False
    """the papers' supervised adversary, which knows the membership of a random half of the target's
    candidates and scores the other half; without colluders and ``threshold``
    """
    needs_shadow_models: bool = False
    """whether it needs shadow models; their number and data are the setting's ``audit.shadow``"""
    threshold: float | None = None
    """score above which the attack itself says "member"; None for one that only ranks. With
    ``score_rounds`` it yields accuracy, precision and recall (the poisoning papers' metrics) beside
    AUC and TF01.
    """

    @property
    def tasks(self) -> frozenset[str]:
        """Tasks that it serves where its signals do, too; a cell of another one is skipped."""
        return CLASSIFICATION if self.needs_shadow_models else EVERY_TASK

    def fit(self, shadows: Sequence[Colluder], audit: Audit) -> None:
        """Learn from samples of known membership; called before ``score`` when ``colluders`` > 0 or
        ``knows_half``.

        With colluders: once per distinct set of them; ``audit`` here holds the whole pool
        (``target_client`` is -1). With ``knows_half``: twice a target, each time on a fresh copy of
        the attack, with one :class:`Colluder`, a half of the candidates, and ``audit`` of that
        half; ``score`` of that copy is then called on the other half. Scores of the two halves are
        replaced by their ranks within each half.
        """

    def score(self, observations: Observations, audit: Audit) -> ndarray:
        """Scores [n] float of the candidates, higher = member.

        Raise ``SkipCell(reason)`` where it does not apply.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not implement score(observations, audit)"
        )

    def score_rounds(self, observations: Observations, audit: Audit) -> ndarray | None:
        """Scores [R, n] float of a single-round attack in every audited round; None for one that
        uses the trajectory.

        ``score`` of such an attack is the last round's. The engine then also reports the round
        chosen on a separate half of the candidates, and the labelled oracle ``best_round`` beside
        its null value (docs/methods/protocol.md).
        """
        return None


@dataclass(frozen=True, kw_only=True)
class Knowledge(Randomness):
    """Facts and tools that an active adversary has when it crafts its updates in one round.

    A field above the granted level is None. The tools return updates (parameters after minus
    ``start``) with the federation's optimiser at this round's rate, fresh.
    """

    key: int
    device: torch.device
    federation: Federation
    round: int
    """counts from 1"""
    clients: tuple[int, ...]
    """ids it controls that take part in this round"""
    start: Tensor
    """[P] global parameters"""
    model: nn.Module
    """module to compute with; its parameters are overwritten by the engine afterwards"""
    x: Tensor
    """attack set: the candidates of which it infers the membership"""
    y: Tensor
    """labels of the attack set"""
    mask_x: Tensor
    """mask set: its own clients' training data"""
    mask_y: Tensor
    """labels of the mask set"""
    memory: dict[str, Any]
    """persists over rounds"""
    step: Callable[[Tensor, Tensor], Tensor]
    """(x, y) -> [P]: one step on all samples at once in training mode"""
    train: Callable[[Tensor, Tensor], Tensor]
    """(x, y) -> [P]: one pass in batches of the federation's size in the given order"""
    sample_steps: Callable[[Tensor, Tensor], Tensor]
    """(x, y) -> [n, P]: one step on every sample alone in eval mode (no batch statistics)"""
    logits: Callable[[Tensor], Tensor]
    """x -> [n, C] at ``start``, in eval mode"""
    own: Tensor | None = None
    """[m, P] rows that its clients would honestly send, from level ``own``"""
    honest: Tensor | None = None
    """[n, P] this round's other rows, from level ``honest``"""
    rule: Callable[[Tensor], Tensor] | None = None
    """the server's aggregation, updates -> step, at level ``rule``"""


class ActiveAttack(Attack):
    """An attack that also controls clients during training; the run is trained with it inside.

    The setting's ``adversary`` says how many, from which round on, and the level of knowledge.
    """

    knowledge: KnowledgeLevel = "own"
    """level it needs; where a setting grants less, the cell is skipped with that reason"""
    tasks = CLASSIFICATION

    def craft(self, round: int, knowledge: Knowledge) -> Tensor:
        """Rows [m, P] that its present clients submit instead of honest ones."""
        raise NotImplementedError(
            f"{type(self).__name__} does not implement craft(round, knowledge)"
        )
