"""An attack sees its view's observations of the candidates and scores each one: higher = member."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedbench.core.contract.components import Configured
from fedbench.core.contract.contexts import Federation, Randomness
from fedbench.core.contract.errors import SkipCell, UserError

if TYPE_CHECKING:
    import torch
    from torch import nn


View = Literal["server", "client", "coalition", "external"]
KnowledgeLevel = Literal["none", "own", "honest", "rule"]
LEVELS: tuple[KnowledgeLevel, ...] = get_args(KnowledgeLevel)  # ascending
# The note in the records of a defense with an `answer`; a board finds its rows by it.
ANSWERS = (
    "it answers for the global model: the views client and external and the test accuracy are of "
    "its answers; the views server "
    "and coalition are of the uploads, and signals of the gradient of the parameters, which every "
    "client is sent"
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

    ``logits``: [M, n, C] of the M shadow models on the candidates, on none of which any of them was
    trained. ``shadow_logits``: [M, S, C] on the S shadow samples, ``shadow_y`` [S],
    ``shadow_member`` [M, S] bool: which of them each model was trained on. ``target_logits``: [n,
    C] of the final global model that serves each candidate's client; ``model_of``: [n] which of the
    s global models that is; ``target_shadow_logits``: [s, S, C] of all s.
    """

    logits: np.ndarray
    shadow_logits: np.ndarray
    shadow_y: np.ndarray
    shadow_member: np.ndarray
    target_logits: np.ndarray
    model_of: np.ndarray
    target_shadow_logits: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Observations:
    """What one ``view`` measured about the candidates, as arrays with the axes (round, client,
    sample).

    ``rounds``: [R] audited rounds, counted from 1. ``clients``: [M] ids of the rows of the client
    axis, and ``target`` the POSITION of the target's row on it. The view ``coalition`` has the
    weighted mean of the coalition's uploads (id -2) as its first row, the target's, then those of
    the clients outside it; ``client`` and ``external`` have one, the global model (-1). Of the
    other clients there are at most ``audit.references``. ``signals[name]``: float32 [R, M, n], of a
    vector signal [R, M, n, d]; an axis along which a signal does not vary may have length 1
    (``grad-sq``: [R, 1, n], ``update-sq``: [R, M, 1]), so plain broadcasting combines them. A
    client that did not take part in a round has NaN there. ``shadow_models``: shadow models, for an
    attack that needs them. ``hidden``: signals of the attack's ``needs`` that the view does not
    contain.
    """

    view: View
    rounds: np.ndarray
    clients: np.ndarray
    target: int
    signals: Mapping[str, np.ndarray]
    shadow_models: ShadowModels | None = None
    hidden: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> np.ndarray:
        """The signal ``name``; raises ``SkipCell`` when this view does not contain it, and
        ``UserError`` when it is none of the attack's ``needs``.
        """
        if name in self.hidden:
            raise SkipCell(f"the view '{self.view}' has no signal '{name}'")
        if name not in self.signals:
            needs = ", ".join(sorted({*self.signals, *self.hidden})) or "empty"
            raise UserError(
                f"it reads the signal '{name}', but its `needs` are {needs}: add '{name}' to them"
            )
        return self.signals[name]

    def of_target(self, name: str) -> np.ndarray:
        """[R, n]: the signal on the target's row; [R, n, d] of a vector signal."""
        a = self[name]
        return a[:, self.target if a.shape[1] > 1 else 0]

    def of_others(self, name: str) -> np.ndarray:
        """[R, M-1, n]: the signal on every other client's row, [R, M-1, n, d] of a vector signal;
        raises ``SkipCell`` when there is none.
        """
        a = self[name]
        if len(self.clients) < 2:
            raise SkipCell(f"the view '{self.view}' shows no other client to compare with")
        return np.delete(
            np.broadcast_to(a, (a.shape[0], len(self.clients), *a.shape[2:])), self.target, axis=1
        )


@dataclass(frozen=True, kw_only=True)
class Audit(Randomness):
    """The audit set of one target as the attacker sees it: the candidates without their membership.

    ``ids``: [n] opaque sample ids, the same for every target, round and attack of a run; ``y``: [n]
    labels. ``n_classes``: C; ``target_client``: the target's client id, negative for a target of
    many clients. ``key`` seeds the attack's own randomness (``audit.rng``, ``audit.generator``).
    """

    key: int
    device: torch.device
    ids: np.ndarray
    y: np.ndarray
    n_classes: int
    target_client: int


@dataclass(frozen=True, kw_only=True)
class Colluder:
    """Labelled data for an attack: samples of a colluding client with their observations and
    membership.

    ``client``: the colluder's id; ``observations``: what the attack's view shows of it and its
    samples, its own row (``server``, ``coalition``) or the global model that serves it (the other
    views); ``observations.target`` is that row. The samples are the whole pool or, where clients
    have a test part, those it trained on and its own test part: each colluder's are others;
    ``ids``: [N]; ``y``: [N]; ``member``: [N] bool, which of the samples are its own; ``defended``:
    whether that client is in the coalition. With ``knows_half`` it holds the target, by its code,
    and the known half of its candidates.
    """

    client: int
    observations: Observations
    ids: np.ndarray
    y: np.ndarray
    member: np.ndarray
    defended: bool


