"""Adversarial regularisation: train against an inference network of the member's own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid, one_hot

from fedbench.core import (
    Batch,
    Defense,
    Federation,
    MemberContext,
    MemberData,
    Params,
)
from fedbench.plugins.defenses.early_stopping import ValidationShare, with_validation_part

Width = Annotated[int, Field(ge=1, le=4096)]


class AdvReg(Defense):
    """Min-max game: an inference network h learns to tell the member's samples from a reference
    set, the model to fool it.

    In every batch h takes ``steps`` ascents of mean log h(f(x), y) over own training samples plus
    mean log(1 - h) over reference samples, as many of each as the federation's batches hold, and
    the model a step down the gradient of CE + lambda mean log h over its batch (Eqs. 4 and 8,
    algorithm 1). h sees f(x) as probabilities, of the model in eval mode for both sets while it
    learns, and the label; it lives on from round to round. The reference set is the member's own
    validation part, held out of the training and of every audit list: never non-members, as in
    MemberShield's released code. ``from_epoch: 20`` is that code's gate: before the round's local
    epoch 20 the model learns without the term (h learns on). Source: Nasr, Shokri & Houmansadr (CCS
    2018), sections 4 and 7; lambda 3 is theirs for Purchase100 and MemberShield's.
    """

    # a stratified hold-out, and a network that has learnt from all samples
    private = ("prepare", "loss")

    class Params(Params):
        weight: float = Field(
            3.0, ge=0, description="lambda, weight of the members' mean log h in the loss"
        )
        steps: int = Field(
            1, ge=1, le=100, description="k, steps of the inference network in every batch"
        )
        rate: float = Field(
            0.001, gt=0, description="learning rate of the inference network's Adam"
        )
        from_epoch: int = Field(
            0,
            ge=0,
            description="first local epoch of a round with the term in its loss (released: 20)",
        )
        sort: bool = Field(
            False, description="whether h sees the probabilities in descending order"
        )
        of_prediction: tuple[Width, ...] = Field(
            (1024, 512, 64), min_length=1, description="widths of h's part that reads f(x)"
        )
        of_label: tuple[Width, ...] = Field(
            (512, 64), min_length=1, description="widths of h's part that reads the label"
        )
        shared: tuple[Width, ...] = Field(
            (256, 64), description="widths of h's part that reads both, before its one output"
        )
        validation: ValidationShare = 0.1

    def remarks(self, federation: Federation) -> Sequence[str]:
        """Say where no epoch comes after ``from_epoch``."""
        first = self.params.from_epoch
        epochs = federation.local_epochs
        if first < epochs:
            return ()
        return [
            f"from_epoch {first} is not below the {epochs} local epochs of a round: the term never "
            "acts"
        ]

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        return with_validation_part(data, ctx, self.params.validation, "adv-reg")

    def loss(self, logits: Tensor, batch: Batch, ctx: MemberContext) -> Tensor:
        p = self.params
        y = batch.hard_labels("adv-reg")
        if "network" not in ctx.memory:
            network = InferenceNetwork(logits.shape[1], p, ctx.generator).to(logits)
            optimizer = torch.optim.Adam(network.parameters(), lr=p.rate)
            ctx.memory["network"] = network, optimizer
        network, optimizer = ctx.memory["network"]
        for _ in range(p.steps):
            self._learn(network, optimizer, ctx)
        loss = cross_entropy(logits, y)
        if ctx.epoch % ctx.federation.local_epochs < p.from_epoch:
            return loss
        return loss + p.weight * logsigmoid(network(logits.softmax(1), y)).mean()

    def _learn(
        self, network: InferenceNetwork, optimizer: torch.optim.Optimizer, ctx: MemberContext
    ) -> None:
        """Take one step of the inference network; the model's loss trains the model alone."""
        assert ctx.data.held_out is not None  # by `prepare`
        network.requires_grad_(True)
        inside = self._judge(network, ctx.data.trainable, ctx)
        outside = self._judge(network, torch.nonzero(ctx.data.held_out).reshape(-1), ctx)
        optimizer.zero_grad()
        (-(logsigmoid(inside).mean() + logsigmoid(-outside).mean())).backward()
        optimizer.step()
        network.requires_grad_(False)

    def _judge(self, network: InferenceNetwork, pool: Tensor, ctx: MemberContext) -> Tensor:
        """Logits of h on as many samples of ``pool`` [n] as a batch holds."""
        index = pool[ctx.randperm(len(pool))[: ctx.federation.batch_size]]
        return network(ctx.logits(ctx.data.x[index]).softmax(1), ctx.data.y[index])


class InferenceNetwork(nn.Module):
    """Network h, as logits [n]: one part reads the prediction [n, C], one the label, a shared one
    both (Nasr et al., section 7.2).

    ReLU between layers; weights N(0, .01^2), biases 0. The first of the widths that the paper
    lists, 100, is Purchase100's number of classes, hence the input's.
    """

    def __init__(self, classes: int, params: AdvReg.Params, generator: torch.Generator) -> None:
        super().__init__()
        self._classes = classes
        self._sort = params.sort
        self.of_prediction = _layers(classes, params.of_prediction)
        self.of_label = _layers(classes, params.of_label)
        width = params.of_prediction[-1] + params.of_label[-1]
        self.shared = _layers(width, params.shared)
        self.out = _linear((width, *params.shared)[-1], 1)
        for name, p in self.named_parameters():
            p.data.zero_()
            if name.endswith("weight"):
                p.data.copy_(0.01 * torch.randn(p.shape, generator=generator))

    def forward(self, probabilities: Tensor, y: Tensor) -> Tensor:
        if self._sort:
            probabilities = probabilities.sort(1, descending=True).values
        label = one_hot(y, self._classes).to(probabilities)
        parts = torch.cat([self.of_prediction(probabilities), self.of_label(label)], 1)
        return self.out(self.shared(parts)).squeeze(1)


def _layers(width: int, widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise((width, *widths)):
        layers += [_linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


def _linear(before: int, after: int) -> nn.Linear:
    """Linear layer without torch's own draw, which would be from the global generator."""
    return torch.nn.utils.skip_init(nn.Linear, before, after)  # type: ignore[no-untyped-call]
