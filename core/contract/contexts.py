"""Contexts of phases: the knowledge of each party. Frozen; none holds the audit set, other clients'
data or membership.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from fedbench.core.contract.samples import Batch, LiveModel, MemberData
from fedbench.core.contract.task import DEFAULT_TASK, Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class Randomness:
    """Keyed randomness of one phase.

    ``rng`` is a numpy generator for small draws, ``generator`` a torch CPU generator for tensors,
    of which every device sees the same numbers. Noise of the size of the model is drawn on the
    run's device: a GPU's numbers are its own, as the keys of its records are. ``key`` is an integer
    seed made from (seed, purpose, round, client); ``device``: that of the run's tensors.
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

    @cached_property
    def device_generator(self) -> torch.Generator:
        """torch generator of this phase on the run's device; on the CPU it is ``generator``."""
        import torch

        if self.device.type == "cpu":
            return self.generator
        return torch.Generator(self.device).manual_seed(self.key & (2**63 - 1))

    def randn(self, *shape: int) -> Tensor:
        """Standard normal float32 of ``shape`` on the run's device."""
        import torch

        g = self.device_generator
        return torch.randn(*shape, generator=g, device=g.device)

    def randn_like(self, like: Tensor) -> Tensor:
        """Standard normal of the shape and dtype of ``like``."""
        import torch

        g = self.device_generator
        return torch.randn(like.shape, generator=g, device=g.device).to(like)

    def randperm(self, n: int) -> Tensor:
        """A permutation of 0..n-1, [n] int64 on the run's device."""
        import torch

        return torch.randperm(n, generator=self.generator).to(self.device)


# --- contexts -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Public facts about the federation, known to all parties before round 1."""

    clients: int
    rounds: int
    local_epochs: int
    batch_size: int
    participation: float
    """share of the clients drawn in a round"""
    n_classes: int
    """C"""
    n_params: int
    """P, the trainable parameters of the model"""
    assumed_malicious: int = 0
    """number of malicious clients that the server assumes, not the real number"""
    thresholds: bool = False
    """whether each client has an accuracy of membership inference that it tolerates"""
    aggregation: str = "mean"
    """``mean``, or the class of the rule that takes its place at the server"""
    weights: Literal["size", "equal", "shuffled"] = "size"
    """of the mean: by ``size`` of the clients' data, ``equal``, or ``shuffled``, other clients'
    sizes (the released code's quirk)
    """
    local_batches: int | None = None
    """batches of a local epoch that a client trains on; None: all"""

    @property
    def cohort(self) -> int:
        """Clients that take part in a round."""
        return max(1, round(self.participation * self.clients))


@dataclass(frozen=True, kw_only=True)
class CoalitionContext(Randomness):
    """Knowledge of the coordinator of a coalition, which knows nothing about other coalitions."""

    key: int
    device: torch.device
    federation: Federation
    members: tuple[int, ...]
    """ids of the coalition's clients"""
    present: tuple[int, ...]
    """members that sent a row to ``coordinate`` (all of them in ``begin``)"""
    sizes: tuple[int, ...]
    """training samples of each member"""
    weights: tuple[float, ...]
    """each member's aggregation weight, |D_k| (or 1, where the setting weighs all alike) / sum over
    ALL clients
    """
    round: int
    """counts from 1 and is 0 in ``begin``"""
    memory: dict[str, Any] = field(default_factory=dict)
    """persists over the run and is private"""


class LocalTraining(Protocol):
    """The engine's standard local training of one member in one round."""

    def epochs(self) -> Iterator[int]:
        """See :meth:`MemberContext.epochs`."""

    def restart(self) -> None:
        """See :meth:`MemberContext.restart`."""


class Tools(Protocol):
    """Computations of the engine for a member."""

    def normalise(self, model: nn.Module, x: Tensor) -> Tensor:
        """[n, *input] float32 as ``model`` takes it."""

    def per_sample_gradients(self, model: nn.Module, x: Tensor, y: Tensor, task: Task) -> Tensor:
        """[B, P] gradients of each sample's loss."""

    def clipped_gradient(
        self, model: nn.Module, x: Tensor, y: Tensor, bound: float, views: int, *, task: Task
    ) -> Tensor:
        """[P] sum of each sample's clipped gradient."""


