"""MemGuard: answers to queries carry noise that brings a membership classifier to 1/2."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedbench.core import (
    AnswerContext,
    CoalitionContext,
    Defense,
    FactValue,
    MemberContext,
    MemberData,
    Params,
    ReportContext,
)
from fedbench.plugins.attacks.networks import Adam

RATE = 1e-3


class Classifier:
    """g = sigmoid(h): a confidence vector to the probability that its sample was trained on.

    In float64: a search that stops where h changes its sign must not depend on how many samples are
    searched at once. The weights are drawn by Glorot's uniform rule, as the authors' are.
    """

    def __init__(
        self,
        classes: int,
        hidden: Sequence[int],
        order: str,
        generator: torch.Generator,
        device: torch.device,
    ) -> None:
        self._sorted = order == "sorted"
        widths = [classes, *hidden, 1]
        self.layers: list[tuple[nn.Parameter, nn.Parameter]] = []
        for into, out in pairwise(widths):
            w = torch.rand(into, out, generator=generator, dtype=torch.float64) * 2 - 1
            w = w * (6 / (into + out)) ** 0.5
            b = torch.zeros(out, dtype=torch.float64)
            self.layers.append((nn.Parameter(w.to(device)), nn.Parameter(b.to(device))))

    def h(self, p: Tensor) -> Tensor:
        """[n]: g's logit on confidence vectors ``p`` [n, C] float64."""
        x = p.sort(dim=1, descending=True).values if self._sorted else p
        for i, (w, b) in enumerate(self.layers):
            x = torch.addmm(b, x.relu() if i else x, w)
        return x.squeeze(1)


