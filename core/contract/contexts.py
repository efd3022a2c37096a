"""The contexts of phases: what each party knows. Frozen; none holds the audit set, other clients'
data or membership.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from fedbench.core.contract.samples import Batch, LiveModel, MemberData

if TYPE_CHECKING:
    import torch
    from torch import nn


class Randomness:
    """Keyed randomness of one phase: ``key`` is an integer seed made from (seed, purpose, round,
    client); ``device``: the device of the run's tensors.

    ``rng`` is a numpy generator for small draws, ``generator`` a torch CPU generator for tensors.
    Draws are made on the CPU and moved, so every device sees the same numbers.
    """

    key: int
    device: torch.device

    @cached_property
    def rng(self) -> np.random.Generator:
        """numpy generator of this phase."""
        return np.random.Generator(np.random.Philox(self.key))

    @cached_property
    def generator(self) -> torch.Generator:
        """torch CPU generator of this phase."""
        import torch

        return torch.Generator().manual_seed(self.key & (2**63 - 1))

    def randn(self, *shape: int) -> torch.Tensor:
        """Standard normal float32 of ``shape`` on the run's device."""
        import torch

        return torch.randn(*shape, generator=self.generator).to(self.device)

    def randn_like(self, like: torch.Tensor) -> torch.Tensor:
        """Standard normal of the shape and dtype of ``like``."""
        import torch

        return torch.randn(like.shape, generator=self.generator).to(like)

    def randperm(self, n: int) -> torch.Tensor:
        """A permutation of 0..n-1, [n] int64 on the run's device."""
        import torch

        return torch.randperm(n, generator=self.generator).to(self.device)


# --- contexts -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Public facts about the federation, known to all parties before round 1.

    ``clients``: how many there are; ``rounds``, ``local_epochs`` and ``batch_size`` of the
    training; ``participation``: the share of the clients drawn in a round; ``n_classes``: C;
    ``n_params``: P, the trainable parameters of the model. ``assumed_malicious``: number of
    malicious clients that the server assumes, not the real number. ``thresholds``: whether each
    client has an accuracy of membership inference that it tolerates. ``aggregation``: ``mean``, or
    the class of the rule that takes its place at the server. ``weights``: of the mean: by ``size``
    of the clients' data, ``equal``, or ``shuffled``, other clients' sizes (the released code's
    quirk).
    """

    clients: int
    rounds: int
    local_epochs: int
    batch_size: int
    participation: float
    n_classes: int
    n_params: int
    assumed_malicious: int = 0
    thresholds: bool = False
    aggregation: str = "mean"
    weights: Literal["size", "equal", "shuffled"] = "size"

    @property
    def cohort(self) -> int:
        """Clients that take part in a round."""
        return max(1, round(self.participation * self.clients))


@dataclass(frozen=True, kw_only=True)
class CoalitionContext(Randomness):
    """What the coordinator of a coalition knows: public facts, its members and their data volumes,
    nothing about other coalitions.

    ``members``: ids of the coalition's clients; ``sizes``: how many samples each of them has to
    train on; ``weights``: each member's aggregation weight, |D_k| (or 1, where the setting weighs
    all alike) / sum over ALL clients; ``round`` counts from 1 and is 0 in ``begin``. ``present``:
    the members that sent a row to ``coordinate`` (all of them in ``begin``). ``memory`` persists
    over the run and is private.
    """

    key: int
    device: torch.device
    federation: Federation
    members: tuple[int, ...]
    present: tuple[int, ...]
    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    round: int
    memory: dict[str, Any] = field(default_factory=dict)


class LocalTraining(Protocol):
    """The standard local training of one member in one round, as the engine runs it for the context
    of ``local_train``.
    """

    def epochs(self) -> Iterator[int]:
        """As :meth:`MemberContext.epochs`."""

    def restart(self) -> None:
        """As :meth:`MemberContext.restart`."""


class Tools(Protocol):
    """Computations that the engine provides to a member, so that the contract imports no engine
    code.
    """

    def normalise(self, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """[n, *input] float32 as ``model`` takes it."""

    def per_sample_gradients(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        """[B, P] gradients of each sample's cross-entropy."""

    def clipped_gradient(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, bound: float, views: int = 1
    ) -> torch.Tensor:
        """[P] sum of each sample's clipped gradient."""


