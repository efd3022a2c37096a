"""Defenses in loss or targets of local training: regularisers, soft labels, self-distillation."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import log_softmax, nll_loss, one_hot

from fedbench.core import Batch, Defense, MemberContext, MemberData, Params, UserError


def targets(samples: Batch | MemberData, classes: int, dtype: torch.dtype) -> Tensor:
    """Target probabilities [n, C]: the soft ones or, where there are none, labels one-hot."""
    soft = one_hot(samples.y, classes) if samples.soft is None else samples.soft
    return soft.to(dtype)


def smoothed(soft: Tensor, share: float) -> Tensor:
    """Mix targets [n, C] with the uniform distribution, which has this ``share``."""
    return (1 - share) * soft + share / soft.shape[1]


def entropy(log_p: Tensor) -> Tensor:
    """Entropy [n] in nats of predictions with log-probabilities [n, C]."""
    return -(log_p.exp() * log_p).sum(1)


class LabelSmoothing(Defense):
    """Cross-entropy against (1 - strength) one-hot + strength / C, C the number of classes.

    Targets that another defense has made soft are smoothed like hard ones, so it goes with any
    defense that acts on the batch or on the loss and knows soft targets. Source: Szegedy et al.
    (CVPR 2016), section 7, with the uniform distribution over labels.
    """

    private = ()  # each target by itself

    class Params(Params):
        strength: float = Field(
            0.1, ge=0, lt=1, description="share of a target that is spread evenly over all classes"
        )

    def transform(self, batch: Batch, ctx: MemberContext) -> Batch:
        before = targets(batch, ctx.federation.n_classes, ctx.params.dtype)
        return replace(batch, soft=smoothed(before, self.params.strength))


class ConfidencePenalty(Defense):
    """The loss is cross-entropy minus ``strength`` times the entropy of the prediction, both meaned
    over the batch.

    Source: Pereyra et al. (ICLR workshop 2017), section 3; neither annealed nor thresholded, which
    that section also tries. Soft targets are honoured.
    """

    private = ()  # a mean over examples

    class Params(Params):
        strength: float = Field(
            0.1, ge=0, description="beta, weight of the entropy (in nats) of a prediction"
        )

    def loss(self, logits: Tensor, batch: Batch, ctx: MemberContext) -> Tensor:
        mean_entropy = entropy(log_softmax(logits, 1)).mean()
        return super().loss(logits, batch, ctx) - self.params.strength * mean_entropy


class HAMP(Defense):
    """Train on soft labels of entropy >= gamma ln(C), and reward the entropy of the predictions.

    The loss is KL(q || p) - C alpha H(p), meaned over the batch; ``reduction: mean`` divides it by
    C, which is the authors' code (its KL is a mean over samples and classes): the same minimiser at
    a C times smaller rate. Labels that an earlier defense has made soft are mixed with the uniform
    distribution in the share that a one-hot label is. Source: Chen & Pattabiraman (NDSS 2024),
    section IV; the test phase, which replaces outputs, is not part of it.
    """

    private = ()  # each target by itself, and a mean over examples

    class Params(Params):
        gamma: float = Field(
            0.5,
            ge=0,
            le=1,
            description="least entropy of a soft label, as a fraction of ln(classes)",
        )
        alpha: float = Field(
            0.005, ge=0, description="entropy weight as the authors state it (theirs: .001 to .01)"
        )
        reduction: Literal["batchmean", "mean"] = Field(
            "batchmean",
            description="`batchmean`: the divergence; `mean`: also divided by the number of "
            "classes",
        )

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        classes = ctx.federation.n_classes
        gamma = self.params.gamma
        if data.soft is None:
            soft = soft_labels(data.y, classes, gamma)
        else:
            soft = smoothed(data.soft, uniform_share(classes, gamma))
        return replace(data, soft=soft)

    def loss(self, logits: Tensor, batch: Batch, ctx: MemberContext) -> Tensor:
        p = self.params
        classes = logits.shape[1]
        log_p = log_softmax(logits, 1)
        q = batch.soft
        if q is None:
            q = soft_labels(batch.y, classes, p.gamma)
        kl = (torch.xlogy(q, q) - q * log_p).sum(1).mean()
        loss = kl - classes * p.alpha * entropy(log_p).mean()
        if p.reduction == "mean":
            loss = loss / classes
        return loss


def true_class_probability(classes: int, gamma: float) -> float:
    """Return the largest multiple of .01 with which a soft label has entropy gamma ln(classes).

    The rest is spread evenly. At gamma near 1 no multiple may reach that entropy; then 1/classes,
    the label of largest entropy.
    """
    for hundredths in range(100, 0, -1):
        p = hundredths / 100
        if p <= 1 / classes:
            break
        if _label_entropy(p, classes) >= gamma * math.log(classes):
            return p
    return 1 / classes


def uniform_share(classes: int, gamma: float) -> float:
    """Return the share of the uniform distribution in a soft label."""
    return (1 - true_class_probability(classes, gamma)) * classes / (classes - 1)


def soft_labels(y: Tensor, classes: int, gamma: float) -> Tensor:
    """Target probabilities [n, classes] for the labels ``y`` [n]."""
    p = true_class_probability(classes, gamma)
    soft = torch.full((len(y), classes), (1 - p) / (classes - 1), device=y.device)
    return soft.scatter_(1, y[:, None], p)


def _label_entropy(p: float, classes: int) -> float:
    if p == 1:
        return 0.0
    rest = 1 - p
    return -p * math.log(p) - rest * math.log(rest / (classes - 1))


class RelaxLoss(Defense):
    """Keep the batch's mean cross-entropy near ``alpha``; flatten the posteriors of what is learnt
    too well.

    Even epochs: |mean CE - alpha|. Odd epochs: mean CE while it exceeds alpha, else mean[(1 -
    correct) CE_soft - CE]: ascent on correctly classified samples, and on the others a soft target
    that keeps the predicted p_y (at most ``upper``) and spreads the rest evenly. Source: Chen, Yu &
    Fritz (ICLR 2022), algorithm 1. Their code lets gradients flow through the soft target
    (``detach: false``); an epoch counter that restarts every round (``parity: local``) never leaves
    the even branch when a round has one epoch.
    """

    private = ("loss",)  # its branch follows from the loss of the whole batch

    class Params(Params):
        alpha: float = Field(1.0, ge=0, description="target of the mean training loss, in nats")
        upper: float = Field(
            1.0, gt=0, le=1, description="largest true-class probability of a soft target"
        )
        parity: Literal["global", "local"] = Field(
            "global", description="epochs counted over all rounds, or in each"
        )
        detach: bool = Field(
            True, description="whether soft targets are constants, without gradient"
        )

    def loss(self, logits: Tensor, batch: Batch, ctx: MemberContext) -> Tensor:
        y = batch.hard_labels("relaxloss")
        log_p = log_softmax(logits, 1)
        alpha = self.params.alpha
        ce = nll_loss(log_p, y, reduction="none")
        epoch = ctx.epoch
        if self.params.parity == "local":
            epoch %= ctx.federation.local_epochs
        if epoch % 2 == 0:
            return (ce.mean() - alpha).abs()
        wrong = logits.argmax(1) != y
        flattened = (wrong * self._soft_ce(log_p, y) - ce).mean()
        # torch.where rather than `if`: no wait for the device in every batch
        return torch.where(ce.mean() > alpha, ce.mean(), flattened)

    def _soft_ce(self, log_p: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy [B] against p_y (at most ``upper``) on the true class and an even rest."""
        p_true = log_p.gather(1, y[:, None]).exp().clamp(max=self.params.upper)
        if self.params.detach:
            p_true = p_true.detach()
        rest = ((1 - p_true) / (log_p.shape[1] - 1)).expand_as(log_p)
        return -(rest.scatter(1, y[:, None], p_true) * log_p).sum(1)


