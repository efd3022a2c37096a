"""MemGuard: answers to queries carry noise that brings a membership classifier to 1/2."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedbench.core import (
    AnswerContext,
    CoalitionContext,
    Defense,
    MemberContext,
    MemberData,
    Params,
)
from fedbench.plugins.attacks.networks import Adam
from fedbench.plugins.defenses.early_stopping import ValidationShare

RATE = 1e-3


class Classifier:
    """g = sigmoid(h): a confidence vector to the probability that its sample was trained on.

    In float64: a search that stops where h changes its sign must not depend on how many samples are
    searched at once. The weights are drawn by Glorot's uniform rule, as the authors' are.
    """

    def __init__(
        self, classes: int, params: Any, generator: torch.Generator, device: torch.device
    ) -> None:
        self._sorted = params.order == "sorted"
        self.weights: list[nn.Parameter] = []  # W and b of each layer in turn
        for before, after in pairwise([classes, *params.hidden, 1]):
            w = torch.rand(before, after, generator=generator, dtype=torch.float64) * 2 - 1
            w = w * (6 / (before + after)) ** 0.5
            b = torch.zeros(after, dtype=torch.float64)
            self.weights += [nn.Parameter(w.to(device)), nn.Parameter(b.to(device))]

    def h(self, p: Tensor) -> Tensor:
        """Logit [n] of g on confidence vectors [n, C] float64."""
        if self._sorted:
            p = p.sort(dim=1, descending=True).values
        w, b, *deeper = self.weights
        x = torch.addmm(b, p, w)
        for w, b in zip(deeper[::2], deeper[1::2], strict=True):
            x = torch.addmm(b, x.relu(), w)
        return x.squeeze(1)


def train_classifier(lessons: Sequence[Tensor], params: Any, key: int) -> Classifier | None:
    """Train g on every member's ``lessons``; return None without any.

    A member's lessons are logits [2m, C] on its own samples, then on as many references.
    """
    if not lessons:
        return None
    device = lessons[0].device
    generator = torch.Generator().manual_seed(key >> 1)
    g = Classifier(lessons[0].shape[1], params, generator, device)
    inside = []
    weight = []
    for logits in lessons:
        n = len(logits)
        inside.append(torch.arange(n, device=device) < n // 2)
        weight.append(torch.full((n,), 1 / (n * len(lessons)), device=device))
    p = torch.cat(list(lessons)).softmax(1)
    _fit(g, p, torch.cat(inside).double(), torch.cat(weight).double(), params.epochs)
    return g


def _fit(g: Classifier, p: Tensor, inside: Tensor, weight: Tensor, epochs: int) -> None:
    """Take full-batch steps of Adam on the weighted cross-entropy, then freeze g."""
    with torch.enable_grad():
        adam = Adam(g.weights, weight_decay=0.0)
        for _ in range(epochs):
            losses = binary_cross_entropy_with_logits(g.h(p), inside, reduction="none")
            adam.step((losses * weight).sum(), RATE)
    for w in g.weights:
        w.requires_grad_(False)


STEP = 0.1  # of a step of phase I along the gradient's direction, in logits
C2 = 10.0  # weight of the predicted label
C3 = tuple(10.0**i for i in range(-1, 6))  # of the distance, tried upwards as long as they succeed
SURE = 1e-5  # from 1/2: an answer is as good as it gets
GRID = 0.01  # of the logits that a coin reads: other chunks of a forward pass round below it


def phase_one(logits: Tensor, g: Classifier, steps: int) -> Tensor:
    """Search the noise that turns g's decision: [n, C] in the dtype of ``logits`` [n, C].

    The logits z + e of the largest weight of the distance with which g's decision turned and the
    label did not; z where there is none. Minimises |h(softmax(z + e))| + c2 max(0, max_{j != l}
    (z_j + e_j) - z_l - e_l) + c3 |softmax(z + e) - softmax(z)|_1 by steps along the gradient's
    direction, at most ``steps`` for each c3, each sample by itself. Source: Jia et al., CCS 2019,
    section 4 (phase I) and algorithm 1; the constants are theirs.
    """
    z = logits.double()
    label = z.argmax(1)
    h = g.h(z.softmax(1))
    noisy = logits.clone()
    left = torch.nonzero(certainty(h) > SURE).reshape(-1)
    for c3 in C3:
        if not len(left):
            break
        x, turned = _descend(z[left], label[left], h[left], g, c3, steps)
        x = x.to(logits)
        # in the very dtype of the answer
        turned &= (lead(x, label[left]) > 0) & (lead(x.softmax(1), label[left]) > 0)
        left = left[turned]
        noisy[left] = x[turned]
    return noisy


def certainty(h: Tensor) -> Tensor:
    """Distance [n] of g from 1/2, given its logit h."""
    return (h.sigmoid() - 0.5).abs()


def lead(scores: Tensor, label: Tensor) -> Tensor:
    """Label's score [n] minus the largest other one of [n, C]."""
    column = label[:, None]
    largest = scores.scatter(1, column, -torch.inf).amax(1)
    return scores.gather(1, column).squeeze(1) - largest