def trained(lessons: Sequence[Tensor], params: Any, key: int) -> Classifier | None:
    """A classifier that learnt from every member's ``lessons`` [2m, C], logits on its own samples,
    then on as many references; None without any.
    """
    if not lessons:
        return None
    device = lessons[0].device
    generator = torch.Generator().manual_seed(key >> 1)
    g = Classifier(lessons[0].shape[1], params.hidden, params.order, generator, device)
    p = torch.cat(list(lessons)).softmax(1)
    inside = torch.cat(
        [torch.arange(len(z), device=device) < len(z) // 2 for z in lessons]
    ).double()
    weight = torch.cat(
        [
            torch.full((len(z),), 1 / (len(z) * len(lessons)), device=device).double()
            for z in lessons
        ]
    )
    weights = [t for layer in g.layers for t in layer]
    with torch.enable_grad():
        adam = Adam(weights, weight_decay=0.0)
        for _ in range(params.epochs):
            adam.step(
                (binary_cross_entropy_with_logits(g.h(p), inside, reduction="none") * weight).sum(),
                RATE,
            )
    for t in weights:
        t.requires_grad_(False)
    return g


STEP = 0.1  # of a step of phase I along the gradient's direction, in logits
C2 = 10.0  # weight of the predicted label
# weights of the distance, tried upwards as long as they succeed
C3 = tuple(10.0**i for i in range(-1, 6))
SURE = 1e-5  # from 1/2: an answer is as good as it gets
# logits, to which the coin looks: what lies below it may be the rounding of a forward pass in other
# chunks
GRID = 0.01


def crafted(logits: Tensor, g: Classifier, steps: int) -> Tensor:
    """[n, C] in the dtype of ``logits`` [n, C]: phase I, the logits z + e of the largest weight of
    the distance that turned g's decision without changing the label; z where there is none.

    Minimises |h(softmax(z + e))| + c2 max(0, max_{j != l} (z_j + e_j) - z_l - e_l) + c3 |softmax(z
    + e) - softmax(z)|_1 by steps along the gradient's direction, at most ``steps`` for each c3,
    each sample by itself. Source: Jia et al., CCS 2019, section 4 (phase I) and algorithm 1; the
    constants are theirs.
    """
    z = logits.double()
    label = z.argmax(1)
    first = g.h(z.softmax(1))
    best = logits.clone()
    open_ = torch.nonzero((first.sigmoid() - 0.5).abs() > SURE).reshape(-1)
    for c3 in C3:
        if not len(open_):
            break
        x, turned = _descend(z[open_], label[open_], first[open_], g, c3, steps)
        x = x.to(logits)
        turned &= _leads(x, label[open_])
        open_ = open_[turned]
        best[open_] = x[turned]
    return best


def _descend(
    z: Tensor, label: Tensor, first: Tensor, g: Classifier, c3: float, steps: int
) -> tuple[Tensor, Tensor]:
    """([n, C] where each sample's search ended, [n] whether g's decision had turned there with the
    label as it was).
    """
    x, s = z.clone(), z.softmax(1)
    turned = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    live = torch.arange(len(z), device=z.device)  # who is done is not computed on
    for step in range(steps + 1):
        with torch.enable_grad():
            here = x[live].requires_grad_()
            p = here.softmax(1)
            h, true = g.h(p), label[live][:, None]
            behind = here.scatter(1, true, -torch.inf).amax(1) - here.gather(1, true).squeeze(1)
            loss = h.abs() + C2 * behind.relu() + c3 * (p - s[live]).abs().sum(1)
            (gradient,) = torch.autograd.grad(loss.sum(), here)
        done = (h.detach() * first[live] <= 0) & (behind.detach() < 0)
        turned[live[done]] = True
        live, gradient = live[~done], gradient[~done]
        if step == steps or not len(live):
            break
        x[live] -= STEP * gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return x, turned


def _leads(x: Tensor, label: Tensor) -> Tensor:
    """[n] bool: whether the label's logit, and its probability, are above all others in the very
    dtype of the answer.
    """
    true = label[:, None]
    ahead = [
        v.gather(1, true).squeeze(1) > v.scatter(1, true, -torch.inf).amax(1)
        for v in (x, x.softmax(1))
    ]
    return ahead[0] & ahead[1]


def used(logits: Tensor, noisy: Tensor, g: Classifier, budget: float, key: int) -> Tensor:
    """[n, C]: phase II, each sample's ``noisy`` answer with probability p, else its ``logits``.

    p = 0 where the noise brings g no nearer to 1/2, else min(budget / d, 1) with d the L1 distance
    of the two softmaxes: the expected distance is at most ``budget``. The coin follows from ``key``
    and the sample's own logits: a repeated query gets the same answer, and the noise cannot be
    averaged away. Source: Jia et al., CCS 2019, section 4 (phase II); their coin is thrown once for
    each sample, too.
    """
    return torch.where(
        (coins(logits, key) < chance(logits, noisy, g, budget))[:, None], noisy, logits
    )


def chance(logits: Tensor, noisy: Tensor, g: Classifier, budget: float) -> Tensor:
    """[n] float64: p of phase II."""
    before, after = (z.double().softmax(1) for z in (logits, noisy))
    off, near = ((g.h(p).sigmoid() - 0.5).abs() for p in (before, after))
    distance = (before - after).abs().sum(1)
    return torch.where(near < off, (budget / distance.clamp(min=1e-30)).clamp(max=1.0), 0.0)


def coins(logits: Tensor, key: int) -> Tensor:
    """[n] float64, uniform on [0, 1) over keys, from ``key`` and each row of ``logits``, rounded to
    ``GRID``, whatever is added to a whole row."""
    z = logits.double()
    rows = ((z - z.amax(1, keepdim=True)) / GRID).round().clamp(min=-1e15).long().cpu().numpy()
    salt = key.to_bytes(8, "little")
    drawn = [
        int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=6, key=salt).digest(), "little")
        for row in rows
    ]
    return torch.from_numpy(np.array(drawn, dtype=np.float64) / 2**48).to(logits.device)


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
        validation: float = Field(
            0.1,
            gt=0,
            lt=1,
            description="share of its samples that a member holds out where the setting gives it "
            "none",
        )

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        # of the model that was asked last, by its key
        self._latest: tuple[int, Classifier | None] | None = None

    def begin(self, ctx: CoalitionContext) -> None:
        self._latest = None

    def prepare(self, data: MemberData, ctx: MemberContext) -> MemberData:
        n = len(data.y)
        if data.held_out is not None or n < 2:
            return data
        held = torch.zeros(n, dtype=torch.bool, device=data.y.device)
        held[ctx.randperm(n)[: min(max(1, round(self.params.validation * n)), n - 1)]] = True
        return replace(data, held_out=held)

    def after_round(self, ctx: MemberContext) -> None:
        held = ctx.data.held_out
        references = ctx.data.y.new_zeros(0) if held is None else torch.nonzero(held).reshape(-1)
        own = ctx.data.trainable
        n = min(len(own), len(references))
        if n == 0 or ctx.ask_global is None:
            return
        asked = torch.cat([part[ctx.randperm(len(part))[:n]] for part in (own, references)])
        # the first half was trained on
        ctx.memory["lessons"] = ctx.ask_global(ctx.data.x[asked]).double()
        ctx.memory["round"] = ctx.round

    def answer(self, logits: Tensor, ctx: AnswerContext) -> Tensor:
        if self._latest is None or self._latest[0] != ctx.key:
            self._latest = ctx.key, trained(lessons_of(ctx), self.params, ctx.key)
        g = self._latest[1]
        if g is None:  # no member served by this model has lessons yet
            return logits
        noisy = crafted(logits, g, self.params.steps)
        return used(logits, noisy, g, self.params.budget, ctx.key)

    def report(self, ctx: ReportContext) -> Mapping[str, FactValue]:
        known = [len(ctx.of_member[k].get("lessons", ())) // 2 for k in ctx.members]
        return {
            "protects": ["client", "external"],
            "distortion budget": self.params.budget,
            "references": sum(known),
        }


def lessons_of(ctx: AnswerContext) -> list[Tensor]:
    """[2m, C] logits of each member that the model serves and that asked it last: its own samples,
    then its references.
    """
    known = {k: ctx.of_member[k] for k in ctx.served if "lessons" in ctx.of_member[k]}
    newest = max((memory["round"] for memory in known.values()), default=0)
    return [memory["lessons"] for memory in known.values() if memory["round"] == newest]