def last_linear(model: nn.Module, layers: int | Literal["all"], defense: str) -> list[nn.Linear]:
    """Return the last linear layers, or all, in the order in which the model names them.

    Raises:
        UserError: the model has none or fewer; the message names the ``defense``.
    """
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    n = len(linear)
    least = max(1, n) if layers == "all" else layers
    if n < least:
        remedy = f"only {n}: use layers: {n}" if n else "none: choose another model or defense"
        raise UserError(
            f"{defense} acts on the last {least} fully connected layers (torch.nn.Linear), and the "
            f"model {type(model).__name__} has {remedy}"
        )
    return linear[-least:]


class WeightDecay(Defense):
    """Add ``strength`` times the sum of the squared weights of the last linear layers to the loss;
    biases are left out.

    Keras' ``l2`` regulariser does the same: the gradient is 2 strength w, and an adaptive optimiser
    rescales it with the rest. The optimiser's own ``weight_decay``, which every client of a setting
    shares, adds weight_decay w to all parameters. Source: MemberShield, section 7.2 ("AoF"): .01 on
    the last one to three fully connected layers.
    """

    private = ()  # the term sees no data

    class Params(Params):
        strength: float = Field(0.01, ge=0, description="lambda, weight of the sum of squares")
        layers: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
            1, description="how many of the last linear layers, or `all` of them"
        )

    def loss(self, logits: Tensor, batch: Batch, ctx: MemberContext) -> Tensor:
        layers = last_linear(ctx.model, self.params.layers, "weight-decay")
        penalty = torch.stack([layer.weight.square().sum() for layer in layers]).sum()
        return super().loss(logits, batch, ctx) + self.params.strength * penalty