def _descend(
    z: Tensor, label: Tensor, before: Tensor, g: Classifier, c3: float, steps: int
) -> tuple[Tensor, Tensor]:
    """Return [n, C], where each sample's search ended, and [n], whether h turned from ``before``
    there with the label as it was.
    """
    x = z.clone()
    s = z.softmax(1)
    turned = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    live = torch.arange(len(z), device=z.device)  # what has ended is not computed on
    for step in range(steps + 1):
        gradient, h, ahead = _slope(x[live], s[live], label[live], g, c3)
        done = (h * before[live] <= 0) & (ahead > 0)
        turned[live[done]] = True
        live = live[~done]
        gradient = gradient[~done]
        if step == steps or not len(live):
            break
        x[live] -= STEP * gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return x, turned


def _slope(
    x: Tensor, s: Tensor, label: Tensor, g: Classifier, c3: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient [n, C] of phase I's loss at logits ``x`` [n, C], h [n], and the label's lead [n]."""
    with torch.enable_grad():
        x = x.requires_grad_()
        p = x.softmax(1)
        h = g.h(p)
        ahead = lead(x, label)
        loss = h.abs() + C2 * (-ahead).relu() + c3 * (p - s).abs().sum(1)
        (gradient,) = torch.autograd.grad(loss.sum(), x)
    return gradient, h.detach(), ahead.detach()


def phase_two(logits: Tensor, noisy: Tensor, g: Classifier, budget: float, key: int) -> Tensor:
    """Answer each sample with its ``noisy`` logits with probability p, else ``logits``: [n, C].

    p = 0 where the noise brings g no nearer to 1/2, else min(budget / d, 1) with d the L1 distance
    of the two softmaxes: the expected distance is at most ``budget``. The coin follows from ``key``
    and the sample's own logits: a repeated query gets the same answer, and the noise cannot be
    averaged away. Source: Jia et al., CCS 2019, section 4 (phase II); their coin is thrown once for
    each sample, too.
    """
    before = logits.double().softmax(1)
    after = noisy.double().softmax(1)
    nearer = certainty(g.h(after)) < certainty(g.h(before))
    distance = (before - after).abs().sum(1)
    p = torch.where(nearer, (budget / distance.clamp(min=1e-30)).clamp(max=1.0), 0.0)
    return torch.where((coins(logits, key) < p)[:, None], noisy, logits)


def coins(logits: Tensor, key: int) -> Tensor:
    """Draw [n] float64, uniform on [0, 1) over keys, by ``key`` and each row of ``logits``, rounded
    to ``GRID``, whatever is added to a whole row.
    """
    z = logits.double()
    rounded = ((z - z.amax(1, keepdim=True)) / GRID).round().clamp(min=-1e15).long()
    salt = key.to_bytes(8, "little")
    draws = []
    for row in rounded.cpu().numpy():
        digest = hashlib.blake2b(row.tobytes(), digest_size=6, key=salt).digest()
        draws.append(int.from_bytes(digest, "little") / 2**48)
    return torch.tensor(draws, dtype=torch.float64, device=logits.device)


class MemGuard(Defense):
    """Noise on each answer that brings a defense classifier g to 1/2 and changes no predicted
    label.

    g tells the members' training samples from their references by the confidence vector alone. A
    member has references where the setting gives it a validation part; elsewhere it keeps a share
    of its data out of training in ``prepare``. In ``after_round`` each member asks the new global
    model about as many training samples as references and keeps the answers: the model that will be
    queried is the aggregate, and the last one, which outsiders get, is sent to no member in any
    later round. g is trained at the first query, so that rounds without queries cost nothing:
    full-batch steps of Adam on the mean of the members' losses, which is what federated averaging
    of one gradient each a step gives, and confidence vectors stay with their member. In each loss
    training samples and references weigh the same. The server's view is what it would be without
    it: training is plain, but for what a member holds out itself. Source: Jia, Salem, Backes, Zhang
    & Gong, CCS 2019, section 4, algorithm 1; sizes of g as in their setting. They defend one model
    with one owner: the members' parts in g, its optimiser and epochs, and the key of the coin are
    ours.
    """

    private = ("answer",)  # noise that was fitted to the members' samples

    class Params(Params):
        budget: float = Field(
            1.0,
            ge=0,
            le=2,
            description="largest expected L1 distance of an answer from the softmax; 1: the "
            "largest in the paper",
        )
        hidden: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field(
            (256, 128, 64), min_length=1, description="widths of g's hidden layers of ReLUs"
        )
        order: Literal["sorted", "plain"] = Field(
            "sorted", description="g reads the confidences largest first, or by class"
        )
        epochs: int = Field(
            100,
            ge=1,
            le=100_000,
            description="steps of g's training, each on all that the members know",
        )
        steps: int = Field(
            300,
            ge=1,
            le=10_000,
            description="most steps of phase I for each weight of the distance",
        )
        validation: ValidationShare = 0.1

    # key of the model that was asked last, and its classifier
    _latest: tuple[int, Classifier | None] | None = None

    def begin(self, ctx: CoalitionContext) -> None:
        self._latest = None

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        n = len(data.y)
        if data.held_out is not None or n < 2:
            return data
        count = min(max(1, round(self.params.validation * n)), n - 1)
        mask = torch.zeros(n, dtype=torch.bool, device=data.y.device)
        mask[ctx.randperm(n)[:count]] = True
        return replace(data, held_out=mask)

    def after_round(self, ctx: MemberContext) -> None:
        if ctx.data.held_out is None or ctx.ask_global is None:
            return
        pools = ctx.data.trainable, torch.nonzero(ctx.data.held_out).reshape(-1)
        n = min(len(pool) for pool in pools)
        if n == 0:
            return
        # the first half was trained on
        index = torch.cat([pool[ctx.randperm(len(pool))[:n]] for pool in pools])
        ctx.memory["lessons"] = ctx.ask_global(ctx.data.x[index]).double()
        ctx.memory["round"] = ctx.round

    def answer(self, logits: Tensor, ctx: AnswerContext) -> Tensor:
        if self._latest is None or self._latest[0] != ctx.key:
            self._latest = ctx.key, train_classifier(lessons_of(ctx), self.params, ctx.key)
        g = self._latest[1]
        if g is None:  # no member served by this model has lessons yet
            return logits
        noisy = phase_one(logits, g, self.params.steps)
        return phase_two(logits, noisy, g, self.params.budget, ctx.key)


def lessons_of(ctx: AnswerContext) -> list[Tensor]:
    """Lessons of each member that the model serves and that asked it last."""
    served = [ctx.of_member[k] for k in ctx.served]
    taught = [memory for memory in served if "lessons" in memory]
    newest = max((memory["round"] for memory in taught), default=0)
    return [memory["lessons"] for memory in taught if memory["round"] == newest]