class Attack(Configured):
    """Base of an attack plugin.

    ``needs``: names of the signals it reads; it gets no others. ``view``: what it may see.
    ``colluders``: how many clients (never the target, undefended ones first) share their own
    membership with the attacker; ``fit`` then receives them. ``knows_half``: the papers' supervised
    adversary, which knows the membership of a random half of the target's candidates and scores the
    other half; it then has no colluders and no ``threshold``. All four may be properties that
    depend on ``self.params``.
    """

    needs: frozenset[str] = frozenset()
    view: View = "server"
    colluders: int = 0
    knows_half: bool = False
    needs_shadow_models: bool = False
    """whether it needs shadow models; how many, and on how much data, is the setting's
    ``audit.shadow``
    """
    threshold: float | None = None
    """the score above which the attack itself says "member"; None for one that only ranks. With
    ``score_rounds`` it yields accuracy, precision and recall (the poisoning papers' metrics) beside
    AUC and TF01.
    """

    def fit(self, shadows: Sequence[Colluder], audit: Audit) -> None:
        """Learn from samples of known membership; called before ``score`` when ``colluders`` > 0 or
        ``knows_half``.

        With colluders: once per distinct set of them; ``audit`` here holds the whole pool
        (``target_client`` is -1). With ``knows_half``: twice a target, each time on a fresh copy of
        the attack, with one :class:`Colluder`, a half of the candidates, and ``audit`` of that
        half; ``score`` of that copy is then called on the other half. Scores of the two halves are
        replaced by their ranks within each half.
        """

    def score(self, observations: Observations, audit: Audit) -> np.ndarray:
        """[n] float: one score a candidate, higher = member. Raise ``SkipCell(reason)`` where it
        does not apply.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not implement score(observations, audit)"
        )

    def score_rounds(self, observations: Observations, audit: Audit) -> np.ndarray | None:
        """[R, n] float: a single-round attack's scores in every audited round; None for one that
        uses the trajectory.

        ``score`` of such an attack is the last round's. The engine then also reports the round
        chosen on a separate half of the candidates, and the labelled oracle ``best_round`` beside
        its null value (docs/methods/protocol.md).
        """
        return None


@dataclass(frozen=True, kw_only=True)
class Knowledge(Randomness):
    """What an active adversary knows when it crafts its updates in one round.

    ``round`` counts from 1; ``clients``: ids it controls that take part in this round. ``start``:
    [P] global parameters; ``model``: a module to compute with (its parameters are overwritten by
    the engine afterwards). ``x``, ``y``: the attack set, the candidates it infers the membership
    of, with labels; ``mask_x``, ``mask_y``: the mask set, its own clients' training data. ``own``:
    [m, P] what its clients would honestly send, from level ``own``; ``honest``: [n, P] this round's
    other rows, from level ``honest``; ``rule``: the server's aggregation, updates -> step, at level
    ``rule``. A field above the granted level is None. ``memory`` persists over rounds.

    Its tools, each an update (parameters after minus ``start``) with the federation's optimiser at
    this round's rate, fresh: ``step(x, y)`` [P], one step on all samples at once in training mode;
    ``train(x, y)`` [P], one pass in batches of the federation's size in the given order;
    ``sample_steps(x, y)`` [n, P], one step on every sample alone (eval mode: no sample has batch
    statistics of its own). ``logits(x)`` [n, C] are ``start``'s, in eval mode.
    """

    key: int
    device: torch.device
    federation: Federation
    round: int
    clients: tuple[int, ...]
    start: torch.Tensor
    model: nn.Module
    x: torch.Tensor
    y: torch.Tensor
    mask_x: torch.Tensor
    mask_y: torch.Tensor
    memory: dict[str, Any]
    step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    train: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    sample_steps: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    logits: Callable[[torch.Tensor], torch.Tensor]
    own: torch.Tensor | None = None
    honest: torch.Tensor | None = None
    rule: Callable[[torch.Tensor], torch.Tensor] | None = None


class ActiveAttack(Attack):
    """An attack that also controls clients during training; the run is trained with it inside.

    How many clients it controls, from which round on, and what it gets to know is the setting's
    ``adversary``. ``knowledge``: the level it needs; where a setting grants less, the cell is
    skipped with that reason.
    """

    knowledge: KnowledgeLevel = "own"

    def craft(self, round: int, knowledge: Knowledge) -> torch.Tensor:
        """[m, P]: the rows its clients submit instead of honest ones, one per present malicious
        client.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not implement craft(round, knowledge)"
        )