class Dropout(Defense):
    """Each input of the last linear layers is zeroed with probability ``rate`` in a training step,
    the others are divided by 1 - ``rate``, so that its expectation stays.

    The model itself has no such layer: hooks stand on its layers while the member trains, and do
    nothing in eval mode, so whatever is measured, sent or aggregated is the plain model's. Masks
    are drawn from the member's own generator. Source: Srivastava et al. (JMLR 2014); MemberShield,
    section 7.2 ("AoF"): .25, .5, .75 before the last one to three fully connected layers.
    """

    private = ()  # masks see no data

    class Params(Params):
        rate: float = Field(
            0.5, ge=0, lt=1, description="probability that an input of the layer is zeroed"
        )
        layers: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
            1, description="before how many of the last linear layers, or `all` of them"
        )

    def local_train(self, ctx: MemberContext) -> None:
        drop = partial(drop_inputs, rate=self.params.rate, generator=ctx.generator)
        layers = last_linear(ctx.model, self.params.layers, "dropout")
        hooks = [layer.register_forward_pre_hook(drop) for layer in layers]
        try:
            ctx.train()
        finally:
            for hook in hooks:
                hook.remove()


def drop_inputs(
    layer: nn.Module, inputs: tuple[Any, ...], *, rate: float, generator: torch.Generator
) -> tuple[Any, ...]:
    """Zero entries of a layer's first input with probability ``rate`` while it is in training."""
    if not layer.training:
        return inputs
    x = inputs[0]
    keep = (torch.rand(x.shape, generator=generator) >= rate).to(x.device)
    return (x * keep / (1 - rate), *inputs[1:])


class SelfDistillation(Defense):
    """Each round train a teacher from the received model, then a student from the received model
    with the teacher's help.

    The student's loss is (1 - alpha) CE + alpha T^2 KL(teacher || student), both softened by the
    temperature T, means over the batch (Hinton et al. 2015, section 2). Teacher and student train
    all local epochs, on the same samples, each in an order of its own; the student alone is
    uploaded. The teacher answers what the student is shown, after all transforms. Source: the KD
    baseline of MemberShield (section 7.3), after Shejwalkar & Houmansadr, AAAI 2021; its T: 10, and
    3 for Purchase100. Its code hands the divergence its arguments in the other order (``divergence:
    student-teacher``).
    """

    private = ("loss",)  # the teacher has learnt from all samples

    class Params(Params):
        alpha: float = Field(
            0.5, ge=0, le=1, description="weight of the divergence; the cross-entropy has the rest"
        )
        temperature: float = Field(
            10.0, gt=0, description="T, by which logits are divided before the softmax"
        )
        divergence: Literal["teacher-student", "student-teacher"] = Field(
            "teacher-student",
            description="KL(teacher || student), or the other way round (released code)",
        )

    def local_train(self, ctx: MemberContext) -> None:
        ctx.train()
        tensors = (*ctx.model.named_parameters(), *ctx.model.named_buffers())
        ctx.memory["teacher"] = {name: t.detach().clone() for name, t in tensors}
        ctx.restart()
        ctx.train()
        del ctx.memory["teacher"]  # it belongs to this round's received model

    def loss(self, logits: Tensor, batch: Batch, ctx: MemberContext) -> Tensor:
        ce = super().loss(logits, batch, ctx)
        params = self.params
        if "teacher" not in ctx.memory:
            return ce
        t = params.temperature
        p = log_softmax(self._teacher(batch.x, ctx) / t, 1)
        q = log_softmax(logits / t, 1)
        if params.divergence == "student-teacher":
            p, q = q, p
        # T^2 keeps the gradient's size as T grows (Hinton et al. 2015, section 2.1)
        kl = t**2 * (p.exp() * (p - q)).sum(1).mean()
        return (1 - params.alpha) * ce + params.alpha * kl

    def _teacher(self, x: Tensor, ctx: MemberContext) -> Tensor:
        """Logits [B, C] in eval mode, constants."""
        was_training = ctx.model.training
        ctx.model.eval()
        try:
            with torch.no_grad():
                return torch.func.functional_call(ctx.model, ctx.memory["teacher"], (x,))
        finally:
            ctx.model.train(was_training)