@dataclass(frozen=True, kw_only=True)
class MemberContext(Randomness, LiveModel):
    """Knowledge of one coalition member in one round: its own data, the model it received, its own
    memory.
    """

    key: int
    device: torch.device
    federation: Federation
    client: int
    """id"""
    round: int
    """counts from 1 and is 0 in ``prepare``"""
    epoch: int
    """local epoch counted from 0 over ALL the member's rounds: (round - 1) * local_epochs + e"""
    data: MemberData
    """its own samples, as ``prepare`` left them"""
    model: nn.Module
    """live module being trained"""
    params: Tensor
    """its parameters as one live [P] vector: write to it in place; in another phase or round it may
    hold another client's
    """
    start: Tensor
    """[P] global parameters received this round"""
    memory: dict[str, Any]
    """persists over rounds and is private to this member"""
    tools: Tools
    """the engine's part of the methods"""
    training: LocalTraining | None = None
    """the engine's part of the methods of ``local_train``"""
    privacy_threshold: float | None = None
    """accuracy of membership inference that this member tolerates (0.5..1), where the setting gives
    its clients one
    """
    ask_global: Callable[[Tensor], Tensor] | None = None
    """in ``after_round`` alone: x -> [n, C], logits in eval mode of the new global model (of
    several, the member's own); the live model stays unchanged
    """
    task: Task = DEFAULT_TASK
    """loss and prediction of the federation"""

    def epochs(self) -> Iterator[int]:
        """Run the standard local training (with this defense's other phases), one local epoch at a
        time; yields the number of the epoch, 0, 1, ..., after each. Training stops when the
        iteration does. In ``local_train`` only.

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

    def _training(self, method: str) -> LocalTraining:
        if self.training is None:
            raise RuntimeError(f"ctx.{method}() is available in local_train only")
        return self.training

    def normalise(self, x: Tensor) -> Tensor:
        """[n, *input] float32 as the model takes it: byte images normalised, anything else
        unchanged.
        """
        return self.tools.normalise(self.model, x)

    def per_sample_gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradients [B, P] of each sample's loss at the live parameters."""
        return self.tools.per_sample_gradients(self.model, x, y, self.task)

    def clipped_gradient(self, batch: Batch, bound: float, views: int = 1) -> Tensor:
        """Sum [P] over the batch's samples of their loss's gradient at the live parameters, each
        scaled down to at most the L2 norm ``bound`` > 0; zero for an empty batch.

        About two plain steps, where ``per_sample_gradients`` takes three to nine. ``views`` > 1:
        the batch holds so many adjacent rows of each sample, and the mean of their gradients is
        clipped. Soft targets, where the batch has some, are used instead of ``y``.
        """
        target = batch.target
        return self.tools.clipped_gradient(
            self.model, batch.x, target, bound, views, task=self.task
        )


@dataclass(frozen=True)
class Layer:
    """Trainable tensor of the model as a part of a flat vector [P]."""

    name: str
    """torch's name"""
    start: int
    """first element"""
    stop: int
    """end of its elements"""
    shape: tuple[int, ...]

    def of(self, rows: Tensor) -> Tensor:
        """Part [..., *shape] of ``rows`` [..., P] that is this tensor's."""
        return rows[..., self.start : self.stop].reshape(*rows.shape[:-1], *self.shape)


@dataclass(frozen=True, kw_only=True)
class ServerContext(Randomness):
    """Knowledge of the server when it aggregates."""

    key: int
    device: torch.device
    federation: Federation
    round: int
    """counts from 1"""
    params: Tensor
    """[P] the global model"""
    participants: tuple[int, ...]
    """client id of each row of the update matrix"""
    memory: dict[str, Any]
    """persists over rounds"""
    sizes: tuple[int, ...] = ()
    """training samples of each row's client"""
    model_index: int = 0
    """of the global model, 0 unless several"""
    assumed_malicious: int = 0
    """number of malicious rows that the server assumes: the federation's, less the rows that it has
    rejected as not finite
    """
    layers: tuple[Layer, ...] = ()
    """tensors in the flat vector; the last weight and bias are the output layer's"""
    input_shape: tuple[int, ...] = ()
    """of one sample"""
    root: MemberData | None = None
    """the server's own ``root_samples`` of the data's distribution, disjoint from training, test
    and audit
    """
    logits: Callable[[Tensor, Tensor], Tensor] | None = None
    """(params [P], x) -> [n, C], in eval mode"""
    train: Callable[..., Tensor] | None = None
    """(params [P], x, y, epochs, batch_size=None) -> [P], by the federation's own recipe, shuffled
    by ``ctx.generator``; ``batch_size`` None: the federation's
    """


@dataclass(frozen=True, kw_only=True)
class AnswerContext(Randomness):
    """Knowledge of the coalition when a global model is queried: public facts, and the memories of
    its parties, to be read.

    ``key`` is the same for every sample of a round, and secret.
    """

    key: int
    device: torch.device
    federation: Federation
    members: tuple[int, ...]
    """clients that defend"""
    served: tuple[int, ...]
    """members that this model serves"""
    round: int
    """round that the model came of, from 1"""
    coalition: Mapping[str, Any]
    """memory of the coalition"""
    of_member: Mapping[int, Mapping[str, Any]]
    """client -> its memory"""
    model_index: int = 0
    """of the global model, 0 unless several"""


@dataclass(frozen=True, kw_only=True)
class ReportContext:
    """Material of a report: public facts, and the memories of all parties after the last round."""

    federation: Federation
    members: tuple[int, ...]
    """the coalition"""
    coalition: Mapping[str, Any]
    """its memory"""
    of_member: Mapping[int, Mapping[str, Any]]
    """client -> its memory"""
    of_server: Mapping[int, Mapping[str, Any]]
    """global model -> the rule's memory"""