@dataclass(frozen=True, kw_only=True)
class MemberContext(Randomness, LiveModel):
    """What one coalition member knows in one round: its own data, the model it received, its own
    memory.

    ``client``: its id; ``data``: its own samples, as ``prepare`` left them. ``round`` counts from 1
    and is 0 in ``prepare``. ``epoch`` is the member's local epoch counted from 0 over ALL its
    rounds (``(round - 1) * local_epochs + e``). ``model`` is the live module being trained,
    ``params`` its parameters as one live [P] vector (write to it in place; in another phase or
    round it may hold another client's), ``start`` [P] the global parameters received this round.
    ``memory`` persists over rounds and is private to this member. ``privacy_threshold``: the
    accuracy of membership inference that this member tolerates (0.5..1), where the setting gives
    its clients one. ``ask_global``: in ``after_round`` alone, x -> [n, C], logits in eval mode of
    the new global model (of several, the member's own); the live model stays unchanged. ``tools``
    and ``training``: the engine's part of the methods below.
    """

    key: int
    device: torch.device
    federation: Federation
    client: int
    round: int
    epoch: int
    data: MemberData
    model: nn.Module
    params: torch.Tensor
    start: torch.Tensor
    memory: dict[str, Any]
    tools: Tools
    training: LocalTraining | None = None
    privacy_threshold: float | None = None
    ask_global: Callable[[torch.Tensor], torch.Tensor] | None = None

    def epochs(self) -> Iterator[int]:
        """The standard local training (with this defense's other phases), one local epoch at a
        time: the number of the epoch, 0, 1, ..., after each; training stops when the iteration
        does. In ``local_train`` only.

        A second call continues after the last trained epoch. After the last epoch it begins another
        pass, with the present parameters and optimiser and new random draws.
        """
        return self._training("epochs").epochs()

    def train(self) -> None:
        """Run the standard local training of this round: all of ``epochs``."""
        for _ in self._training("train").epochs():
            pass

    def restart(self) -> None:
        """Undo this round's training: parameters and buffers as received, the optimiser as at the
        start of the round. ``epochs`` then begins at epoch 0 with new random draws. In
        ``local_train`` only.
        """
        self._training("restart").restart()

    def _training(self, asked: str) -> LocalTraining:
        if self.training is None:
            raise RuntimeError(f"ctx.{asked}() is available in local_train only")
        return self.training

    def normalise(self, x: torch.Tensor) -> torch.Tensor:
        """[n, *input] float32 as the model takes it: byte images normalised, anything else
        unchanged.
        """
        return self.tools.normalise(self.model, x)

    def per_sample_gradients(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Gradients of the cross-entropy at the live parameters, [B, P], one row a sample."""
        return self.tools.per_sample_gradients(self.model, x, y)

    def clipped_gradient(self, batch: Batch, bound: float, views: int = 1) -> torch.Tensor:
        """[P]: the sum over the batch's samples of their cross-entropy gradient at the live
        parameters, each scaled down to at most the L2 norm ``bound`` > 0; zero for an empty batch.
        About two plain steps, where ``per_sample_gradients`` takes three to nine. ``views`` > 1:
        the batch holds so many adjacent rows of each sample, and the mean of their gradients is
        clipped. Soft targets, where the batch has some, are used instead of ``y``.
        """
        return self.tools.clipped_gradient(
            self.model, batch.x, batch.y if batch.soft is None else batch.soft, bound, views
        )


@dataclass(frozen=True)
class Layer:
    """One trainable tensor of the model: elements ``start`` to ``stop`` of a flat vector [P], of
    this ``shape``; ``name``: as torch calls it.
    """

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., *shape]: this tensor's part of ``rows`` [..., P]."""
        return rows[..., self.start : self.stop].reshape(*rows.shape[:-1], *self.shape)


@dataclass(frozen=True, kw_only=True)
class ServerContext(Randomness):
    """What the server knows when it aggregates: this round's global parameters and who sent which
    row.

    ``round`` counts from 1; ``params``: [P] the global model. ``participants``: client id of each
    row of the update matrix. ``assumed_malicious``: number of malicious rows that the server
    assumes (the federation's, less the rows that it has rejected as not finite). ``memory``
    persists over rounds. ``model_index`` names the global model (0 unless several). ``layers``:
    where each tensor lies in the flat vector; the last weight and bias are the output layer's.
    ``root``: the server's own small sample of the data's distribution, disjoint from training, test
    and audit, of as many samples as the rule's ``root_samples``. ``input_shape``: of one sample.
    ``logits(params, x)``: [n, C] of any parameters [P], in eval mode. ``train(params, x, y,
    epochs)``: [P] after so many epochs of the federation's own recipe over the server's data from
    ``params``, shuffled by ``ctx.generator``.
    """

    key: int
    device: torch.device
    federation: Federation
    round: int
    params: torch.Tensor
    participants: tuple[int, ...]
    memory: dict[str, Any]
    model_index: int = 0
    assumed_malicious: int = 0
    layers: tuple[Layer, ...] = ()
    input_shape: tuple[int, ...] = ()
    root: MemberData | None = None
    logits: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    train: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class AnswerContext(Randomness):
    """What the coalition knows when a global model is queried: public facts, and the memories of
    its parties.

    ``round``: the round that the model came of, from 1. ``model_index`` names it (0 unless
    several); ``members``: who defends, ``served``: the members that this model serves.
    ``coalition``, and ``of_member`` (client -> its own): the memories of these parties, to be read.
    ``key`` is the same for every sample of a round, and secret.
    """

    key: int
    device: torch.device
    federation: Federation
    members: tuple[int, ...]
    served: tuple[int, ...]
    round: int
    coalition: Mapping[str, Any]
    of_member: Mapping[int, Mapping[str, Any]]
    model_index: int = 0


@dataclass(frozen=True, kw_only=True)
class ReportContext:
    """What there is to report from: the public facts (``federation``), the coalition (``members``),
    and the memories of its defense's parties, as they are after the last round: ``coalition``;
    ``of_member``: client -> its own; ``of_server``: global model -> the rule's.
    """

    federation: Federation
    members: tuple[int, ...]
    coalition: Mapping[str, Any]
    of_member: Mapping[int, Mapping[str, Any]]
    of_server: Mapping[int, Mapping[str, Any]]
